"""A training step in a process of its own: `python cached_step.py [fault]` prints its results and what it cost.

Faults: `kill:N` ends the process, as `kill -9` does, before the N-th file of the cache gets its name; `limit:N` allows
files of N bytes; `cpu` and `version` store for another processor, and for another version of minigrad.
"""
import json
import os
import resource
import signal
import sys
from hashlib import sha256
from itertools import count

import llvmlite.binding as llvm
import numpy as np

fault, _, number = (sys.argv[1] if len(sys.argv) > 1 else "").partition(":")
if fault == "kill":
    renames, replace = count(), os.replace

    def replace_or_die(source, target):
        if next(renames) == int(number):
            with open(source, "r+b") as f:
                f.truncate(20)
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = replace_or_die  # type: ignore[assignment]
elif fault == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), int(number)))
elif fault == "cpu":
    llvm.get_host_cpu_name = lambda: "x86-64" if os.uname().machine == "x86_64" else "generic"

from minigrad import Tensor, optim  # noqa: E402
from minigrad.engine import plan_store  # noqa: E402
from minigrad.engine.stats import stats  # noqa: E402
from minigrad.runtime.cpu import shared_jit  # noqa: E402

if fault == "version":
    plan_store.sources_digest = lambda: "another version"  # type: ignore[assignment]
weight = Tensor(np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10), requires_grad=True)
x = Tensor(np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6))
optimizer = optim.SGD([weight], lr=0.1)
loss = (x @ weight).softmax().square().sum()
loss.backward()
Tensor.realize(loss, *optimizer.schedule_step())
digest = sha256(loss.numpy().tobytes() + weight.numpy().tobytes()).hexdigest()
print(json.dumps({"digest": digest, "loss": loss.item(), "programs": stats.programs, "schedules": stats.schedules,
                  "plan_loads": stats.plan_loads, "compiled": shared_jit().compiled}))
