"""The functions of an exported program as LLVM IR: a Layout's steps one after the other, each kernel called directly.

    void NAME_reset(ptr program)            the state as it was when it was exported
    void NAME_prepare(ptr program)          what is computed of constants once, and NAME_reset
    i32  NAME_run(ptr program, inputs, symbolic dims, outputs)

`program` points to the addresses of the weights and of the program's memory. `NAME_run` returns 0, or k where symbolic
dim k (from 1 on) is out of its bounds; then it has done nothing.
"""
from __future__ import annotations

from collections.abc import Iterable

from minigrad.aot.layout import Call, Copy, Drawn, Layout, Place, Step, Word
from minigrad.errors import InternalError
from minigrad.expr import Index
from minigrad.expr.core import Atom, Expr, FloorDiv, Max, Min, Mod, Opaque, Var

_PROGRAM = "ptr nocapture readonly %program"


def driver_text(name: str, layout: Layout) -> str:
    """The IR text of the functions, which call program k as `program.k`."""
    call = layout.call
    pointers = [f"ptr %in.{n}" for n in call.inputs]
    numbers = [f"i64 %dim.{n}" for n in call.variables]
    outputs = [f"ptr %out.{n}" for n in call.outputs]
    once = _Function(layout)
    once.steps([*layout.once, *layout.reset])
    once.set_counter(str(call.counter))
    again = _Function(layout)
    again.steps(layout.reset)
    again.set_counter(str(call.counter))
    run = _Function(layout)
    for k, v in enumerate(call.variables.values(), 1):
        run.check(k, v)
    run.steps(layout.run)
    if call.drawn:
        run.set_counter(run.define(f"add i64 {run.counter()}, {call.drawn}"))
    declared = [f"declare void @program.{k}(ptr, i64, i64, ptr)" for k in range(len(layout.programs))]
    return "\n".join([
        *declared, "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        *once.text(f"void @{name}_prepare({_PROGRAM})", "ret void"),
        *again.text(f"void @{name}_reset({_PROGRAM})", "ret void"),
        *run.text(f"i32 @{name}_run({', '.join([_PROGRAM, *pointers, *numbers, *outputs])})", "ret i32 0"), ""])


