"""Where graphs, kernels and devices meet: plans are made, kept and run. Read `realize.py` first."""
