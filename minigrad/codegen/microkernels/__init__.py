"""Inner kernels as values: meaning in loop IR, implementation, requirements. Read `microkernel.py` first."""
