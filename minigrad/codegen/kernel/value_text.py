"""Printing of Values: the part of the texts that kernels and loop IR share. `value_parse.py` reads it back.

    value   := value op value                     op: < <= == != | ^ & << >> + - * /, binding as in Python
             | "-" value | "~" value              neg, not
             | literal                            2.0 is f32, 2 is i32, true and false are b8; else with a type: 2.0:f64
             | name                               a definition or a scalar argument
             | buffer "[" index, ... "]"          a load, of the buffer's type
             | "$" number                         a value defined on a line above
             | unary "(" value ")"                abs sqrt exp log sin cos tanh sigmoid erf floor ceil trunc round
             | binary "(" value "," value ")"     pow max min rem idiv irem
             | "where(" value, value, value ")" | "fma(" value, value, value ")"
             | type "(" value ")"                 a cast: f32(x);    "bitcast(" value "," type ")"
             | "index(" index ["," type] ")"      an index expression as a number, i32 unless stated
             | "(" value "else" value "if" index ">= 0" ["and" ...] ")"          a guard
             | monoid "(" var "<" extent, ... ":" value ")"                      a whole reduction (kernels only)
             | "across(" monoid "," value ")"                                    over vector lanes (loop IR only)
    index   := integer arithmetic over index variables: + - * // % (floor), "min(" a, b ")", "max(" a, b ")"
             | "dim(" index ")"                   a sum that is treated as one factor
             | "{" value "in" lo ".." hi "}"      a loaded value used as an index
    line    := "$" number ["for" var "<" extent, ...] "=" value

Values are DAGs. One that is used more than once and is not small, or is deep, is named on a line of its own before the
first statement that uses it, so that the text is linear in the number of Values and never deeply nested. `for` on such
a line declares variables of the reductions that it will be used in.
"""
from __future__ import annotations

from collections.abc import Iterable

from minigrad.codegen.kernel.value_walk import below
from minigrad.dtype import DType, bool_, float32, int32
from minigrad.expr import Atom, Index, Var, to_text, variables
from minigrad.value import Value, ValueIndex, indices_of, values_inside

INFIX = {
    "lt": ("<", 1), "le": ("<=", 1), "eq": ("==", 1), "ne": ("!=", 1), "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4),
    "shl": ("<<", 5), "shr": (">>", 5), "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7),
}
PREFIX = {"neg": "-", "not": "~"}
UNARY_LEVEL, ATOM_LEVEL = 8, 9
SHARED_SIZE = 6  # a value of fewer nodes is printed again rather than named
DEEPEST = 24     # nesting at which a value is named although it is used once
_DEFAULT = {float32, int32, bool_}
_NONE: frozenset[Var] = frozenset()


