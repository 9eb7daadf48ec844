"""Nodes to Kernel, and rewrites of Kernels."""
