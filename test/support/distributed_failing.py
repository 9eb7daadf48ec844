"""Processes of which rank 1 fails in the way that is asked for."""
import os
import signal
import sys

from minigrad import Tensor, distributed

how, = sys.argv[1:]
distributed.init()
for step in range(1000):
    if step == 3 and distributed.rank() == 1:
        if how == "raise":
            raise ValueError("a bad batch")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(Tensor([1.0, 2.0]))
    distributed.all_reduce(Tensor([1.0]))