class Printer:
    """Text of values and indices, statement by statement. `lines` returns the `$` definitions that a value needs."""

    def __init__(self, roots: Iterable[Value]):
        self.uses: dict[Value, int] = {}
        self.size: dict[Value, int] = {}
        self.text: dict[Value, tuple[str, int]] = {}      # text and the level it binds at
        self.depth: dict[Value, int] = {}
        self.needs: dict[Value, frozenset[Var]] = {}      # variables of enclosing reductions, where there are any
        self.bound: frozenset[Var] = _NONE
        self.indices: dict[Index, str] = {}
        self.named = 0
        self._count(roots)

    def _count(self, roots: Iterable[Value]) -> None:
        uses, size = self.uses, self.size
        for root in roots:
            uses[root] = uses.get(root, 0) + 1
            for v in below(root, size):
                total = 1
                for a in v.operands:
                    uses[a] = uses.get(a, 0) + 1
                    total += size[a]
                size[v] = min(total, SHARED_SIZE)
                if v.op == "reduce":
                    self.bound = self.bound.union(v.over)

    def value(self, root: Value) -> tuple[list[str], str]:
        """(definition lines to print first, the text of `root`)."""
        lines: list[str] = []
        for v in below(root, self.text):
            text, level = self._one(v)
            depth = 1 + max([self.depth[a] for a in v.operands], default=0)
            if self.bound:
                self.needs[v] = self._needed(v)
            if (self.uses[v] > 1 and self.size[v] >= SHARED_SIZE) or (depth >= DEEPEST and v is not root):
                over = sorted(self.needs[v], key=lambda x: x.name) if self.bound else ()
                domain = " for " + ", ".join([f"{x.name}<{self.index(x.hi + 1)}" for x in over]) if over else ""
                lines.append(f"${self.named}{domain} = {text}")
                text, level, depth = f"${self.named}", ATOM_LEVEL, 1
                self.named += 1
            self.text[v], self.depth[v] = (text, level), depth
        return lines, self.text[root][0]

    def forget(self, keep: int) -> None:
        """Drops the texts made since there were `keep` of them: their `$` names are out of scope."""
        while len(self.text) > keep:
            self.text.popitem()

    def _needed(self, v: Value) -> frozenset[Var]:
        found = _NONE
        for a in v.operands:
            found = found | self.needs[a] if self.needs[a] else found
        for e in indices_of(v):
            if not isinstance(e, int):
                found = found | (variables(e) & self.bound)
        return found - frozenset(v.over) if v.op == "reduce" else found

    def _at(self, v: Value, least: int) -> str:
        text, level = self.text[v]
        return text if level >= least else f"({text})"

    def _one(self, v: Value) -> tuple[str, int]:
        op, args = v.op, v.args
        if op in INFIX:
            sign, level = INFIX[op]
            left = self._at(args[0], level + (level == 1))
            return f"{left} {sign} {self._at(args[1], level + 1)}", level
        if op in PREFIX:
            if args[0].op == "const":
                return f"{op}({self.text[args[0]][0]})", ATOM_LEVEL
            return PREFIX[op] + self._at(args[0], UNARY_LEVEL), UNARY_LEVEL
        if op == "const":
            return literal(v.number, v.dtype), ATOM_LEVEL
        if op == "local":
            return v.name, ATOM_LEVEL
        if op == "load":
            return f"{v.buffer}[{', '.join(map(self.index, v.indices))}]", ATOM_LEVEL
        if op == "index":
            suffix = "" if v.dtype is int32 else f", {v.dtype.short}"
            return f"index({self.index(v.index)}{suffix})", ATOM_LEVEL
        inside = [self._at(a, 2 if op in ("max", "min") else 0) for a in args]
        if op == "guard":
            return f"({inside[0]} else {inside[1]} if {self.conditions(v.conditions)})", ATOM_LEVEL
        if op == "reduce":
            domain = ", ".join([f"{x.name}<{self.index(x.hi + 1)}" for x in v.over])
            return f"{v.monoid}({domain}: {inside[0]})", ATOM_LEVEL
        if op == "across":
            return f"across({v.monoid}, {inside[0]})", ATOM_LEVEL
        if op == "cast":
            return f"{v.dtype.short}({inside[0]})", ATOM_LEVEL
        if op == "bitcast":
            return f"bitcast({inside[0]}, {v.dtype.short})", ATOM_LEVEL
        return f"{op}({', '.join(inside)})", ATOM_LEVEL

    def conditions(self, conditions: tuple[Index, ...]) -> str:
        return " and ".join([f"{self.index(c)} >= 0" for c in conditions])

    def index(self, e: Index) -> str:
        """The text of an index expression; values inside it must have been printed before (see `indices`)."""
        found = self.indices.get(e)
        if found is None:
            found = to_text(e, self._show)
            if not values_inside((e,)):
                self.indices[e] = found
        return found

    def prepare(self, indices: Iterable[Index]) -> list[str]:
        """Definition lines for the values inside index expressions of a statement."""
        return [line for value in values_inside(indices) for line in self.value(value)[0]]

    def _show(self, atom: Atom) -> str | None:
        if not isinstance(atom, ValueIndex):
            return None
        return f"{{{self.text[atom.value][0]} in {atom.lo}..{atom.hi}}}"


def literal(value: int | float | bool, dtype: DType) -> str:
    """A constant; its type is left out where the literal's form says it."""
    if dtype is bool_:
        return "true" if value else "false"
    text = repr(value)
    return text if dtype in _DEFAULT else f"{text}:{dtype.short}"
