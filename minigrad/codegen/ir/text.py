"""Loop IR as text: `print_function` and `parse_function` are inverse to each other. The grammar is in `nodes.py`."""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.ir.nodes import (
    Alloc,
    Barrier,
    BufferParam,
    Call,
    Function,
    If,
    Let,
    Loop,
    Prefetch,
    ScalarParam,
    Stmt,
    Store,
)
from minigrad.codegen.ir.walk import indices, statements, values
from minigrad.codegen.kernel.value_parse import Line, Lines, Scope
from minigrad.codegen.kernel.value_text import Printer
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.registry import find
from minigrad.expr import Index, Var, to_text
from minigrad.value import Value, values_inside

MODES = ("in", "out", "inout")
KINDS = ("serial", "parallel", "group", "item", "vector", "unroll")
SCOPES = ("register", "scratch", "local")


def print_function(function: Function) -> str:
    """The text of a function. Equal functions have equal texts."""
    printer = Printer([v for s in statements(function) for v in (*values(s), *values_inside(indices(s)))])
    params = [f"{b.mode} {b.name}: {b.dtype.short}[{to_text(b.size)}]" + ("" if b.start is None else f" from {b.start}")
              for b in function.buffers]
    params += [f"{s.name}: {s.dtype.short}" for s in function.scalars]
    params += [f"{d.name}: index in {to_text(d.lo)}..{to_text(d.hi)}" for d in function.dims]
    lines = [f"func {function.name}({', '.join(params)})"]
    _print_body(function.body, "  ", printer, lines)
    return "\n".join(lines) + "\n"


def _print_body(body: tuple[Stmt, ...], indent: str, printer: Printer, lines: list[str]) -> None:
    keep = len(printer.text)
    for s in body:
        lines.extend([indent + line for line in printer.prepare(indices(s))])
        if isinstance(s, Loop):
            start, stop = printer.index(s.start), printer.index(s.stop)
            exact = s.var.lo == s.start and s.var.hi == s.stop - 1
            limits = "" if exact else f"[{printer.index(s.var.lo)}..{printer.index(s.var.hi)}]"
            lines.append(f"{indent}for {s.var.name}{limits} in {start}..{stop} {s.kind}:")
            _print_body(s.body, indent + "  ", printer, lines)
        elif isinstance(s, If):
            lines.append(f"{indent}if {printer.conditions(s.conditions)}:")
            _print_body(s.then, indent + "  ", printer, lines)
            if s.otherwise:
                lines.append(f"{indent}else:")
                _print_body(s.otherwise, indent + "  ", printer, lines)
        elif isinstance(s, Alloc):
            lines.append(f"{indent}alloc {s.name}: {s.dtype.short}[{s.size}] {s.scope}")
        elif isinstance(s, Let | Store):
            above, text = printer.value(s.value)
            lines.extend([indent + line for line in above])
            lines.append(f"{indent}{_target(s, printer)} = {text}")
        elif isinstance(s, Call):
            lines += _print_call(s, indent, printer)
        elif isinstance(s, Prefetch):
            lines.append(f"{indent}prefetch{'_far' if s.far else ''} {s.buffer}[{printer.index(s.offset)}]")
        else:
            lines.append(f"{indent}barrier")
    printer.forget(keep)


def _print_call(s: Call, indent: str, printer: Printer) -> list[str]:
    lines, args = [], [f"{name}[{printer.index(offset)}]" for name, offset in s.buffers]
    for v in s.scalars:
        above, text = printer.value(v)
        lines += [indent + line for line in above]
        args.append(text)
    args += [printer.index(e) for e in s.dims]
    return [*lines, f"{indent}call {s.kernel.name}({', '.join(args)})"]


def _target(s: Let | Store, printer: Printer) -> str:
    if isinstance(s, Let):
        return f"let {s.name}"
    conditions = f" if {printer.conditions(s.conditions)}" if s.conditions else ""
    return f"{s.buffer}[{printer.index(s.offset)}]{conditions}"


