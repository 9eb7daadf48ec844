"""Products of bfloat16 matrices, where an instruction multiplies these. Words of panels hold two neighbours along K.

AMX and `vdpbf16ps` take subnormals for zero, in operands, in products and in sums. bfloat16 has the exponents of
float32: operands times 2^12, and with them whatever of their products float32 can represent, are away from subnormals.
Where something overflows for its sake, or is no finite number, neither is the sum: it is computed again from the
operands as they are (`build_bfloat16.py`). Other sums, divided by the scale twice, are as exact as in float32 or
better. AMX rounds once per 32 products; `vdpbf16ps` is two fused multiply-adds, the upper element's first, rounded to
nearest whatever the mode: so Intel's manual has it, and a Zen 4 agreed in a million random words.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.cost.machine import machine
from minigrad.codegen.microkernels.choose import in_matrix_registers
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import step_cycles
from minigrad.codegen.strategies.narrow import filled
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.dtype import bfloat16, float32, uint16, uint32
from minigrad.errors import present
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value, binary, bitcast, cast, const, guard, substitute

KIND, GROUP = "bf16x2", 2
SCALE = 2.0 ** 12
UPPER = 0xFFFF0000


def takes_bfloat16(c: Contraction, target: Target) -> bool:
    """Whether both operands are bfloat16, and the target multiplies them."""
    return (target.language == "llvm" and machine(target).declared.dots
            and any(isinstance(v.hi, int) for v in c.k) and c.total is float32
            and unwidened(c.a) is not None and unwidened(c.b) is not None)


def unwidened(value: Value) -> Value | None:
    """What a float32 value was before it was widened from bfloat16; None if it is no such value."""
    if value.op == "cast" and value.dtype is float32 and value.args[0].dtype is bfloat16:
        return value.args[0]
    if value.op == "guard" and value.args[1].op == "const" and value.args[1].attr == 0:
        inside = unwidened(value.args[0])
        return None if inside is None else guard(inside, const(0, bfloat16), value.attr)
    return None


def step_multiple(words: str, target: Target) -> int:
    """What steps of a block of K are best a multiple of."""
    return machine(target).declared.matrix_side if words == KIND and in_matrix_registers(KIND, target) else 1


def whole_steps(steps: int, words: str, target: Target) -> int:
    """Steps of a block of K, with those that fill up a matrix register."""
    multiple = step_multiple(words, target)
    return -(-steps // multiple) * multiple


def call_cycles(words: str, target: Target) -> float:
    """Cycles of a tile beside those of any."""
    return machine(target).costs.matrix_call if words == KIND and in_matrix_registers(KIND, target) else 0.0


def dot_cycles(rows: int, vectors: int, target: Target) -> float:
    """Cycles of a tile of `vdpbf16ps` per step of the sum."""
    facts = machine(target)
    return step_cycles(rows, vectors, facts) * facts.costs.dot_step


def in_pairs(c: Contraction) -> Contraction:
    """The contraction over words: a variable of K counts pairs of what it counted before."""
    k = min((v for v in reversed(c.k) if isinstance(v.hi, int)), key=lambda v: filled(v, GROUP) / extent(v))
    words = Var(k.name, 0, filled(k, GROUP) // GROUP - 1)
    a, b = (_pair(unwidened(x), k, words) for x in (c.a, c.b))
    return replace(c, a=a, b=b, k=tuple(words if v is k else v for v in c.k))


def _pair(value: Value | None, k: Var, words: Var) -> Value:
    value = present(value, "[build] expected an operand of products of pairs")
    zero, places = const(0, value.dtype), [words * GROUP + t for t in range(GROUP)]
    return word_of(*(guard(substitute(value, {k: place}), zero, (k.hi - place,)) for place in places))


def word_of(first: Value, second: Value) -> Value:
    """The word of two bfloat16 values times the scale, uint32: the first one in the low half."""
    upper, half = const(UPPER, uint32), const(16, uint32)
    low, high = (cast(bitcast(x, uint16), uint32) for x in (first, second))
    raw = binary("or", low, binary("shl", high, half))
    low, high = (bitcast(binary("mul", bitcast(x, float32), const(SCALE, float32)), uint32)
                 for x in (binary("shl", raw, half), binary("and", raw, upper)))
    return binary("or", binary("shr", low, half), binary("and", high, upper))
