"""Sub-groups: the work-items of one join what each has stored in local memory, without barriers among them.

    total[0] = part[0] combined with part[1], ..., part[width - 1]

As of matrix units, the meaning is one work-item's own: it reads what the others stored before a barrier. The text in
OpenCL C has each read one element, and lets the device join them (cl_khr_subgroups): in an order of its own, the same
each time. All work-items of a sub-group come to the call together, with the same part. Where a driver forms sub-groups
otherwise than planned, not of `width` neighbours, the loop runs. max and min of the language may lose a NaN; ours do
not.
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.dtype import DType, float32, float64, int32, int64, uint32, uint64
from minigrad.target import SUB_GROUPS, Target

WIDTHS = (4, 8, 16, 32, 64, 128)
_TYPES = {float32: "float", float64: "double", int32: "int", int64: "long", uint32: "uint", uint64: "ulong"}
_JOINED = {"sum": ("sub_group_reduce_add(x)", "total + y", "total[0] + part[x]"),
           "max": ("sub_group_reduce_max(x)", "y > total || y != y ? y : total", "max(total[0], part[x])"),
           "min": ("sub_group_reduce_min(x)", "y < total || y != y ? y : total", "min(total[0], part[x])")}


def sub_group_width(target: Target) -> int:
    """The number of work-items that join at once; 0 where plans do without."""
    return target.sub_group if SUB_GROUPS in target.features and target.sub_group in WIDTHS else 0


def sub_group_name(monoid: str, dtype: DType, width: int) -> str | None:
    """The name of the microkernel for a reduction, None where there is none."""
    return f"sub_{monoid}_{dtype.short}_{width}" if monoid in _JOINED and dtype in _TYPES else None


def width_of(name: str) -> int:
    """The number of work-items that such a microkernel joins; 0 for another name."""
    return int(name.rpartition("_")[2]) if sub_group_microkernel(name) is not None else 0


@lru_cache(maxsize=256)
def sub_group_microkernel(name: str) -> Microkernel | None:
    """The microkernel of such a name, as in 'sub_sum_f32_32'."""
    words = name.split("_")
    dtype = next((t for t in _TYPES if len(words) == 4 and t.short == words[2]), None)
    if dtype is None or words[0] != "sub" or words[1] not in _JOINED or words[3] not in map(str, WIDTHS):
        return None
    monoid, width = words[1], int(words[3])
    meaning = "\n".join([
        f"func {name}(in part: {dtype.short}[{width}], out total: {dtype.short}[1])",
        "  total[0] = part[0]",
        f"  for x in 1..{width} serial:",
        f"    total[0] = {_JOINED[monoid][2]}", ""])
    return Microkernel(name, meaning, frozenset({SUB_GROUPS}), _text(name, monoid, dtype, width), "opencl")


def _text(name: str, monoid: str, dtype: DType, width: int) -> str:
    kind, (joined, combined, _) = _TYPES[dtype], _JOINED[monoid]
    if monoid != "sum" and dtype.is_float:
        joined = f"sub_group_any(x != x) ? ({kind})NAN : {joined}"
    return "\n".join([
        "#ifndef __opencl_c_subgroups",
        "#pragma OPENCL EXTENSION cl_khr_subgroups : enable",
        "#endif",
        f"void {name}(__local const {kind} *part, {kind} *sum) {{",
        f"    if (get_sub_group_size() == {width} && "
        f"sub_group_all(get_local_id(0) / {width} == get_sub_group_id())) {{",
        f"        const {kind} x = part[get_sub_group_local_id()];",
        f"        *sum = {joined};",
        "        return;",
        "    }",
        f"    {kind} total = part[0];",
        f"    for (int i = 1; i < {width}; ++i) {{",
        f"        const {kind} y = part[i];",
        f"        total = total != total ? total : {combined};" if monoid != "sum" else f"        total = {combined};",
        "    }",
        "    *sum = total;",
        "}"])
