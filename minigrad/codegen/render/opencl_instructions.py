"""Values that OpenCL C has one expression for: sums of bytes' products, functions of four bits, bits of a float16."""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from minigrad.codegen.render.accesses import load
from minigrad.codegen.render.llvm_dot_products import signed_dot_of
from minigrad.codegen.render.llvm_tables import table_of
from minigrad.codegen.render.opencl_language import float_literal
from minigrad.codegen.render.refs import Memory, Ref
from minigrad.dtype import float16, float32, int32, uint16
from minigrad.target import BYTE_PRODUCTS
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter
    from minigrad.codegen.render.opencl_values import OpenclLanguage
    from minigrad.codegen.render.steps import Maker

EXACT = 1 << 23
"""Whole numbers below it, and those a little more, are float32 values."""


def instruction_for(language: OpenclLanguage, v: Value) -> tuple[tuple[Value, ...], Maker] | None:
    """See `Language.instruction_for`."""
    if is_bits_in_memory(language.out, v):
        return (), load_bits
    if v.op == "add" and v.dtype is int32 and language.out.width == 1:
        for found, before in ((signed_dot_of(v), ()), (signed_dot_of(v.args[1]), v.args[:1])):
            if found is not None and BYTE_PRODUCTS[found[1]] in language.out.target.features:
                return (*found[0], *before), partial(dot_bytes, language, found[1])
    table = numbers_in_a_row(language.out, v)
    if table is None:
        return None
    return (table[0],), lambda out, v, mask, args: of_four_bits(language, table[1], out.spread(args[0], 16))


def dot_bytes(language: OpenclLanguage, signed: tuple[bool, bool], out: Emitter, v: Value, mask: Ref | None,
              args: list[Ref]) -> Ref:
    """The sum of the products of the bytes of two words, signed or not, plus a third argument if there is one."""
    total, signs = "int" if any(signed) else "uint", "".join(["s" if s else "u" for s in signed])
    w, x, *before = args
    text = f"as_int(dot_4x8packed_{signs}_{total}(as_uint({w.text}), as_uint({x.text})))"
    dot = language.pure(text, int32, 1, (w, x))
    return language.operation("add", [*before, dot], int32) if before else dot


def of_four_bits(language: OpenclLanguage, numbers: tuple[float, ...], x: Ref) -> Ref:
    """numbers[x & 15] in each of sixteen lanes, by the helper `of_four_bits`."""
    language.helpers.add("of_four_bits")
    entries = language.pure(f"(float16)({', '.join(float_literal(e, float32) for e in numbers)})", float32, 16, ())
    text = f"of_four_bits({entries.text}, {x.text}, {float_literal(numbers[0], float32)})"
    return language.pure(text, float32, 16, (x, entries))


def numbers_in_a_row(out: Emitter, v: Value) -> tuple[Value, tuple[float, ...]] | None:
    """The result of `table_of`, inside loops over sixteen lanes, where its entries are whole numbers in a row: the
    helper can then do without a table."""
    found = table_of(v) if v.dtype is float32 and out.real_width == 16 and not out.target.is_gpu else None
    if found is None or any(e - found[1][0] != i for i, e in enumerate(found[1])):
        return None
    return found if found[1][0] == int(found[1][0]) and abs(found[1][0]) < EXACT else None


def load_bits(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    """The bits of a float16 in memory, read as they are."""
    name, (offset,) = v.args[0].buffer, v.args[0].indices
    memory = out.memory[name]
    pointer = f"((__global {'const ' if memory.place == 'in' else ''}ushort *){memory.text})"
    return load(out, Memory(name, uint16, memory.size, memory.place, pointer), out.copies.at(offset), mask)


def is_bits_in_memory(out: Emitter, v: Value) -> bool:
    """True where a value is the bits of a float16 that a parameter holds."""
    if v.op != "bitcast" or v.dtype is not uint16 or v.args[0].op != "load" or v.args[0].dtype is not float16:
        return False
    return out.memory[v.args[0].buffer].place in ("in", "out", "inout")
