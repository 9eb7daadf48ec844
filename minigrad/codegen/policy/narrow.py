"""Contractions over words (`plan/words.py`): which are, and what they cost.

    sum over k of int32(a[m, k]) * int32(b[k, n])      a, b: int8, uint8 or int16; or uint32; or float32, of bfloat16

is one over words of 4 int8 or 2 int16 or bfloat16 along k, for microkernels of those kinds (microkernels/tile.py).
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.generate import FORMS
from minigrad.codegen.microkernels.tile import KINDS
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.codegen.plan.microkernel_choice import in_matrix_registers
from minigrad.codegen.plan.words import PAIRS, TAKES, is_biased, narrowed, word_of
from minigrad.dtype import float32
from minigrad.errors import present
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value, const, guard, substitute


def narrow_kind(c: Contraction, target: Target) -> str:
    """The kind of word that the operands fit and the target has instructions for; '' if there is none."""
    a, b = narrowed(c.a), narrowed(c.b)
    if target.language != "llvm" or a is None or b is None or not any(isinstance(v.hi, int) for v in c.k):
        return ""
    for kind, (left, right) in TAKES.items():
        known = machine(target).declared.bfloat16_products and c.total is float32 if kind == PAIRS else any(
            kind in f.kinds and f.requires and f.requires <= target.features
            and f.vector_bytes == target.vector_bytes for f in FORMS)
        if known and a.dtype in left and b.dtype in right:
            return kind
    return ""


def bias_rows(c: Contraction, kind: str) -> int:
    """1 where 128 was added to the bytes of words of a: a row of 128s beside them sums up what is to be subtracted."""
    return int(kind == "u8x4" and c.a.op == "xor")


def grouped(c: Contraction, kind: str) -> tuple[Var, Var]:
    """The variable of the sum whose neighbours make words, and it with as many steps as there are elements of these."""
    group = KINDS[kind][2]
    k = min((v for v in reversed(c.k) if isinstance(v.hi, int)), key=lambda v: -(-extent(v) // group) / extent(v))
    whole = -(-extent(k) // group) * group
    return k, k if extent(k) == whole else Var(k.name, 0, whole - 1)


def filled_up(c: Contraction, kind: str) -> Contraction:
    """The contraction with a sum of whole words, operands being 0 beyond the end."""
    old, new = grouped(c, kind)
    a, b = (guard(substitute(x, {old: new}), const(0, x.dtype), (old.hi - new,)) for x in (c.a, c.b))
    return replace(c, a=a, b=b, k=tuple([new if v is old else v for v in c.k]))


def in_words(c: Contraction, kind: str) -> Contraction:
    """The contraction over words of `kind`: a variable of k counts groups of what it counted before.

        k<64: a[m, k]    ->    k<16: a[m, 4*k] | a[m, 4*k + 1] << 8 | a[m, 4*k + 2] << 16 | a[m, 4*k + 3] << 24
    """
    group, c = KINDS[kind][2], filled_up(c, kind)
    k, _ = grouped(c, kind)
    words = Var(k.name, 0, extent(k) // group - 1)

    def of(value: Value, biased: bool) -> Value:
        value = present(narrowed(value), "[plan] expected an operand of products of words")
        return word_of([substitute(value, {k: words * group + t}) for t in range(group)], kind, biased)

    return replace(c, a=of(c.a, is_biased(kind, c.a)), b=of(c.b, False),
                   k=tuple([words if v is k else v for v in c.k]))


# ---- costs of words of bfloat16 ----

def step_multiple(words: str, target: Target) -> int:
    """The number that steps of a block of K are best a multiple of."""
    return machine(target).declared.matrix_side if words == PAIRS and in_matrix_registers(PAIRS, target) else 1


def whole_steps(steps: int, words: str, target: Target) -> int:
    """Steps of a block of K, with those that fill up a matrix register."""
    multiple = step_multiple(words, target)
    return -(-steps // multiple) * multiple


def call_cycles(words: str, target: Target) -> float:
    """Cycles of a tile beside those of any."""
    return machine(target).costs.matrix_call if words == PAIRS and in_matrix_registers(PAIRS, target) else 0.0
