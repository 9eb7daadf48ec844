"""A program as a test in Python: leaves with their numbers, an operation a line, and what should hold."""
from __future__ import annotations

import base64
from typing import Any
from zlib import compress

import numpy as np

from minigrad.dtype import DType
from minigrad.report.reduced.names import name_of
from minigrad.report.reduced.program import Row
from minigrad.report.reduced.watch import Found

MOST_NUMBERS = 64
"""The numbers of a leaf that are written out; more are compressed."""


def written(found: Found) -> str:
    """A module for pytest, with what is wrong in its docstring. An operation that no module has by a name, such as a
    step of a loop, is named by a comment instead."""
    rows = found.program.rows
    names = {name_of(row.op) for row in rows if row.op is not None}
    text = "\n".join([_line(k, row) for k, row in enumerate(rows)])
    packed = ["from base64 import b64decode", "from zlib import decompress", ""] if "decompress(" in text else []
    judge, of = ("assert_alike", f'program, "{found.device}"') if found.device else ("assert_gradient", "program")
    imports = sorted([*[f"from {module} import {name}" for module, name in names if module], *[
        "from minigrad import dtypes", f"from minigrad.report.reduced.judge import {judge}",
        "from minigrad.report.reduced.program import Program, Row"]])
    return "\n".join([f'"""{found.text}"""', *packed, "import numpy as np", "", *imports, "", f"rows = (\n{text}\n)",
                      "", "", "def test_reduced() -> None:", f"    program = Program(rows, {found.program.target})",
                      f"    {judge}({of})", ""])


def _line(k: int, row: Row) -> str:
    if row.value is not None:
        return f"    Row(None, (), {{}}, dtypes.{_dtype(row.dtype)}, {_array(row.value)}),  # {k}"
    module, name = name_of(row.op) if row.op is not None else ("", "")
    params = ", ".join(f"{key!r}: {_literal(p)}" for key, p in row.params.items())
    note = "" if module else f": {row.op}, of which no module has a name"
    return f"    Row({name or None}, {row.inputs!r}, {{{params}}}, dtypes.{_dtype(row.dtype)}),  # {k}{note}"


def _dtype(dtype: DType) -> str:
    return "bool_" if dtype.kind == "b" else dtype.name


def _array(value: np.ndarray) -> str:
    if value.size <= MOST_NUMBERS:
        numbers = ", ".join(_number(x) for x in value.ravel().tolist())
        return f'np.array([{numbers}], "{value.dtype}").reshape({value.shape})'
    packed = base64.b64encode(compress(np.ascontiguousarray(value).tobytes(), 9)).decode()
    return f'np.frombuffer(decompress(b64decode("{packed}")), "{value.dtype}").reshape({value.shape})'


def _number(x: Any) -> str:
    return repr(x) if np.isfinite(x) else f"np.{'nan' if x != x else 'inf' if x > 0 else 'inf * -1'}"


def _literal(param: Any) -> str:
    if isinstance(param, DType):
        return f"dtypes.{_dtype(param)}"
    if isinstance(param, tuple):
        return f"({', '.join(map(_literal, param))}{',' if len(param) == 1 else ''})"
    return _number(param) if isinstance(param, float) else repr(param)
