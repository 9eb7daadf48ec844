"""The surroundings of a captured function: what it reads besides its arguments.

These are looked at, at every call: closure cells, globals, defaults and attributes of its own object, whatever they
are; numbers and strings that those lead to by names and constants (`args.rate`, `settings["rate"]`,
`self.config.depth`); what is in the lists, dictionaries, sets and numpy arrays that those lead to, and in the
environment (`contents.py`); the same of the user's functions and methods that it names, of those that they name, and of
`forward` of the Modules that it called, with their modes and numbers. Contents of other objects, what `getattr`
computes, and what installed libraries read stay as they were when the function was captured.
"""
from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

from minigrad.capture.arguments import Same, given, is_plain, static
from minigrad.capture.contents import elements_of, is_read, key_of, looks_at, refusal
from minigrad.mixins.modes import of_modules
from minigrad.tensor import Tensor

EMPTY: dict[str, Any] = {}
UNBOUND = ModuleType("unbound")
"""Stands for a name without a value; like a module it is not part of a key."""

Spot = tuple[str, Callable[[], Any], Any]
"""A place that is read: its name, a function that gives its value, and that value."""


def method_of(function: Callable) -> tuple[FunctionType | None, object | None]:
    """(the function of Python if it is one, the object that it is a method of), also of a function inside `partial`; a
    call of an object is one of its methods."""
    while isinstance(function, partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004 (whether it is a function of Python)
    if isinstance(called, FunctionType):
        return called, function
    plain = getattr(function, "__func__", function)
    return plain if isinstance(plain, FunctionType) else None, getattr(function, "__self__", None)


class Surroundings:
    """Everything that a function reads besides its arguments; the modes and numbers of the Modules that it was seen to
    call count too. `owner` is the object whose method it is, if it does not hold that itself.

    `keys` are the last result of `values`, for as long as all that it has seen lives: `_references` tell when something
    dies, so that until then an id says which object it is.
    """

    def __init__(self, function: Callable, owner: object | None = None):
        self.function = function
        self._plain, own = method_of(function)
        self._owner = _reference(own if owner is None else owner, _let_go)
        self._modules: list[ref] = []
        self.keys: tuple[tuple[str, Any], ...] | None = None
        self._references: list[Callable[[], Any]] = []
        self._looks: list[tuple[Callable[[], Any], int]] = []
        self._contents: list[tuple[Callable[[], Any], Any]] = []
        self.refusal: str | None = None
        """Says what it reads that cannot be looked at, at each call; None where all can."""
        self._mark: object = None

    def values(self) -> tuple[tuple[str, Any], ...]:
        """(name, key) of everything that is looked at: the same tuple as last time where everything is the same object
        as last time."""
        keys = self.keys
        if keys is not None and self.same():
            return keys
        mark = of_modules.mark
        called = [m for m in [r() for r in self._modules] if m is not None]
        modes = tuple([(f"the mode or a number of {type(m).__name__}", m.captured_mode) for m in called])
        if keys is None or not self.same(False) or keys[len(keys) - len(modes):] != modes:
            read: dict[str, Any] = {}
            spots = [] if self._plain is None else spots_of(self._plain, self._owner(), called, read)
            self.refusal = next((found for n, v in read.items() if (found := refusal(n, v)) is not None), None)
            if self.refusal is not None:
                read = {}
            weak = ref(self)

            def gone(_: ref) -> None:
                found = weak()
                if found is not None:
                    found.keys = None

            self._contents = [look for v in read.values() for look in looks_at(v)]
            self._references = [_reference(v, gone) for _, _, v in spots]
            self._references += [_reference(v, gone) for container in read.values() for v in elements_of(container)]
            self._looks = [(get, id(v)) for _, get, v in spots]
            self.keys = keys = (*[(name, _seen(v)) for name, _, v in spots if not isinstance(v, ModuleType)],
                                *[(name, key_of(v)) for name, v in read.items()], *modes)
        self._mark = mark
        return keys

    def same(self, modes: bool = True) -> bool:
        """True where everything that is looked at is the object that it was, and no mode has changed, where `modes`
        asks for these: `values` gives `keys`."""
        if self.keys is None or (modes and self._modules and of_modules.mark is not self._mark):
            return False
        try:
            for get, last in self._looks:
                if id(get()) != last:
                    return False
            for get, last in self._contents:
                if get() != last:
                    return False
        except (ValueError, LookupError, TypeError, RuntimeError):  # a cell is not bound, or something else is there
            return False
        return True

    def has_called(self, modules: list[Any]) -> bool:
        """Adds Modules whose modes `values` has from now on; True where some of these were not known."""
        known = {id(r()) for r in self._modules}
        new = [m for k, m in {id(m): m for m in modules}.items() if k not in known]
        if new:
            self._modules = [r for r in self._modules if r() is not None] + [ref(m) for m in new]
            self.keys = None
        return bool(new)

    def names(self, args: tuple, kwargs: dict[str, Any], method: bool) -> list[str]:
        """The name of each argument in a message; the first parameter of a method is not among them."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][method:]
        return [plain[k] if k < len(plain) else f"argument {k}" for k in range(len(args))] + list(kwargs)


def _reference(value: Any, gone: Callable[[ref], None]) -> Callable[[], Any]:
    """A function that gives the value. Only small immutable values are kept alive; of others `gone` is called when they
    die."""
    if is_plain(value):
        return partial(given, value)
    try:
        return ref(value, gone)
    except TypeError:
        return partial(given, value)


def _let_go(_: ref) -> None:
    """Of an owner: its captures go with it."""


def _seen(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_seen(v) for v in value])
    return static(value) if is_plain(value) else Same(value)


# The names that code reads

Path = tuple[tuple[str, Any], ...]
"""('global', name), ('cell', name) or ('own', '') for the first argument; then ('attribute', name) or ('item', key)."""

LONGEST = 5
"""The most names of a path."""
_LOADS = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell"}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "PRECALL", "PUSH_NULL", "COPY_FREE_VARS", "RESUME")


@lru_cache(maxsize=4096)
def ends_of(code: CodeType) -> tuple[Path, ...]:
    """The paths that a function and everything defined inside read to their end, each once, in the order of their text.
    One may be the beginning of another: what is read of `a` in `len(a) + a.b`."""
    own = code.co_varnames[0] if code.co_argcount else None
    found: dict[Path, None] = {}
    for c in _codes(code):
        path: Path = ()
        key: list[Any] = []
        for i in dis.get_instructions(c):
            if i.opname in _BETWEEN:
                continue
            named = i.argval[-1] if isinstance(i.argval, tuple) and i.argval else i.argval
            further: Path = ()
            if i.opname in _ATTRIBUTES and path and not key:
                further = (*path, ("attribute", named))
            elif i.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and path and not key:
                key = [i.argval]
                continue
            elif i.opname in ("BINARY_SUBSCR", "BINARY_OP") and path and key and i.argrepr in ("", "[]"):
                further = (*path, ("item", key[0])) if type(key[0]) in (int, str) else ()
            elif i.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and own is not None and named == own:
                further = (("own", ""),)
            elif i.opname in _LOADS:
                further = ((_LOADS[i.opname], named),)
            if path and further[:-1] != path:
                found[path[:LONGEST]] = None
            path, key = further, []
    return tuple(found)


@lru_cache(maxsize=4096)
def paths_of(code: CodeType) -> tuple[Path, ...]:
    """The paths that a function and everything defined inside read, each once, without beginnings of longer ones."""
    ends = ends_of(code)
    longer = {p[:k] for p in ends for k in range(1, len(p))}
    return tuple([p for p in ends if p not in longer])


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


# The places that names lead to

MOST = 64
"""The most functions that are gone through."""


def spots_of(plain: FunctionType, owner: object | None, modules: list[Any], read: dict[str, Any]) -> list[Spot]:
    """The places that a function reads itself; then numbers and strings that it reads beyond, those that functions of
    the user's read which it names, and `forward` of these Modules; with what there is on the way to them. Containers of
    which they read what is in there go into `read`, by name."""
    own = [*_held(plain), *_named(plain, owner)]
    names = {name for name, _, value in own if value is not UNBOUND}
    beyond: dict[tuple[str, int, int], Spot] = {}
    pending: list[tuple[FunctionType, Any]] = [(plain, owner)]
    pending += [found for m in modules if (found := function_in(getattr(m, "forward", None)))]
    done: set[tuple[int, int]] = set()
    while pending and len(done) < MOST:
        function, of = pending.pop(0)
        if (id(function), id(of)) in done:
            continue
        done.add((id(function), id(of)))
        known = function is plain
        for name, container in _read_by(function, of):
            read.setdefault(f"what is in {name}" if known else f"what is in {name} in {function.__name__}", container)
        for chain in [*_chains(function, of), *([] if known else [[s] for s in _held(function)])]:
            length = len(chain) if chain and is_plain(chain[-1][2]) else 0
            for k, (_, _, value) in enumerate(chain):
                called = function_in(value)
                if called is not None:
                    pending.append(called)
                    length = max(length, k + (type(value) is not MethodType))
            for name, get, value in chain[:length]:
                name = name if known else f"{name} in {function.__name__}"
                if not known or name not in names:
                    beyond.setdefault((name, id(function), id(of)), (name, get, value))
    return [*own, *beyond.values()]


def _read_by(function: FunctionType, own: object | None) -> Iterator[tuple[str, Any]]:
    """(name, container) of the containers of which a function reads what is in there, its defaults among them."""
    for name, _, value in _held(function):
        if name not in function.__code__.co_freevars and is_read(value, None):
            yield name, value
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for path in ends_of(function.__code__):
        steps = path[1:] if path[0][0] == "own" else path
        chain = list(_along(path, function, cells, own))
        for k, (name, _, value) in enumerate(chain):
            kind, then = steps[k + 1] if k + 1 < len(steps) else ("", None)
            if not (kind == "item" and k + 1 < len(chain)) and is_read(value, then if kind == "attribute" else None):
                yield name, value


def _held(function: FunctionType) -> Iterator[Spot]:
    """Closure cells and defaults of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        get = partial(getattr, cell, "cell_contents")
        try:
            yield name, get, get()
        except ValueError:  # not bound yet
            yield name, get, UNBOUND
    if function.__defaults__:
        yield "a default", partial(getattr, function, "__defaults__"), function.__defaults__
    for name, value in (function.__kwdefaults__ or EMPTY).items():
        yield name, partial(_keyword, function, name), value


def _keyword(function: FunctionType, name: str) -> Any:
    return (function.__kwdefaults__ or EMPTY).get(name, UNBOUND)


def _named(function: FunctionType, own: object | None) -> Iterator[Spot]:
    """Globals that a function names, and attributes of the object that it is called on."""
    paths = paths_of(function.__code__)
    for name in sorted({p[0][1] for p in paths if p[0][0] == "global"}):
        yield name, partial(function.__globals__.get, name, UNBOUND), function.__globals__.get(name, UNBOUND)
    if own is not None:
        found = getattr(own, "__dict__", EMPTY)
        for name in sorted({p[1][1] for p in paths if p[0][0] == "own" and p[1:] and p[1][0] == "attribute"}):
            yield f"self.{name}", partial(_attribute_of, _reference(own, _let_go), name), found.get(name, UNBOUND)


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


def _attribute_of(weak: Callable[[], Any], name: str) -> Any:
    return getattr(weak(), "__dict__", EMPTY).get(name, UNBOUND)


def _item(of: Any, key: Any) -> tuple[Callable[[], Any], Any] | None:
    if type(of) not in (list, tuple, dict):
        return None
    try:
        return partial(of.__getitem__, key), of[key]
    except LookupError:
        return None
