"""Smaller programs that fail alike (delta debugging: Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002): the result earlier, leaves in place of what is computed, operations left out, sizes made
smaller, numbers made plain."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from minigrad.errors import InternalError, MinigradError
from minigrad.report.reduced.program import Program, Row

TRIES = 400

REFUSALS = (MinigradError, InternalError, ValueError, TypeError, IndexError, KeyError, AttributeError,
            NotImplementedError, ZeroDivisionError, AssertionError)
"""What operations and their references raise for operands that no longer fit."""


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = TRIES) -> Program:
    """The smallest program found that `fails`, with at most so many asked."""
    def still(candidate: Program) -> bool:
        nonlocal tries
        tries -= 1
        try:
            return fails(candidate)
        except REFUSALS:
            return False

    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _candidates(program):
            if tries <= 0:
                break
            if still(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    """Programs that are simpler by one step, those that are by much first."""
    yield from _earlier(program)
    yield from _leaves(program)
    yield from _bypassed(program)
    if program.size <= FEW:
        yield from _smaller(program)
        yield from _plainer(program)


FEW = 12
"""Operations up to which sizes and numbers are looked at: those of what will be left out do not matter."""


def _earlier(program: Program) -> Iterator[Program]:
    """With an earlier row as the result: half of them, a quarter, and so on, then each."""
    made = [k for k, row in enumerate(program.rows) if row.op is not None and k != program.target]
    tried = dict.fromkeys([made[len(made) * part // 16] for part in range(16)]) if len(made) > 16 else {}
    for k in [*tried, *(reversed(made) if len(made) <= 64 else ())]:
        yield program.pruned(k)


def _leaves(program: Program) -> Iterator[Program]:
    """With the value that NUMPY computes in place of an operation, that with most behind it first."""
    try:
        with np.errstate(all="ignore"):
            values = program.values()
    except REFUSALS:
        return
    below = _below(program)
    made = [k for k, row in enumerate(program.rows) if row.op is not None and k != program.target]
    for k in sorted(made, key=lambda k: -below[k])[:64]:
        yield program.changed({k: Row(None, (), {}, program.rows[k].dtype, values[k])})


def _below(program: Program) -> list[int]:
    """A bound on the operations behind each row."""
    found: list[int] = []
    for row in program.rows:
        found.append(0 if row.op is None else 1 + sum([found[i] for i in set(row.inputs)]))
    return found


def _bypassed(program: Program) -> Iterator[Program]:
    """Without an operation, whose operand of its shape and type goes where it went."""
    shapes = _shapes(program)
    made = [k for k, row in enumerate(program.rows) if row.op is not None]
    for k in reversed(made[-64:]):
        for i in program.rows[k].inputs:
            if shapes[i] == shapes[k] and program.rows[i].dtype is program.rows[k].dtype:
                rows = [replace(row, inputs=tuple([i if x == k else x for x in row.inputs])) for row in program.rows]
                yield Program(tuple(rows), i if k == program.target else program.target).pruned()


def _shapes(program: Program) -> list[tuple[Any, ...]]:
    return [n.shape for n in program.nodes("NUMPY")]


def _smaller(program: Program) -> Iterator[Program]:
    """With a size replaced by a smaller one wherever it stands."""
    sizes = {n for shape in _shapes(program) for n in shape if isinstance(n, int) and n > 1}
    for n in sorted(sizes, reverse=True):
        for m in dict.fromkeys(x for x in (1, 2, 3, 4, 8, 16, n // 2, n - 1) if 0 < x < n):
            yield Program(tuple([_resized(row, n, m) for row in program.rows]), program.target)


def _resized(row: Row, n: int, m: int) -> Row:
    if row.value is not None:
        cut = row.value[tuple([slice(m) if size == n else slice(None) for size in row.value.shape])]
        return replace(row, value=np.ascontiguousarray(cut))
    return replace(row, params={name: _with_size(p, n, m) for name, p in row.params.items()})


def _with_size(param: Any, n: int, m: int) -> Any:
    if isinstance(param, tuple):
        return tuple([_with_size(p, n, m) for p in param])
    return m if type(param) is int and param == n else param


def _plainer(program: Program) -> Iterator[Program]:
    """With small whole numbers in a leaf."""
    for k, row in enumerate(program.rows):
        if row.value is not None and row.value.size and row.dtype.kind != "b":
            for value in (np.ones_like(row.value), _counted(row.value)):
                if not np.array_equal(value, row.value) and not _is_plain(row.value):
                    yield program.changed({k: replace(row, value=value)})


def _counted(value: np.ndarray) -> np.ndarray:
    """1, 2, 3, 1, 2, ... in the shape of a value."""
    return (np.arange(value.size) % 3 + 1).astype(value.dtype).reshape(value.shape)


def _is_plain(value: np.ndarray) -> bool:
    return np.array_equal(value, np.ones_like(value)) or np.array_equal(value, _counted(value))
