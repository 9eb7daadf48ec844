"""First launches of OpenCL kernels, for another process: drivers that compile kernels then keep them on disk.

    python opencl_first.py     reads one request from stdin, and answers nothing

A request is JSON: {"device": [platform, name, version], "builds": [[source, options, [kernel, ...]], ...]}, a kernel
[name, arguments, global size, work-group size], an argument "" for memory or the name of a numpy type. The last
argument of a kernel is its extent; with 0 it does nothing. This file imports nothing of minigrad: it starts quickly.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def launch_first(request: Mapping[str, Any]) -> None:
    """Builds the sources in turn and launches each kernel over nothing, one at a time."""
    import pyopencl as cl

    device = next(d for p in cl.get_platforms() for d in p.get_devices()
                  if [p.name.strip(), d.name.strip(), d.version.strip()] == request["device"])
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device)
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    for source, options, kernels in request["builds"]:
        build = cl.Program(context, source).build(options, cache_dir=False)
        for name, arguments, size, group in kernels:
            kernel = cl.Kernel(build, name)
            for at, kind in enumerate(arguments):
                kernel.set_arg(at, np.dtype(kind).type(0) if kind else memory)
            cl.enqueue_nd_range_kernel(queue, kernel, (size,), (group,))
            queue.finish()


if __name__ == "__main__":
    launch_first(json.load(sys.stdin))
