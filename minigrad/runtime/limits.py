"""Limits of the host processor, measured: multiply-adds in registers, and a read stream from memory.

Both are programs of our own in LLVM IR (`native/`) and run on a thread pool of their own.
"""
from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from minigrad.program import Program
from minigrad.runtime.commands import Prepared
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Launch
from minigrad.runtime.native_text import native_text
from minigrad.target import Target

STREAM_BYTES = 256 << 20  # well beyond the last cache
ITERATIONS = 2_000_000  # a few milliseconds: short runs are the likelier to have the cores to themselves
STREAMS = 8  # independent loads in flight, of `native/read_stream.ll`


class Limits(NamedTuple):
    """Measured rates of a machine: float32 multiply-adds (two operations each) in GFLOP/s, and reading from memory in
    GB/s."""

    gflops: float
    gb_s: float


class Probe:
    """GFLOP/s of float32 multiply-adds and GB/s of reading, on `threads` threads: the best seen so far.

    On a shared machine a limit is measured low as easily as anything else, so `refresh` measures again, between rows.
    """

    def __init__(self, threads: int, quick: bool = False):
        self._cpu = cpu = CPU(threads)  # threads of its own: they sleep between refreshes
        self._quick = quick
        lanes, chains = cpu.target.vector_bytes // 4, _chains(cpu.target)
        iterations, nbytes = (ITERATIONS // 10, STREAM_BYTES // 64) if quick else (ITERATIONS, STREAM_BYTES)
        seed, data = cpu.alloc(64), cpu.alloc(nbytes)
        cpu.copy_in(seed, np.full(16, 0.5, np.float32))
        cpu.copy_in(data, np.ones(nbytes // 4, np.float32))
        self._gflop, self.read_bytes = 2.0 * lanes * chains * iterations / 1e9, nbytes
        programs = cpu.load([multiply_add(lanes, chains), read_stream(lanes)])
        self._multiply = cpu.prepare([Launch(programs[0], (seed,), iterations)])
        self._read = cpu.prepare([Launch(programs[1], (data,), nbytes // (STREAMS * lanes * 4))])
        self.limits = Limits(0.0, 0.0)
        self.refresh(1 if quick else 30)

    def refresh(self, runs: int = 2) -> Limits:
        """Measures `runs` times more; each takes a few milliseconds."""
        runs = 1 if self._quick else runs
        gflops = self._gflop / self._best_s(self._multiply, runs)
        return self._saw(gflops, self._best_s(self._read, runs))

    def read(self) -> None:
        """Reads `read_bytes` bytes once, for callers that let the stream take turns with what they measure."""
        self._cpu.run(self._read)

    def saw(self, seconds: float) -> Limits:
        """Counts a `read` that took so long."""
        return self._saw(0.0, seconds)

    def _saw(self, gflops: float, seconds: float) -> Limits:
        self.limits = Limits(max(self.limits.gflops, gflops), max(self.limits.gb_s, self.read_bytes / 1e9 / seconds))
        return self.limits

    def _best_s(self, prepared: Prepared, runs: int) -> float:
        best = float("inf")
        for _ in range(runs + 1):  # the first one wakes the threads
            begin = time.perf_counter()
            self._cpu.run(prepared)
            best = min(best, time.perf_counter() - begin)
        return best


def _chains(target: Target) -> int:
    """The number of independent sums: enough to hide the latency of two execution units, and no more than registers
    hold."""
    return min(16, target.registers - 4)


def multiply_add(lanes: int, chains: int) -> Program:
    """A program that computes `chains` (12 or 16) independent vector sums in each iteration, s = s * x + x."""
    return _program("peak_multiply_add", f"multiply_add_{chains}", lanes)


def read_stream(lanes: int) -> Program:
    """A program that adds `STREAMS` consecutive vectors to as many sums in each iteration."""
    return _program("peak_read_stream", "read_stream", lanes)


def _program(name: str, file: str, lanes: int) -> Program:
    """The program of a file in `native/`, for vectors of so many floats."""
    return Program(name, "llvm", f"%vector = type <{lanes} x float>\n\n{native_text(file)}", ("buffer:4",), 4096)
