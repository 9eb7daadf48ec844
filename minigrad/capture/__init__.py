"""`jit`: what a function makes the engine do, recorded once and done again.

Read `recorder.py` (steps over registers), `journal.py` (the Tensors that were there before), `replay.py` (one capture
and when it holds), `arguments.py` (keys), `outputs.py`, and `jit.py`, which puts them together.
"""
