"""Plans: they are made from graphs and kernels, kept, and run on devices. Read `realize.py` first."""
