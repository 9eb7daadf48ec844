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

TRIES, CUTS, MOST_TRIED = 400, 5, 64
"""The programs that are asked at most; the distances from the result at which all is cut off; the operations of one
program that are replaced or left out one by one."""

REFUSALS = (MinigradError, InternalError, ValueError, TypeError, IndexError, KeyError, AttributeError,
            NotImplementedError, ZeroDivisionError, AssertionError)
"""Errors that operations and their references raise for operands that no longer fit."""


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
    """With an earlier row as the result: the middle one, then between that and the end, and so on. A fault is seen in
    most of what follows it, so that halving comes to the first row that has it."""
    made = [k for k, row in enumerate(program.rows) if row.op is not None and k != program.target]
    at = 0
    while at < len(made):
        at += (len(made) - at + 1) // 2
        yield program.pruned(made[at - 1])


def _leaves(program: Program) -> Iterator[Program]:
    """With values that NUMPY computes in place of operations: of all that are so far from the result, then of one of
    them, that with most behind it first."""
    if program.size == 1:
        return
    try:
        with np.errstate(all="ignore"):
            values = program.values()
    except REFUSALS:
        return

    def instead(k: int) -> Row:
        return Row(None, (), {}, program.rows[k].dtype, values[k])

    near = [program.target]
    for _ in range(CUTS):
        inside = set(near)
        edge = {i for k in near for i in program.rows[k].inputs} - inside
        yield program.changed({k: instead(k) for k in edge if program.rows[k].op is not None})
        near = [*near, *edge]
    below = _below(program)
    made = [k for k, row in enumerate(program.rows) if row.op is not None and k != program.target]
    for k in sorted(made, key=lambda k: -below[k])[:MOST_TRIED]:
        yield program.changed({k: instead(k)})


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
    for k in reversed(made[-MOST_TRIED:]):
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
            rows = tuple([_resized(row, n, m) for row in program.rows])
            if any(a is not b for a, b in zip(rows, program.rows, strict=True)):
                yield Program(rows, program.target)


def _resized(row: Row, n: int, m: int) -> Row:
    if row.value is not None:
        cut = row.value[tuple([slice(m) if size == n else slice(None) for size in row.value.shape])]
        return row if cut.shape == row.value.shape else replace(row, value=np.array(cut))
    params = {name: _with_size(p, n, m) for name, p in row.params.items()}
    return row if params == row.params else replace(row, params=params)


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
