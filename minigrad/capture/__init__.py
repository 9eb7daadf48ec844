"""`jit`: a recording of what a call made the engine do, done again at later calls.

Read `recorder.py` (steps over registers), `journal.py` (the Tensors that were there before), `replay.py` (one capture
and when it holds), `arguments.py` (keys), `outputs.py`, and `jit.py`, which puts them together.
"""
