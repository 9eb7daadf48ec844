"""Facts of OpenCL C: names of types, literals, and what a function needs of a device."""
from __future__ import annotations

import struct
from collections.abc import Iterable

from minigrad.codegen.ir.nodes import Alloc, Function
from minigrad.codegen.ir.walk import accesses, indices, statements, values
from minigrad.codegen.microkernels.sub_group import width_of
from minigrad.codegen.render.halves import round_to_float32
from minigrad.dtype import DType, bool_, float32, float64
from minigrad.expr import Index, bounds
from minigrad.target import SIZED_SUB_GROUPS, Target
from minigrad.value import Value, indices_of, walk

TYPES = {"bool": "int", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
         "uint16": "ushort", "uint32": "uint", "uint64": "ulong", "float16": "float", "bfloat16": "ushort",
         "float32": "float", "float64": "double"}
MEMORY_TYPES = TYPES | {"bool": "uchar", "float16": "half"}
# Names of the language that a buffer may not shadow because texts use them.
RESERVED = frozenset("""
    abs all any as bool break case char const continue convert default do double else enum extern false fabs floor
    ceil trunc rint fma float for global goto half if in inline int kernel local long max min private register restrict
    return select short signed sizeof sqrt static struct switch true typedef uchar uint ulong union unsigned ushort
    void volatile while extent fetch of_four_bits""".split())

HELPERS = {
    "of_four_bits": """#ifdef __AVX512F__
#define of_four_bits(table, x, first) __builtin_ia32_permvarsf512(table, __builtin_astype(x, int16))
#else
#define of_four_bits(table, x, first) (convert_float16(as_int16((x) & 15)) + (float16)(first))
#endif""",
    "fetch": """#if defined(__x86_64__) || defined(__aarch64__)
#define fetch(p, level) __builtin_prefetch(p, 0, level)
#else
#define fetch(p, level)
#endif""",
}
"""Macros that a text may use, for what not all compilers know: a look-up of table[i] = first + i by the low four bits
of each lane, one permutation of a register; a prefetch."""


def all_values(function: Function) -> list[Value]:
    return list(walk(*(v for s in statements(function) for v in values(s))))


def uses_double(function: Function) -> bool:
    dtypes = [b.dtype for b in function.buffers] + [s.dtype for s in function.scalars]
    return float64 in dtypes or any(v.dtype is float64 for v in all_values(function))


def prefix_of(group: int, widest: int, called: Iterable[str], target: Target) -> str:
    """The attributes that stand before a kernel, '' for none: the work-items of a group, where it asks for so many; the
    width of its vectors, so that a driver need not try to make vectors of work-items (Intel's); and how large the
    sub-groups are of which it calls microkernels, where drivers ask."""
    found = [f"reqd_work_group_size({group}, 1, 1)"] if group else []
    found += [f"vec_type_hint(float{widest})"] if widest > 1 else []
    width = max(map(width_of, called), default=0) if SIZED_SUB_GROUPS in target.features else 0
    found += [f"intel_reqd_sub_group_size({width})"] if width else []
    return f"__attribute__(({', '.join(found)}))\n" if found else ""


def reach(e: Index) -> int:
    """A bound on the magnitude of any partial sum in the evaluation of `e`."""
    if isinstance(e, int):
        return abs(e)
    total = abs(e.const)
    for monomial, coefficient in e.terms:
        size = abs(coefficient)
        for a in monomial:
            size *= max(1, *map(abs, bounds(a)), *map(reach, a.children()))
        total += size
    return total


def fits_int(function: Function) -> bool:
    """True where all index arithmetic of a function stays within 31 bits."""
    limit = 2**30
    starts = {b.start for b in function.buffers}
    found: list[Index] = [*(b.size for b in function.buffers), *(d for d in function.dims if d not in starts)]
    found += [offset for _, offset, _ in accesses(function)]
    found += [e for s in statements(function) for e in indices(s)]
    found += [e for v in all_values(function) for e in indices_of(v)]
    for s in statements(function):
        if isinstance(s, Alloc):
            found.append(s.size * 64)
    return all(reach(e) < limit for e in found)


def argument_type(dtype: DType) -> str:
    """The type of a scalar argument: a half comes as a float."""
    return "uchar" if dtype is bool_ else TYPES[dtype.compute.name]


def float_literal(value: float, dtype: DType) -> str:
    """An exact literal: hexadecimal, or the language's names for what has none."""
    if dtype.bits == 16:
        value, dtype = struct.unpack("<e", struct.pack("<e", value))[0], float32
    if dtype is float32:
        value = round_to_float32(value)
    if value != value:
        return "NAN" if dtype is float32 else "(double)NAN"
    if abs(value) == float("inf"):
        name = "INFINITY" if dtype is float32 else "(double)INFINITY"
        return name if value > 0 else f"(-{name})"
    text = value.hex() + ("f" if dtype is float32 else "")
    return text if not text.startswith("-") else f"({text})"


def integer_literal(value: int, dtype: DType, name: str) -> str:
    """`name` is the C type; negative ones come in parentheses. (`LL` would be 128 bits.)"""
    if dtype.bits < 32:
        return f"({name}){value}"
    suffix = ("U" if dtype.kind == "u" else "") + ("L" if name in ("long", "ulong") else "")
    if value == dtype.min and dtype.kind == "i":
        return f"({int(value) + 1}{suffix} - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"
