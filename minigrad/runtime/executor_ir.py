"""The native executor: its LLVM IR (`native/executor.ll` and what a system adds), and the layout of its memory.

`run(table)` executes the commands of a table in order for the calling thread, which is worker 0. `work(state, me)` is
where the other workers live until `stop` is set. A table is a header and commands of eight u64 words each:

    state, count, 0, 0, 0, 0, 0, 0
    fn, args, total, size, chunks, table, 0, 0
    ...

Chunk c covers [c*size, min((c+1)*size, total)). Without a table the chunk is one call `fn(args, begin, end, scratch)`.
With one, begin..end counts pieces of four words (fn, args, begin, end), each a call of its own. A command with at most
one chunk runs on the caller alone; otherwise each worker has a fixed range of chunks, takes them from its front, and
then takes from the back of the others'.

A range is one word, epoch:32 lo:16 hi:16, and a chunk is claimed by exchanging the whole word. The epoch makes a claim
of a late worker fail. The rest follows from one rule: `run` publishes a command only when every chunk of the previous
one is done, hence whoever claimed a chunk may read the command until it reports that chunk as done.
"""
from __future__ import annotations

from minigrad.runtime.native_text import native_text

HEADER_WORDS = 8
COMMAND_WORDS = 8
PIECE_WORDS = 4

# Byte offsets of fields of %State that Python writes; the types in `native/executor.ll` say what they are.
THREADS = 520
SPIN = 528
SYSTEM = 536
WORKERS = 640
WORKER_BYTES = 128
SCRATCH = 8  # in a %Worker

_PAUSES = {"x86_64": "pause_x86_64", "aarch64": "pause_aarch64", "arm64": "pause_aarch64"}
_SYSTEM_CALLS = {"x86_64": "linux_x86_64", "aarch64": "linux_generic", "riscv64": "linux_generic"}


def state_bytes(threads: int) -> int:
    """Size of the state shared by `threads` workers."""
    return WORKERS + WORKER_BYTES * threads


def scratch_at(worker: int) -> int:
    """Byte offset in the state of the address of a worker's scratch memory."""
    return WORKERS + worker * WORKER_BYTES + SCRATCH


def has_futex(triple: str) -> bool:
    """True where idle workers sleep and are woken by system calls of Linux."""
    return "linux" in triple and _arch(triple) in _SYSTEM_CALLS


def emit_executor(triple: str) -> str:
    """The executor's IR for a target triple. Entries: `run`, `work`, `spin` (for calibration) and `stop`, and those of
    `builtin_call`, by which Python calls `run`."""
    return "\n".join(native_text(name) for name in parts(triple))


def parts(triple: str) -> list[str]:
    """The files in `native/` that the executor of a target triple consists of, in order."""
    arch = _arch(triple)
    sleep = ["sleep_linux", _SYSTEM_CALLS[arch]] if has_futex(triple) else \
        ["sleep_windows" if "windows" in triple else "sleep_nanosleep"]
    return ["executor", "builtin_call", _PAUSES.get(arch, "pause_none"), *sleep]


def _arch(triple: str) -> str:
    return triple.split("-")[0]
