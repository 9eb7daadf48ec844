"""Kernels as text: `print_kernel` and `parse_kernel` are inverse to each other.

The grammar is in `nodes.py`, that of values in `value_text.py`. The text is a kernel's identity: its hash is the key
of caches, so equal kernels print alike and different ones differently.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Param, Scalar, Steps, Store, nests_of
from minigrad.codegen.kernel.value_parse import Line, Lines, Scope
from minigrad.codegen.kernel.value_text import Printer
from minigrad.codegen.kernel.walk import Statement, values_of
from minigrad.errors import InternalError
from minigrad.expr import Var

MODES = ("in", "out", "inout")


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel. Equal kernels have equal texts."""
    nests = kernel.nests if kernel.block is None else [nest for nest, _ in nests_of(kernel.block.body)]
    printer = Printer(values_of(nests))
    params = [_param(p, printer) for p in kernel.params]
    params += [f"{s.name}: {s.dtype.short}" for s in kernel.scalars]
    params += [f"{d.name}: index in {printer.index(d.lo)}..{printer.index(d.hi)}" for d in kernel.dims]
    lines = [f"kernel {kernel.name}({', '.join(params)})"]
    if kernel.block is None:
        _print_body(kernel.nests, "  ", printer, lines)
    else:
        _print_block(kernel.block, printer, lines)
    return "\n".join(lines) + "\n"


def _print_block(block: Block, printer: Printer, lines: list[str]) -> None:
    domain = _domain(block.domain, printer)
    lines.append(f"  block {domain}:" if domain else "  block:")
    if block.local:
        lines.append(f"    local {', '.join([_param(replace(p, mode='in'), printer) for p in block.local])}")
    _print_body(block.body, "    ", printer, lines)


def _print_body(body: Iterable[Nest | Steps], indent: str, printer: Printer, lines: list[str]) -> None:
    for s in body:
        if isinstance(s, Steps):
            lines.append(f"{indent}steps {s.var.name} in {printer.index(s.start)}..{printer.index(s.stop)}:")
            _print_body(s.body, indent + "  ", printer, lines)
        else:
            _print_nest(s, indent, printer, lines)


def _domain(domain: Iterable[Var], printer: Printer) -> str:
    for v in domain:
        if v.lo != 0:
            raise InternalError(f"[print] a domain starts at 0, got {v.name} from {v.lo}")
    return ", ".join([f"{v.name}<{printer.index(v.hi + 1)}" for v in domain])


def _param(p: Param, printer: Printer) -> str:
    mode = "" if p.mode == "in" else p.mode + " "
    layout = "" if p.layout is None else f" order ({', '.join(map(str, p.layout))})"
    return f"{mode}{p.name}: {p.dtype.short}[{', '.join(map(printer.index, p.shape))}]{layout}"


def _print_nest(nest: Nest, indent: str, printer: Printer, lines: list[str]) -> None:
    lines.append(f"{indent}for {_domain(nest.domain, printer)}:")
    indent += "  "
    keep = len(printer.text)
    for s in nest.body:
        if isinstance(s, Nest):
            _print_nest(s, indent, printer, lines)
            continue
        target, above = "", list[str]()
        if isinstance(s, Store):
            above = printer.prepare(s.indices)
            target = f"{s.param}[{', '.join(map(printer.index, s.indices))}] {s.combine or ''}"
        else:
            target = f"{s.name} "
        more, text = printer.value(s.value)
        lines.extend([indent + line for line in (*above, *more)])
        lines.append(f"{indent}{target}= {text}")
    printer.forget(keep)


def parse_kernel(text: str) -> Kernel:
    """Reads what `print_kernel` writes. Raises FormatError naming the line and what was expected there."""
    scope, lines = Scope(), Lines(text)
    line = lines.next(scope)
    line.expect("kernel")
    name = line.name()
    dims = line.declare_dims()
    params: list[Param] = []
    scalars: list[Scalar] = []
    line.expect("(")
    while not line.accept(")"):
        mode = line.take() if line.peek() in MODES and line.peek(1) != ":" else "in"
        if line.peek(3) == "[":
            params.append(_parse_param(line, mode))
        else:
            scalar = line.scalar()
            if scalar is not None:
                scalars.append(Scalar(*scalar))
        if line.peek() != ")":
            line.expect(",")
    line.end()
    nests, block = list[Nest](), None
    if lines.at < len(lines.rows):
        for row in lines.block(scope):
            if row.peek() == "block" and not nests and block is None:
                block = _parse_block(row, lines, scope)
            elif block is not None:
                raise row.error("one block")
            else:
                nests.append(_parse_nest(row, lines, scope))
    lines.end(scope)
    return Kernel(name, tuple(params), tuple(scalars), dims, tuple(nests), block)


def _parse_block(line: Line, lines: Lines, outer: Scope) -> Block:
    scope = line.scope = outer.inner()
    line.expect("block")
    domain = () if line.peek() == ":" else line.domain()
    line.expect(":")
    line.end()
    local: list[Param] = []
    body: list[Nest | Steps] = []
    for row in lines.block(scope):
        if not body and not local and row.accept("local"):
            local.append(_parse_param(row, "inout"))
            while row.accept(","):
                local.append(_parse_param(row, "inout"))
            row.end()
        else:
            body.append(_parse_part(row, lines, scope))
    return Block(domain, tuple(local), tuple(body))


def _parse_part(line: Line, lines: Lines, outer: Scope) -> Nest | Steps:
    """A nest, or steps, of a block."""
    if line.peek() != "steps":
        return _parse_nest(line, lines, outer)
    scope = line.scope = outer.inner()
    line.expect("steps")
    name = line.name()
    line.expect("in")
    start, stop = line.range()
    line.expect(":")
    line.end()
    var = scope.variables[name] = Var(name, 0, stop - 1)
    return Steps(var, start, tuple([_parse_part(row, lines, scope) for row in lines.block(scope)]))


def _parse_param(line: Line, mode: str) -> Param:
    name = line.name()
    line.expect(":")
    dtype = line.dtype()
    shape, layout = line.indices(), None
    if line.accept("order"):
        line.expect("(")
        layout = [line.integer()]
        while line.accept(","):
            layout.append(line.integer())
        line.expect(")")
    line.scope.buffers[name] = dtype
    return Param(name, dtype, shape, mode, None if layout is None else tuple(layout))


def _parse_nest(line: Line, lines: Lines, outer: Scope) -> Nest:
    scope = outer.inner()
    line.scope = scope
    line.expect("for")
    domain: tuple[Var, ...] = () if line.peek() == ":" else line.domain()
    line.expect(":")
    line.end()
    body: list[Statement] = []
    for row in lines.block(scope):
        if row.peek().startswith("$"):
            row.definition()
        elif row.peek() == "for":
            body.append(_parse_nest(row, lines, scope))
        else:
            body.append(_parse_statement(row, scope))
            row.end()
    return Nest(domain, tuple(body))


def _parse_statement(line: Line, scope: Scope) -> Define | Store:
    if line.peek(1) == "[":
        name = line.buffer()
        indices = line.indices()
        combine = line.one_of(("set", *MONOIDS)) if line.peek() != "=" else None
        line.expect("=")
        return Store(name, indices, line.value(), combine)
    name = line.name()
    line.expect("=")
    value = line.value()
    scope.locals_[name] = value.dtype
    return Define(name, value)
