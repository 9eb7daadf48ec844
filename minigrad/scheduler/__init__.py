"""Scheduling: which operations form a kernel, and in which order kernels run."""
