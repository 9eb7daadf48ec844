"""`jit`: a recording of what a call made the engine do, done again at later calls."""
