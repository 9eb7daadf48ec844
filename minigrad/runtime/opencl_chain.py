"""Chains: many small launches as one, by a kernel that goes through a table of launches itself.

A driver for processors takes microseconds to hand a launch over and more to wake its threads, as long as a small kernel
runs. A chain has one work-group per core. The work-groups claim chunks of the launches, in order, from a counter, each
when all that it may depend on is done, as a second counter says. What is waited for has always been claimed by a
work-group that runs: whatever number of work-groups a driver runs at once, one of them goes on. A work-group that has
waited for long leaves, so that its core is free for those that are late; the others do the rest. What is needed of the
driver is that a work-group, once begun, goes on while another one waits (`opencl_quirks.GROUPS_GO_ON`). Which
work-group runs a chunk changes no result.

A row of the table, in words of 64 bits: first chunk, the chunk after the last, how many chunks must be done before,
iterations per chunk, extent, program; then the program's arguments, (memory, offset in elements) for a buffer.
"""
from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from minigrad.errors import InternalError
from minigrad.program import Program
from minigrad.runtime.opencl_build import join_sources

if TYPE_CHECKING:
    from minigrad.runtime.opencl import Executable

LONGEST = 2_000_000.0
"""Estimated nanoseconds of a launch from which it stays alone: handing it over costs a hundredth of that."""

USES, SAVED = 4, 32
"""The number of times that a program must run to be compiled into a chain, and the number of launches that chains must
save in all: compiling takes as long as tens of thousands of launches."""

CHUNK_NS, CHUNKS = 2000.0, 4
"""The least estimated nanoseconds of a chunk, and the most chunks of a launch for each work-group."""

FIRST, LAST, BEFORE, CHUNK, EXTENT, PROGRAM, ARGUMENTS = range(7)
PATIENCE = 8192
"""The number of times that a waiting work-group looks before it leaves: some 0.3 ms."""

LINE = 16
"""Counters of 32 bits to a cache line: of claimed chunks, of chunks that are done, of work-groups that are."""


@dataclass(slots=True)
class Planned:
    """A launch that will run many times. `memories` has for each buffer the number of the memory that it is a part of,
    `beside` is True where it depends on nothing that the launch before it does or waits for, `work` estimates its
    nanoseconds."""

    executable: Executable
    memories: tuple[int, ...]
    work: float
    beside: bool


def chains_of(launches: list[Planned], most: int) -> list[range]:
    """The ranges of neighbours that become chains, with at most `most` memories in each; none where chains would not
    pay."""
    uses = Counter([p.executable for p in launches])
    found: list[range] = []
    start, memories = 0, set[int]()
    for k, p in enumerate([*launches, None]):
        joins = p if p is not None and _may_join(p) and uses[p.executable] >= USES else None
        if joins is None or len(memories | set(joins.memories)) > most:
            if k - start > 1:
                found.append(range(start, k))
            start, memories = k, set()
        if joins is not None:
            memories |= set(joins.memories)
        else:
            start = k + 1
    return found if sum([len(chain) - 1 for chain in found]) >= SAVED else []


def _may_join(p: Planned) -> bool:
    """True where its work-items do not depend on a work-group, and it is short."""
    program = p.executable.program
    return not program.group and not program.scratch and 0 < p.work <= LONGEST


