"""The frameworks that minigrad is compared with: optional imports, and the number of their threads.

Libraries read their threads when they are loaded, so `set_threads` comes before numpy's first import.
"""
from __future__ import annotations

import importlib
import os
import sys
from typing import Any

PEERS = {"torch": "torch", "numpy": "numpy", "onnxruntime": "onnxruntime", "llama.cpp": "llama_cpp"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MINIGRAD_THREADS")


def set_threads(count: int) -> str | None:
    """Asks every library for `count` threads; returns what could not be done, in one line."""
    late = "numpy" in sys.modules
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(count)
    if not late:
        return None
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return "numpy was loaded before its threads were set, and threadpoolctl is not installed: it keeps its own"
    threadpool_limits(count)
    return None


class Peers:
    """Those that were asked for and are installed. `missing` says what is not, a line each."""

    def __init__(self, names: list[str], threads: int):
        self.threads = threads
        self.modules: dict[str, Any] = {}
        self.missing: list[str] = []
        for name in names:
            try:
                self.modules[name] = importlib.import_module(PEERS[name])
            except ImportError as error:
                self.missing.append(f"without {name}: {error}")
        if "torch" in self.modules:
            self.modules["torch"].set_num_threads(threads)
            self.modules["torch"].manual_seed(0)

    def __contains__(self, name: str) -> bool:
        return name in self.modules

    def __getattr__(self, name: str) -> Any:
        """The module of a peer that is here."""
        return self.modules[name]
