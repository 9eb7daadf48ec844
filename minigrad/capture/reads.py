"""The names that the code of a function reads: variables, and what of those by further names and constants
(`args.rate`, `settings["rate"]`, `self.config.depth`), and the places of their values."""
from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

from minigrad.capture.arguments import is_plain
from minigrad.tensor import Tensor

Path = tuple[tuple[str, Any], ...]
"""('global', name), ('cell', name) or ('own', '') for the first argument; then ('attribute', name) or ('item', key)."""

EMPTY: dict[str, Any] = {}
UNBOUND = ModuleType("unbound")
"""Stands for a name without a value; like a module it is not part of a key."""

LONGEST = 5
"""The most names of a path."""
_LOADS = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell"}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "PRECALL", "PUSH_NULL", "COPY_FREE_VARS", "RESUME")


@lru_cache(maxsize=4096)
def paths_of(code: CodeType) -> tuple[Path, ...]:
    """The paths that a function and everything defined inside read, each once, in the order of their text."""
    own = code.co_varnames[0] if code.co_argcount else None
    found: dict[Path, None] = {}
    for c in _codes(code):
        path: Path = ()
        key: list[Any] = []
        for i in dis.get_instructions(c):
            if i.opname in _BETWEEN:
                continue
            named = i.argval[-1] if isinstance(i.argval, tuple) and i.argval else i.argval
            if i.opname in _ATTRIBUTES and path and not key:
                path = (*path, ("attribute", named))
            elif i.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and path and not key:
                key = [i.argval]
                continue
            elif i.opname in ("BINARY_SUBSCR", "BINARY_OP") and path and key and i.argrepr in ("", "[]"):
                path = (*path, ("item", key[0])) if type(key[0]) in (int, str) else ()
            elif i.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and own is not None and named == own:
                path = (("own", ""),)
            elif i.opname in _LOADS:
                path = ((_LOADS[i.opname], named),)
            else:
                path = ()
            key = []
            if path and len(path) <= LONGEST:
                found[path] = None
    longer = {p[:k] for p in found for k in range(1, len(p))}
    return tuple([p for p in found if p not in longer])


def _codes(code: CodeType) -> list[CodeType]:
    """The code of a function and of everything defined inside."""
    found = [code]
    for c in found:
        found += [k for k in c.co_consts if isinstance(k, CodeType)]
    return found


def function_in(value: Any) -> tuple[FunctionType, Any] | None:
    """(a function of the user's own, the object that it is called on if any) where `value` is one, bound or partial."""
    while isinstance(value, partial):
        value = value.func
    owner = None
    if isinstance(value, MethodType):
        value, owner = value.__func__, value.__self__
    if not isinstance(value, FunctionType):
        value = getattr(value, "__dict__", {}).get("__wrapped__")  # of a function under `jit`
    return (value, owner) if isinstance(value, FunctionType) and _is_the_users(value) else None


def _is_the_users(function: FunctionType) -> bool:
    """True where its code may be changed by the user: it is no part of this library, of Python or of an installed
    package."""
    package = (function.__module__ or "").partition(".")[0]
    return package != __name__.partition(".")[0] and package not in sys.stdlib_module_names and \
        "site-packages" not in function.__code__.co_filename


# Where paths lead

Spot = tuple[str, Callable[[], Any], Any]
"""A place that is read: its name, a function that gives its value, and that value."""

MOST = 64
"""The most functions that are gone through."""