def parse_function(text: str) -> Function:
    """Reads what `print_function` writes. Raises FormatError naming the line and what was expected there."""
    scope, lines = Scope(), Lines(text)
    line = lines.next(scope)
    line.expect("func")
    name = line.name()
    dims = line.declare_dims()
    buffers: list[BufferParam] = []
    scalars: list[ScalarParam] = []
    line.expect("(")
    while not line.accept(")"):
        if line.peek() in MODES and line.peek(1) != ":":
            mode, own = line.take(), line.name()
            line.expect(":")
            dtype = line.dtype()
            size = line.indices()[0]
            start = line.index() if line.accept("from") else None
            if not (start is None or isinstance(start, Var)):
                raise line.error("a dim")
            buffers.append(BufferParam(own, dtype, size, mode, start))
            scope.buffers[own] = dtype
        else:
            scalar = line.scalar()
            if scalar is not None:
                scalars.append(ScalarParam(*scalar))
        if line.peek() != ")":
            line.expect(",")
    line.end()
    body = _parse_body(lines, scope)
    lines.end(scope)
    return Function(name, tuple(buffers), tuple(scalars), dims, body)


def _parse_body(lines: Lines, outer: Scope) -> tuple[Stmt, ...]:
    scope, body = outer.inner(), list[Stmt]()
    for line in lines.block(scope):
        first = line.peek()
        if first.startswith("$"):
            line.definition()
        elif first == "for":
            body.append(_parse_loop(line, lines))
        elif first == "if":
            line.take()
            conditions = line.conditions()
            line.expect(":")
            line.end()
            then = _parse_body(lines, scope)
            otherwise = _parse_body(lines, scope) if lines.accept("else:", line) else ()
            body.append(If(conditions, then, otherwise))
        else:
            body.append(_parse_simple(line, scope))
            line.end()
    return tuple(body)


def _parse_loop(line: Line, lines: Lines) -> Loop:
    line.expect("for")
    name, limits = line.name(), None
    if line.accept("["):
        limits = line.range()
        line.expect("]")
    line.expect("in")
    start, stop = line.range()
    kind = line.one_of(KINDS)
    line.expect(":")
    line.end()
    var = Var(name, *(limits or (start, stop - 1)))
    inner = line.scope.inner()
    inner.variables[name] = var
    return Loop(var, start, stop, kind, _parse_body(lines, inner))


def _parse_simple(line: Line, scope: Scope) -> Stmt:
    if line.peek(1) == "[":
        name = line.buffer()
        offset = line.indices()
        if len(offset) != 1:
            raise line.error("one offset")
        conditions = line.conditions() if line.accept("if") else ()
        line.expect("=")
        return Store(name, offset[0], line.value(), conditions)
    if line.accept("barrier"):
        return Barrier()
    if line.accept("call"):
        return _parse_call(line)
    for word, far in (("prefetch", False), ("prefetch_far", True)):
        if line.accept(word):
            return Prefetch(line.buffer(), line.indices()[0], far)
    if line.accept("let"):
        name = line.name()
        line.expect("=")
        value = line.value()
        scope.locals_[name] = value.dtype
        return Let(name, value)
    line.expect("alloc")
    name = line.name()
    line.expect(":")
    dtype = line.dtype()
    line.expect("[")
    size = line.integer()
    line.expect("]")
    scope.buffers[name] = dtype
    return Alloc(name, dtype, size, line.one_of(SCOPES))


def _parse_call(line: Line) -> Call:
    kernel = find(line.peek())
    if kernel is None:
        raise line.error("a registered microkernel")
    line.take()
    meaning = meaning_of(kernel)
    buffers: list[tuple[str, Index]] = []
    scalars: list[Value] = []
    dims: list[Index] = []
    line.expect("(")
    for p in (*meaning.buffers, *meaning.scalars, *meaning.dims):
        if buffers:
            line.expect(",")
        if isinstance(p, BufferParam):
            name, offset = line.buffer(), line.indices()
            if len(offset) != 1:
                raise line.error("one offset")
            buffers.append((name, offset[0]))
        elif isinstance(p, ScalarParam):
            scalars.append(line.value())
        else:
            dims.append(line.index())
    line.expect(")")
    return Call(kernel, tuple(buffers), tuple(scalars), tuple(dims))


@lru_cache(maxsize=1024)
def meaning_of(kernel: Microkernel) -> Function:
    """The function that a microkernel computes. Raises FormatError for a meaning that does not parse."""
    return parse_function(kernel.meaning)
