"""The spelling of types and values in LLVM IR, and what of it processors have."""
from __future__ import annotations

from functools import cache, lru_cache

from minigrad.codegen.render.refs import Ref
from minigrad.dtype import DType, bool_
from minigrad.target import Target

_TYPES = {"float32": "float", "float64": "double", "float16": "i16", "bfloat16": "i16"}


@cache
def scalar_type(dtype: DType) -> str:
    """The type in registers; in memory a bool is an i8."""
    return "i1" if dtype is bool_ else _TYPES.get(dtype.name) or f"i{dtype.bits}"


@cache
def memory_type(dtype: DType) -> str:
    return "i8" if dtype is bool_ else scalar_type(dtype)


def vector(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def mangled(kind: str, lanes: int) -> str:
    """A type as it is spelled in the name of an intrinsic."""
    short = {"float": "f32", "double": "f64"}.get(kind, kind)
    return short if lanes == 1 else f"v{lanes}{short}"


@cache
def register_type(dtype: DType, lanes: int) -> str:
    return vector(scalar_type(dtype), lanes)


@lru_cache(maxsize=1 << 12)
def lane_numbers(picks: tuple[int, ...]) -> str:
    """The operand of a shuffle; negative: whatever."""
    return f"<{len(picks)} x i32> <{', '.join(['i32 poison' if i < 0 else f'i32 {i}' for i in picks])}>"


def type_of(x: Ref) -> str:
    return register_type(x.dtype, x.lanes)


def typed(x: Ref) -> str:
    return f"{register_type(x.dtype, x.lanes)} {x.text}"


def stores_masked(dtype: DType, target: Target) -> bool:
    """True where the processor stores some lanes of a vector of such elements and leaves the memory of others alone."""
    return "avx512bw" in target.features or ("avx" in target.features and dtype.itemsize in (4, 8))
