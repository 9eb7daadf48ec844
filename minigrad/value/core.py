"""Scalar expressions: the language of what one element is, shared by Kernel texts and loop IR.

A `Value` is immutable and interned, so equal expressions are one object and `is` compares them.

    value := const(c) | index(e) | load(buffer[e, ...]) | local(name)
           | unary(value) | binary(value, value) | where(cond, a, b) | fma(a, b, c)
           | cast(value) | bitcast(value)
           | guard(value else value, e >= 0, ...)         the first inside all conditions, the second outside
           | reduce(monoid, vars, value)                  Kernel only: a whole reduction over fresh index variables
           | across(monoid, value)                        loop IR only: over the lanes of the enclosing vector loop

Semantics, the same on every backend and in the interpreters:
  - integers wrap; `idiv`/`irem` truncate like C and must not be reached with divisor 0 or INT_MIN / -1, shifts must
    stay under the width: `ops/scalars.py` builds selects around them;
  - `rem` of floats is C's fmod: exact, of the sign of the first, NaN of an infinity or by 0;
  - `cast` float to int truncates, saturates and maps NaN to 0; int to narrower int wraps; anything to bool is `!= 0`;
    bfloat16 and float16 round to nearest even;
  - `max`/`min` give NaN if either operand is NaN; comparisons are IEEE (`ne` is true for NaN);
  - a guard's first operand may be evaluated with clamped indices outside its domain, its result is then dropped.
"""
from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from minigrad.dtype import DType, bool_
from minigrad.errors import InternalError, present
from minigrad.expr import Atom, Expr, Index, Var, bounds, variables
from minigrad.interned import Table, keep

if TYPE_CHECKING:
    from minigrad.value.indices import ValueIndex

UNARY = frozenset("neg abs sqrt exp log sin cos tanh sigmoid erf floor ceil trunc round not".split())
BINARY = frozenset("add sub mul div rem idiv irem pow max min lt le eq ne and or xor shl shr".split())
COMPARISONS = frozenset("lt le eq ne".split())
MAX_TEXT = 1000
"""Characters of operands that `summary` writes out."""
# The other operations: const, index, local (leaves); load, where, fma, cast, bitcast, guard, reduce, across.


class Value:
    """One node of a scalar expression. Beside `args` it has, by its kind (another kind's is an AttributeError):
    const: `number` (floats also keep the sign of zero); index: `index`; local: `name`; load: the name of a `buffer` and
    `indices`, one flat offset in loop IR; guard: `conditions`, each meaning >= 0; reduce: the name of a `monoid`, and
    variables `over`; across: `monoid`. `attr` is that as one object, for `rebuild`: a pair of two, None of nothing.
    `inner`: the values that its own indices are computed from, of gathers; `operands`: `args`, then those. `loads`: it,
    or something below, is a load; `gathers`: has some `inner`; `indexed`: has an index that is not a number; `reduces`:
    is or has a reduce. What begins with _ is what functions below found out about it, once somebody asked.
    """

    __slots__ = ("op", "dtype", "args", "attr", "number", "index", "name", "buffer", "indices", "conditions", "monoid",
                 "over", "inner", "operands", "loads", "gathers", "indexed", "reduces", "_below", "_free",
                 "_expressions", "_text", "__weakref__")
    op: str
    dtype: DType
    args: tuple[Value, ...]
    attr: object
    number: int | float | bool
    index: Index
    name: str
    buffer: str
    indices: tuple[Index, ...]
    conditions: tuple[Index, ...]
    monoid: str
    over: tuple[Var, ...]
    inner: tuple[Value, ...]
    operands: tuple[Value, ...]
    loads: bool
    gathers: bool
    indexed: bool
    reduces: bool
    _below: tuple[Value, ...] | None
    _free: frozenset[Var] | None
    _expressions: tuple[Expr, ...] | None
    _text: str | None

    def __repr__(self) -> str:
        return summary(self)


_interned: Table = {}
_NO_VARIABLES: frozenset[Var] = frozenset()