class _Function:
    """The body of one function as lines of IR."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._lines: list[str] = []
        self._count = 0
        self._known: dict[Index, str] = {}
        self._words = max([len(step.words) for step in [*layout.once, *layout.run] if isinstance(step, Call)],
                          default=1)

    def text(self, head: str, end: str) -> list[str]:
        """The whole function."""
        begin = ["entry:", f"  %words = alloca [{max(self._words, 1)} x i64], align 64",
                 "  %weights = load ptr, ptr %program, align 8", "  %second = getelementptr i8, ptr %program, i64 8",
                 "  %memory = load ptr, ptr %second, align 8",
                 f"  %scratch = getelementptr i8, ptr %memory, i64 {self._layout.scratch}"]
        return [f"define {head} {{", *begin, *self._lines, f"  {end}", "}"]

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Copy):
                self._copy(step)
            else:
                self._call(step)

    def check(self, number: int, v: Var) -> None:
        """Returns `number` where a symbolic dim is out of its bounds."""
        low = self.define(f"icmp slt i64 %dim.{v.name}, {self.index(v.lo)}")
        high = self.define(f"icmp sgt i64 %dim.{v.name}, {self.index(v.hi)}")
        self._unless(self.define(f"or i1 {low}, {high}"), [f"  ret i32 {number}"])

    def counter(self) -> str:
        """The counter of random numbers."""
        return self.define("load i64, ptr %memory, align 8")

    def set_counter(self, value: str) -> None:
        self._lines.append(f"  store i64 {value}, ptr %memory, align 8")

    def define(self, what: str) -> str:
        """A name for the value of an instruction."""
        self._count += 1
        self._lines.append(f"  %t{self._count} = {what}")
        return f"%t{self._count}"

    def index(self, e: Index) -> str:
        """An i64 with the value of an index over the symbolic dims."""
        if isinstance(e, int):
            return str(e)
        if e not in self._known:
            self._known[e] = self._atom(e)
        return self._known[e]

    # Steps

    def _call(self, step: Call) -> None:
        extent = self.index(step.extent)
        for k, word in enumerate(step.words):
            at = self.define(f"getelementptr i64, ptr %words, i64 {k}")
            self._lines.append(f"  store {self._word(word)}, ptr {at}, align 8")
        line = f"  call void @program.{step.number}(ptr %words, i64 0, i64 {extent}, ptr %scratch)"
        if isinstance(step.extent, int):
            self._lines.append(line)
        else:
            self._unless(self.define(f"icmp sle i64 {extent}, 0"), None, [line])

    def _copy(self, step: Copy) -> None:
        target, source = self._pointer(step.target), self._pointer(step.source)
        self._lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, "
                           f"i64 {self.index(step.nbytes)}, i1 false)")

    def _word(self, word: Word) -> str:
        if isinstance(word, Place):
            return f"ptr {self._pointer(word)}"
        if isinstance(word, Drawn):
            return f"i64 {self.define(f'add i64 {self.counter()}, {word.offset}')}"
        return f"i64 {self.index(word)}"

    def _pointer(self, place: Place) -> str:
        base = f"%{place.base}"
        return self.define(f"getelementptr i8, ptr {base}, i64 {place.offset}") if place.offset else base

    def _unless(self, condition: str, otherwise: list[str] | None, lines: Iterable[str] = ()) -> None:
        """`otherwise` where the condition holds, else `lines`; then what comes after, unless `otherwise` returns."""
        self._count += 1
        yes, no, end = (f"{word}{self._count}" for word in ("yes", "no", "end"))
        after = [] if otherwise else [f"  br label %{end}"]
        self._lines += [f"  br i1 {condition}, label %{yes}, label %{no}", f"{yes}:", *(otherwise or after), f"{no}:",
                        *lines, f"  br label %{end}", f"{end}:"]

    # Indices

    def _atom(self, e: Expr) -> str:
        if isinstance(e, Var):
            return f"%dim.{e.name}"
        if isinstance(e, Opaque):
            return self.index(e.inner)
        if isinstance(e, FloorDiv | Mod):
            return self._divided(self.index(e.a), self.index(e.b), isinstance(e, Mod))
        if isinstance(e, Min | Max):
            a, b = self.index(e.a), self.index(e.b)
            first = self.define(f"icmp {'slt' if isinstance(e, Min) else 'sgt'} i64 {a}, {b}")
            return self.define(f"select i1 {first}, i64 {a}, i64 {b}")
        if isinstance(e, Atom):
            raise InternalError(f"[export] expected an index of symbolic dims, got {e}")
        total = str(e.const)
        for monomial, coefficient in e.terms:
            term = str(coefficient)
            for atom in monomial:
                term = self.define(f"mul i64 {term}, {self.index(atom)}")
            total = self.define(f"add i64 {total}, {term}")
        return total

    def _divided(self, a: str, b: str, rest: bool) -> str:
        """a // b or a % b, rounded towards minus infinity."""
        quotient, left = self.define(f"sdiv i64 {a}, {b}"), self.define(f"srem i64 {a}, {b}")
        inexact = self.define(f"icmp ne i64 {left}, 0")
        differ = self.define(f"icmp slt i64 {self.define(f'xor i64 {left}, {b}')}, 0")
        down = self.define(f"and i1 {inexact}, {differ}")
        if rest:
            return self.define(f"select i1 {down}, i64 {self.define(f'add i64 {left}, {b}')}, i64 {left}")
        return self.define(f"select i1 {down}, i64 {self.define(f'sub i64 {quotient}, 1')}, i64 {quotient}")
