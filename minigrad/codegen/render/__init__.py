"""Loop IR to the text of a device's language: `llvm.py` for CPUs, `opencl.py` for OpenCL C; read `common.py` first."""