def spots_beyond(plain: FunctionType, owner: object | None, modules: list[Any], names: set[str]) -> list[Spot]:
    """Numbers and strings that a function reads beyond its own `names`, those that functions of the user's read which
    it names, and `forward` of these Modules; with what there is on the way to them."""
    spots: dict[tuple[str, int, int], Spot] = {}
    pending: list[tuple[FunctionType, Any]] = [(plain, owner)]
    pending += [found for m in modules if (found := function_in(getattr(m, "forward", None)))]
    done: set[tuple[int, int]] = set()
    while pending and len(done) < MOST:
        function, own = pending.pop(0)
        if (id(function), id(own)) in done:
            continue
        done.add((id(function), id(own)))
        known = function is plain
        for chain in [*_chains(function, own), *([] if known else [[s] for s in _held(function)])]:
            length = len(chain) if chain and is_plain(chain[-1][2]) else 0
            for k, (_, _, value) in enumerate(chain):
                called = function_in(value)
                if called is not None:
                    pending.append(called)
                    length = max(length, k + (type(value) is not MethodType))
            for name, get, value in chain[:length]:
                name = name if known else f"{name} in {function.__name__}"
                if not known or name not in names:
                    spots.setdefault((name, id(function), id(own)), (name, get, value))
    return list(spots.values())


def _held(function: FunctionType) -> Iterator[Spot]:
    """Closure cells and defaults of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, partial(getattr, cell, "cell_contents"), cell.cell_contents
        except ValueError:  # not bound yet
            continue
    if function.__defaults__:
        yield "a default", partial(getattr, function, "__defaults__"), function.__defaults__
    options = function.__kwdefaults__ or EMPTY
    for name, value in options.items():
        yield name, partial(options.get, name), value


def _chains(function: FunctionType, own: object | None) -> Iterator[list[Spot]]:
    """For each path that the function reads, the places on it, as far as it leads. Left out are the attributes of its
    own object where that is a Module, which says itself what depends on them."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for path in paths_of(function.__code__):
        chain = list(_along(path, function, cells, own))
        yield chain if path[0][0] != "own" or not hasattr(own, "captured_mode") else [
            s for s in chain if function_in(s[2]) is not None]


def _along(path: Path, function: FunctionType, cells: dict[str, Any], own: object | None) -> Iterator[Spot]:
    (kind, name), *rest = path
    if kind == "own":
        value = own
    elif kind == "global":
        if name not in function.__globals__:
            return
        value = function.__globals__[name]
        yield name, partial(function.__globals__.get, name, UNBOUND), value
    else:
        try:
            value = cells[name].cell_contents
        except (KeyError, ValueError):  # a variable of a function around it, or not bound yet
            return
        yield name, partial(getattr, cells[name], "cell_contents"), value
    name = name or "self"
    for kind, key in rest:
        found = _attribute(value, key) if kind == "attribute" else _item(value, key)
        if found is None:
            return
        get, value = found
        name += f".{key}" if kind == "attribute" else f"[{key!r}]"
        yield name, get, value


def _attribute(of: Any, name: str) -> tuple[Callable[[], Any], Any] | None:
    """(a function that gives an attribute, its value), None where there is none to be seen. That function does not keep
    the object alive. The function that computes a property counts as its value."""
    if of is None or isinstance(of, Tensor):
        return None
    own = getattr(of, "__dict__", EMPTY)
    if isinstance(of, ModuleType):
        return (partial(own.get, name, UNBOUND), own[name]) if name in own else None
    if name in own and not isinstance(of, type):
        try:
            return partial(_attribute_of, ref(of), name), own[name]
        except TypeError:
            return partial(own.get, name, UNBOUND), own[name]
    for kind in (of if isinstance(of, type) else type(of)).__mro__:
        if name in vars(kind):
            value = vars(kind)[name]
            if isinstance(value, property):
                value = MethodType(value.fget, of) if value.fget else None
            elif isinstance(value, classmethod):
                value = MethodType(value.__func__, of if isinstance(of, type) else type(of))
            elif isinstance(value, FunctionType) and not isinstance(of, type):
                value = MethodType(value, of)
            return partial(_attribute_of, ref(kind), name), getattr(value, "__func__", value) if isinstance(
                value, staticmethod) else value
    return None


def _attribute_of(weak: ref, name: str) -> Any:
    return getattr(weak(), "__dict__", EMPTY).get(name, UNBOUND)


def _item(of: Any, key: Any) -> tuple[Callable[[], Any], Any] | None:
    if type(of) not in (list, tuple, dict):
        return None
    try:
        return partial(of.__getitem__, key), of[key]
    except LookupError:
        return None