def make(op: str, dtype: DType, args: tuple[Value, ...] = (), attr: Any = None) -> Value:
    """The one constructor: returns the existing equal Value if there is one."""
    key = (op, dtype, args, repr(attr) if op == "const" else attr)
    known = _interned.get(key)
    found = None if known is None else known()
    if found is None:
        found = Value()
        found.op, found.dtype, found.args, found.attr = op, dtype, args, attr
        found._below = found._free = found._expressions = found._text = None
        found.inner, found.operands = (), args
        found.gathers = found.indexed = False
        found.loads, found.reduces = op == "load", op == "reduce"
        if attr is not None:
            _take_apart(found, attr)
        for a in found.operands:
            if a.loads:
                found.loads = True
            if a.indexed:
                found.indexed = True
                if a.gathers:
                    found.gathers = True
            if a.reduces:
                found.reduces = True
        keep(_interned, key, found)
    return found


def _take_apart(v: Value, attr: Any) -> None:
    """Sets what a Value of its kind has beside other Values, and notes what the indices among it are."""
    op = v.op
    if op == "const":
        v.number = attr
    elif op == "load":
        v.buffer, v.indices = attr
        _look_inside(v, v.indices)
    elif op == "guard":
        v.conditions = attr
        _look_inside(v, attr)
    elif op == "index":
        v.index = attr
        _look_inside(v, (attr,))
    elif op == "local":
        v.name = attr
    elif op == "reduce":
        v.monoid, v.over = attr
    elif op == "across":
        v.monoid = attr
    else:
        raise InternalError(f"[value] expected nothing beside the operands of {op}, got {attr!r}")


def _look_inside(v: Value, own: tuple[Index, ...]) -> None:
    """Notes what the indices are that a Value has itself."""
    indices = [e for e in own if type(e) is not int]
    if indices:
        v.indexed, v.inner = True, values_inside(indices)
        if v.inner:
            v.gathers, v.operands = True, v.args + v.inner


def const(value: int | float | bool, dtype: DType) -> Value:
    if dtype.is_float:
        value = float(value)
    elif dtype is bool_:
        value = bool(value)
    else:
        value = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "i" and value >> (dtype.bits - 1):
            value -= 1 << dtype.bits
    return make("const", dtype, (), value)


def index(e: Index, dtype: DType) -> Value:
    """An index expression as a value of an integer type."""
    return const(e, dtype) if isinstance(e, int) else make("index", dtype, (), e)


def local(name: str, dtype: DType) -> Value:
    return make("local", dtype, (), name)


def load(buffer: str, indices: tuple[Index, ...], dtype: DType) -> Value:
    return make("load", dtype, (), (buffer, indices))


def unary(op: str, x: Value) -> Value:
    return make(op, x.dtype, (x,))


def binary(op: str, x: Value, y: Value) -> Value:
    return make(op, bool_ if op in COMPARISONS else x.dtype, (x, y))


def where(condition: Value, yes: Value, no: Value) -> Value:
    return yes if yes is no else make("where", yes.dtype, (condition, yes, no))


def cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype is dtype else make("cast", dtype, (x,))


def bitcast(x: Value, dtype: DType) -> Value:
    return x if x.dtype is dtype else make("bitcast", dtype, (x,))


def guard(inside: Value, otherwise: Value, conditions: tuple[Index, ...]) -> Value:
    """`inside` where every condition is >= 0, else `otherwise`; conditions proven true are dropped."""
    left: list[Index] = []
    for c in conditions:
        lo, hi = bounds(c)
        if hi < 0:
            return otherwise
        if lo < 0 and c not in left:
            left.append(c)
    if not left or inside is otherwise:
        return inside
    return make("guard", inside.dtype, (inside, otherwise), tuple(left))


def reduce(monoid: str, over: tuple[Var, ...], body: Value) -> Value:
    return make("reduce", body.dtype, (body,), (monoid, over)) if over else body


def across(monoid: str, x: Value) -> Value:
    return make("across", x.dtype, (x,), monoid)


def rebuild(v: Value, args: tuple[Value, ...], attr: Any) -> Value:
    """The same operation over other operands; guards are simplified again."""
    if args == v.args and attr == v.attr:
        return v
    if v.op == "guard":
        return guard(args[0], args[1], attr)
    if v.op == "index":
        return index(attr, v.dtype)
    return make(v.op, v.dtype, args, attr)


