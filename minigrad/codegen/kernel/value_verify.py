"""Type rules of Values, shared by the verifiers of kernels and of loop IR."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.dtype import DType, bool_
from minigrad.errors import InternalError
from minigrad.expr import Var, variables
from minigrad.value import BINARY, COMPARISONS, UNARY, Value, indices_of, walk

_FLOAT_ONLY = frozenset("sqrt exp log sin cos tanh sigmoid erf div rem fma".split())
_INT_ONLY = frozenset("idiv irem shl shr".split())
_BITS = frozenset("and or xor not".split())
RESERVED = frozenset("true false inf nan if else and in for let alloc barrier call index in out inout dim".split())


def fail(where: str, rule: str) -> InternalError:
    """The error of a verifier: the statement or function it is about and the rule that does not hold."""
    return InternalError(f"[verify] {where}: {rule}")


def check_name(where: str, name: str, taken: Iterable[str]) -> None:
    """A new name must be an identifier that the texts can print, and not be bound here already."""
    if not name.isidentifier() or name in RESERVED:
        raise fail(where, f"expected an identifier that is not a keyword, got {name!r}")
    if name in taken:
        raise fail(where, f"{name!r} is bound twice")


def check_types(where: str, root: Value, leaf: Callable[[Value], None]) -> None:
    """Checks the types of every operation under `root`; `leaf` checks what reads names: loads and locals."""
    for v in walk(root):
        if v.op in ("load", "local"):
            leaf(v)
        rule = _broken(v)
        if rule is not None:
            raise fail(where, f"{v.op}: {rule}")


def check_variables(where: str, found: Iterable[Var], bound: Iterable[Var]) -> None:
    """Every index variable must be bound by an enclosing loop, domain or reduction, or be a dim."""
    loose = sorted(v.name for v in set(found) - set(bound))
    if loose:
        raise fail(where, f"index variables {', '.join(loose)} are not bound here (a name alone is not enough: "
                          f"the bounds must agree too)")


def index_variables(root: Value) -> set[Var]:
    """The variables in all indices under `root`, bound by reductions or not."""
    return {x for v in walk(root) for e in indices_of(v) for x in variables(e)}


def _broken(v: Value) -> str | None:
    """The type rule that `v` breaks, None if there is none."""
    op, types = v.op, [a.dtype for a in v.args]
    if op == "const":
        right = bool if v.dtype is bool_ else float if v.dtype.is_float else int
        if type(v.number) is not right or (right is int and not v.dtype.min <= v.number <= v.dtype.max):
            return f"expected a {v.dtype.name}, got {v.number!r}"
    elif op == "index":
        return None if v.dtype.is_int else f"expected an integer type, got {v.dtype.name}"
    elif op in UNARY or op in BINARY or op == "fma":
        expected = 1 if op in UNARY else 2 if op in BINARY else 3
        if len(types) != expected or any(t is not types[0] for t in types):
            return f"expected {expected} operands of one type, got {types}"
        if v.dtype is not (bool_ if op in COMPARISONS else types[0]):
            return f"got the result type {v.dtype.name} for operands of {types[0].name}"
        return _family(op, types[0])
    elif op == "where":
        if len(types) != 3 or types[0] is not bool_ or types[1] is not types[2] or v.dtype is not types[1]:
            return f"expected a bool and two values of {v.dtype.name}, got {types}"
    elif op == "guard":
        if len(types) != 2 or types[0] is not v.dtype or types[1] is not v.dtype:
            return f"expected two values of {v.dtype.name}, got {types}"
    elif op == "bitcast":
        return None if types[0].bits == v.dtype.bits else f"expected equal widths, got {types[0]} to {v.dtype}"
    elif op in ("reduce", "across"):
        if v.monoid not in MONOIDS or types != [v.dtype]:
            return f"expected one of {', '.join(MONOIDS)} over {v.dtype.name}, got {v.monoid} over {types}"
    elif op not in ("load", "local", "cast"):
        return "unknown operation"
    return None


def _family(op: str, dtype: DType) -> str | None:
    if op in _FLOAT_ONLY and not dtype.is_float:
        return f"expected floats, got {dtype.name}"
    if op in _INT_ONLY and not dtype.is_int:
        return f"expected integers, got {dtype.name}"
    if op in _BITS and dtype.is_float:
        return f"expected integers or bools, got {dtype.name}"
    return None
