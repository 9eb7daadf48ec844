"""A fuzzer of networks: random graphs of layers on minigrad's devices, against PyTorch in float64. See `__main__`."""