def indices_of(v: Value) -> tuple[Index, ...]:
    """The index expressions that a Value carries itself (not those of its operands)."""
    if v.op == "load":
        return v.indices
    if v.op == "index":
        return (v.index,)
    return v.conditions if v.op == "guard" else ()


def walk(*roots: Value) -> list[Value]:
    """Every Value reachable from `roots` once, operands before users, iteratively; includes values inside indices."""
    if len(roots) == 1:
        root, = roots
        return [*(root._below or _below(root)), root]
    return list(dict.fromkeys([v for root in roots for v in (*(root._below or _below(root)), root)]))


def _below(root: Value) -> tuple[Value, ...]:
    """Everything below `root` in the order of `walk`, kept with it: the same roots are asked again and again."""
    seen: dict[Value, None] = {}
    stack: list[Value | None] = [*root.operands[::-1]]
    ready: list[Value] = []
    while stack:
        v = stack.pop()
        if v is None:
            seen[ready.pop()] = None
        elif v not in seen:
            known = v._below
            below = v.operands if known is None else ()
            if below:
                stack.append(None)
                ready.append(v)
                stack.extend(below[::-1])
                continue
            if known:
                seen.update(dict.fromkeys(known))
            seen[v] = None
    root._below = tuple(seen)
    return root._below


def reductions_in(root: Value) -> list[Value]:
    """The reduces in a Value, inner ones first."""
    return [v for v in walk(root) if v.op == "reduce"] if root.reduces else []


def expressions(root: Value) -> tuple[Expr, ...]:
    """The different index expressions and conditions of a Value and of everything below it, constant ones left out."""
    if root._expressions is None:
        found = dict.fromkeys([e for v in walk(root) if v.op in ("load", "index", "guard") for e in indices_of(v)])
        root._expressions = tuple([e for e in found if not isinstance(e, int)])
    return root._expressions


def values_inside(indices: Iterable[Index]) -> tuple[Value, ...]:
    """The values used as indices inside index expressions."""
    return tuple([a.value for e in indices for a in value_atoms(e)])


def value_atoms(e: Index) -> tuple[ValueIndex, ...]:
    """The ValueIndex atoms of an index expression, at any depth."""
    if isinstance(e, int):
        return ()
    found = e.known_values
    if found is None:
        found = ()
        if isinstance(e, Atom):
            for part in e.children():
                found += value_atoms(part)
        else:
            for m, _ in e.terms:
                for a in m:
                    if type(a) is not Var:
                        found += value_atoms(a)
        e.known_values = found = tuple(dict.fromkeys(found)) if len(found) > 1 else found
    return found


def free_variables(root: Value) -> frozenset[Var]:
    """Index variables that `root` depends on; those bound by a reduce inside it are left out."""
    if not root.indexed:
        return _NO_VARIABLES
    stack = [root] if root._free is None else []
    while stack:
        v = stack[-1]
        missing = [a for a in v.args if a._free is None and a.indexed]
        if missing:
            stack += missing
        else:
            v._free = _free(v)
            stack.pop()
    return root._free or _NO_VARIABLES


def _free(v: Value) -> frozenset[Var]:
    """`free_variables` of a Value whose operands know theirs."""
    op, found = v.op, _NO_VARIABLES
    for a in v.args:
        more = a._free if a.indexed else None
        if more and more is not found:
            found = found | more if found else more
    if op == "load" or op == "index" or op == "guard":
        for e in indices_of(v):
            if not isinstance(e, int):
                more = e.known_variables or variables(e)
                found = found | more if found else more
    return found.difference(v.over) if op == "reduce" else found


def summary(root: Value) -> str:
    """A text of its own for every Value, the same in every process: written out, or shortened to a digest where that
    would be long, since what operands share would be written again and again."""
    if root._text is None:
        for v in walk(root):
            if v._text is None:
                inner = ", ".join([*map(summary, v.args), *([] if v.attr is None else [str(v.attr)])])
                if len(inner) > MAX_TEXT:
                    inner = "#" + blake2b(inner.encode(), digest_size=16).hexdigest()
                v._text = f"{v.op}:{v.dtype.short}({inner})"
    return present(root._text, "[value] expected the text of a value")