def chunk_of(extent: int, work: float, groups: int) -> int:
    """The number of iterations of a chunk."""
    pieces = max(1, min(int(work / CHUNK_NS), CHUNKS * groups))
    return -(-extent // pieces)


class Table:
    """The rows of all chains, on the host. `rows` are the launches in them, by number; `row_of` is the inverse."""

    def __init__(self, launches: list[Planned], chains: list[range], groups: int):
        self.groups = groups
        self.rows = [k for chain in chains for k in chain]
        self.row_of = {k: at for at, k in enumerate(self.rows)}
        self.programs = list(dict.fromkeys(launches[k].executable for k in self.rows))
        self.stride = -(-(ARGUMENTS + max([len(e.types) for e in self.programs])) // 8) * 8
        self.words = np.zeros((len(self.rows), self.stride), np.int64)
        number = {e: i for i, e in enumerate(self.programs)}
        self.words[:, PROGRAM] = [number[launches[k].executable] for k in self.rows]
        self._work = [launches[k].work for k in self.rows]
        begin = [chain.start for chain in chains for _ in chain]
        self._begin = np.array([self.row_of[k] for k in begin])
        free = [launches[k].beside and k > start for k, start in zip(self.rows, begin, strict=True)]
        self._phase = np.array([0] * len(self.rows))
        """The first of the neighbours that run beside each other."""
        for at, beside in enumerate(free):
            self._phase[at] = self._phase[at - 1] if beside else at
        self.changed = True
        self._counted = False

    def set_extent(self, k: int, extent: int) -> None:
        """The extent of a launch, and the size of its chunks with it."""
        row = self.words[self.row_of[k]]
        row[EXTENT], row[CHUNK] = extent, chunk_of(extent, self._work[self.row_of[k]], self.groups)
        self._counted, self.changed = False, True

    def set_word(self, k: int, argument: int, word: int) -> None:
        """Sets a word of an argument of a launch, counted among the kernel's own."""
        self.words[self.row_of[k], ARGUMENTS + argument] = word
        self.changed = True

    def count_chunks(self) -> None:
        """Numbers the chunks of each chain after extents have changed."""
        if self._counted:
            return
        words = self.words
        chunks = -(-words[:, EXTENT] // np.maximum(words[:, CHUNK], 1))
        after = np.cumsum(chunks)
        before = after - chunks
        words[:, FIRST] = before - before[self._begin]
        words[:, LAST] = after - before[self._begin]
        words[:, BEFORE] = words[self._phase, FIRST]
        self._counted = True


def word_of(value: float, kind: type[np.generic]) -> int:
    """The 64-bit word that stands for a scalar of this numpy type."""
    if issubclass(kind, np.floating):
        bits = np.int64 if np.dtype(kind).itemsize == 8 else np.int32
        return int(np.array(value, kind).view(bits))
    return int(np.array(value, kind).astype(np.int64))


def chain_program(programs: list[Program], memories: int, stride: int) -> Program:
    """The kernel that runs tables of these programs over so many memories: `(counters, table, first row, rows,
    memories...)`, one work-item to a work-group. `stride` is the number of words of a row."""
    texts, cases = [], []
    for number, program in enumerate(programs):
        text, call = _as_function(program)
        texts.append(text)
        cases.append(f"    case {number}: for (long i = first; i < last; ++i) {call}; break;")
    names = [f"m{k}" for k in range(memories)]
    parameters = ", ".join(["__global volatile uint *counters", "__global const long *table", "long start", "long rows",
                            *[f"__global uchar *{name}" for name in names]])
    body = f"""({parameters})
{{
  __global uchar *memory[{memories}] = {{{", ".join(names)}}};
  __global const long *row = table + start * {stride};
  __global const long *end = row + rows * {stride};
  uint next = atomic_or(&counters[0], 0u), waited = 0;
  while (waited < {PATIENCE}) {{
    while (row < end && next >= row[{LAST}]) row += {stride};
    if (row == end) break;
    if (counters[{LINE}] < row[{BEFORE}]) {{
      relax();
      ++waited;
      next = counters[0];
      continue;
    }}
    const uint seen = atomic_cmpxchg(&counters[0], next, next + 1);
    if (seen != next) {{
      next = seen;
      continue;
    }}
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    const long first = (next - row[{FIRST}]) * row[{CHUNK}], last = min(first + row[{CHUNK}], row[{EXTENT}]);
    switch ((int)row[{PROGRAM}]) {{
{chr(10).join(cases)}
    }}
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    atomic_inc(&counters[{LINE}]);
    ++next;
    waited = 0;
  }}
  if (atomic_inc(&counters[{2 * LINE}]) == get_num_groups(0) - 1) {{
    counters[0] = 0;
    counters[{LINE}] = 0;
    counters[{2 * LINE}] = 0;
  }}
}}
"""
    texts.append(RELAX)
    source = join_sources(texts)
    name = f"chain_{sha256((source + body).encode()).hexdigest()[:8]}"
    head = "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))\nvoid "
    return Program(name, "opencl", f"{source}\n{head}{name}{body}", (), group=1)


RELAX = """#if defined(__x86_64__)
#define relax() __builtin_ia32_pause()
#else
#define relax()
#endif
"""


def _as_function(program: Program) -> tuple[str, str]:
    """(the source with the kernel as a function of one work-item, its call for iteration `i` of the row at hand)."""
    found = re.search(rf"(?:__attribute__.*\n)?__kernel void {program.name}\(([^)]*)\)", program.source)
    if found is None:
        raise InternalError(f"[prepare] expected a kernel {program.name} in its source, got\n{program.source}")
    before, parameters, after = program.source[:found.start()], found[1], program.source[found.end():]
    text = f"{before}static void {program.name}_item({parameters}, long item){after}"
    arguments = []
    for k, parameter in enumerate(parameters.split(",")):
        kind, word = parameter.replace("restrict", "").rsplit(None, 1)[0].strip(), f"row[{ARGUMENTS + k}]"
        if "*" in parameter:
            kind, _, _ = parameter.partition("*")
            arguments.append(f"({kind.strip()} *)memory[{word}]")
        else:
            arguments.append({"float": f"as_float((int){word})", "double": f"as_double({word})"}
                             .get(kind, f"({kind}){word}"))
    arguments[-1] = f"row[{EXTENT}]"
    return text.replace("get_global_id(0)", "item"), f"{program.name}_item({', '.join(arguments)}, i)"
