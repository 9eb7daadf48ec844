"""Memory that the processes of one machine share: each writes what is to be combined into its own, and reads that of
the others in place.

Memory for a tag has two halves that take turns: who writes the next values writes them beside those that slower
processes still read, and knows that all have read the ones before, as they have asked for these. It is a file without a
name, which others open by this process's number and is gone with the last of them.
"""
from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

HALVES = 2
_NONE = np.empty(0, np.uint8)


class Shared:
    """This process's memory by tag, and what it has opened of the others."""

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, np.ndarray]] = {}
        self._turns: dict[int, int] = {}
        self._opened: dict[tuple[int, int], tuple[str, np.ndarray]] = {}

    def own(self, tag: int, nbytes: int) -> tuple[np.ndarray, str]:
        """(`nbytes` bytes of this process's memory for a tag, a note by which others find them)."""
        fd, memory = self._own.get(tag, (-1, _NONE))
        half = len(memory) // HALVES
        if half < nbytes:
            half = -(-max(nbytes, 2 * half) // mmap.PAGESIZE) * mmap.PAGESIZE  # the old file stays, for who is slower
            fd = os.memfd_create("minigrad-exchange")
            os.posix_fallocate(fd, 0, HALVES * half)  # no memory is an error here, not a signal later
            memory = np.frombuffer(mmap.mmap(fd, HALVES * half), np.uint8)
            self._own[tag] = fd, memory
        turn = self._turns[tag] = (self._turns.get(tag, 0) + 1) % HALVES
        start = turn * half
        return memory[start:start + nbytes], f"{os.getpid()} {fd} {HALVES * half} {start}"

    def of(self, rank: int, tag: int, note: str, nbytes: int) -> np.ndarray:
        """The bytes that a note of another rank stands for. Raises OSError where they cannot be opened."""
        name, _, start = note.rpartition(" ")
        known, memory = self._opened.get((rank, tag), ("", _NONE))
        if known != name:
            pid, fd, size = name.split()
            with open(Path("/proc", pid, "fd", fd), "r+b") as file:
                memory = np.frombuffer(mmap.mmap(file.fileno(), int(size), prot=mmap.PROT_READ), np.uint8)
            self._opened[rank, tag] = name, memory
        at = int(start)
        return memory[at:at + nbytes]


def place() -> str:
    """A text that is equal in processes that may open each other's files: the machine, and whose numbers they have."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"
    except OSError:
        return ""
