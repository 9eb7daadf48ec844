"""What the host processor can do, measured: multiply-adds in registers, and a read stream from memory.

Both are programs of our own in LLVM IR and run on a thread pool of their own.
"""
from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from minigrad.program import Program
from minigrad.runtime.commands import Prepared
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Launch
from minigrad.target import Target

STREAM_BYTES = 256 << 20  # well beyond the last cache
ITERATIONS = 2_000_000  # a few milliseconds: short runs are the likelier to have the cores to themselves
STREAMS = 8  # independent loads in flight

_HEAD = """
declare {vector} @llvm.fmuladd.{suffix}({vector}, {vector}, {vector})
define void @{name}(ptr noalias %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
  %a = load ptr, ptr %args
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
"""
_TAIL = """
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %last
last:
{fold}
  %where = getelementptr i8, ptr %scratch, i64 0
  store {vector} %f{final}, ptr %where
  br label %done
done:
  ret void
}}
"""


class Limits(NamedTuple):
    """What a machine was measured to do: float32 multiply-adds (two operations each) and reading from memory."""

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
        """Reads `read_bytes` bytes once, for those who let the stream take turns with what they measure."""
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
    """Independent sums: enough to hide the latency of two units, few enough for the registers."""
    return min(16, target.registers - 4)


def multiply_add(lanes: int, chains: int) -> Program:
    """Each iteration: `chains` independent vector sums, s = s * x + x. The result goes to scratch memory."""
    vector, suffix = f"<{lanes} x float>", f"v{lanes}f32"
    text = _HEAD.format(vector=vector, suffix=suffix, name="peak_multiply_add")
    text = text.replace("  %any =", f"  %x = load {vector}, ptr %a, align 4\n  %any =")
    for j in range(chains):
        start = f"<{', '.join([f'float {float(j)}'] * lanes)}>"
        text += f"  %s{j} = phi {vector} [ {start}, %entry ], [ %t{j}, %loop ]\n"
    for j in range(chains):
        text += f"  %t{j} = call {vector} @llvm.fmuladd.{suffix}({vector} %s{j}, {vector} %x, {vector} %x)\n"
    text += _TAIL.format(vector=vector, fold=_fold(vector, chains), final=chains - 1)
    return Program("peak_multiply_add", "llvm", text, ("buffer:4",), 4096)


def read_stream(lanes: int) -> Program:
    """Each iteration adds `STREAMS` consecutive vectors to as many sums."""
    vector = f"<{lanes} x float>"
    text = _HEAD.format(vector=vector, suffix=f"v{lanes}f32", name="peak_read_stream")
    for j in range(STREAMS):
        text += f"  %s{j} = phi {vector} [ zeroinitializer, %entry ], [ %t{j}, %loop ]\n"
    text += f"  %from = mul i64 %i, {STREAMS * lanes}\n"
    for j in range(STREAMS):
        text += (f"  %o{j} = add i64 %from, {j * lanes}\n"
                 f"  %p{j} = getelementptr float, ptr %a, i64 %o{j}\n"
                 f"  %v{j} = load {vector}, ptr %p{j}, align 4\n"
                 f"  %t{j} = fadd {vector} %s{j}, %v{j}\n")
    text += _TAIL.format(vector=vector, fold=_fold(vector, STREAMS), final=STREAMS - 1)
    return Program("peak_read_stream", "llvm", text, ("buffer:4",), 4096)


def _fold(vector: str, count: int) -> str:
    """%f<count-1> = the sum of %t0 ... %t<count-1>."""
    lines = [f"  %f1 = fadd {vector} %t0, %t1"]
    lines += [f"  %f{j} = fadd {vector} %f{j - 1}, %t{j}" for j in range(2, count)]
    return "\n".join(lines)
