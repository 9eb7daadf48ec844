"""The surroundings of a captured function: what it reads besides its arguments.

These are looked at, at every call: closure cells, globals, defaults and attributes of its own object, whatever they
are; numbers and strings that those lead to by names and constants (reads.py); the same of the user's functions and
methods that it names, of those that they name, and of `forward` of the Modules that it called, with their modes and
numbers. Other contents of objects, what is computed (`rates[k]`, `getattr`), and what installed libraries read stay as
they were when the function was captured.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any
from weakref import ref

from minigrad.capture.arguments import Same, given, is_plain, static
from minigrad.capture.reads import EMPTY, UNBOUND, Spot, paths_of, spots_beyond
from minigrad.errors import present
from minigrad.mixins.modes import of_modules


def _reference(value: Any, gone: Callable[[ref], None]) -> Callable[[], Any]:
    """A function that gives the value. Only small immutable values are kept alive; of others `gone` is called when they
    die."""
    if is_plain(value):
        return partial(given, value)
    try:
        return ref(value, gone)
    except TypeError:
        return partial(given, value)


def method_of(function: Callable) -> tuple[Any, object | None]:
    """(the function, the object that it is a method of), also of a function inside `partial`; a call of an object is
    one of its methods."""
    while isinstance(function, partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004 (whether it is a function of Python)
    if isinstance(called, FunctionType):
        return called, function
    return getattr(function, "__func__", function), getattr(function, "__self__", None)


class Surroundings:
    """Everything that a function reads besides its arguments. `owner` is the object whose method it is, if any.

    The modes and numbers of the Modules that it was seen to call count too.
    """

    def __init__(self, function: Callable):
        self.function = function
        plain, self.owner = method_of(function)
        self.plain: FunctionType | None = plain if isinstance(plain, FunctionType) else None
        self.globals: list[str] = []
        self.attributes: list[str] = []
        if self.plain is not None:
            paths = paths_of(self.plain.__code__)
            self.globals = sorted({p[0][1] for p in paths if p[0][0] == "global"})
            self.attributes = sorted({p[1][1] for p in paths if p[0][0] == "own" and len(p) > 1
                                      and p[1][0] == "attribute"})
        self._cells = self.plain.__closure__ or () if self.plain is not None else ()
        self._modules: list[ref] = []
        self._keys: tuple[tuple[str, Any], ...] | None = None
        """The last result of `values`, for as long as all that it has seen lives: `_references` tell when something
        dies, so that until then an id says which object it is."""
        self._references: list[Callable[[], Any]] = []
        self._mark: object = None
        self._same: Callable[..., bool] = bool
        self._watched: Callable[[object | None], bool] = bool

    def values(self, owner: object | None) -> tuple[tuple[str, Any], ...]:
        """(name, key) of everything that is looked at; `owner` is the object whose method this is, if it is one.

        It is the same tuple as last time where everything is the same object as last time.
        """
        keys = self._keys
        if keys is not None and self._same(owner):
            return keys
        if self.plain is None:
            return ()
        mark = of_modules.mark
        called = [m for m in [r() for r in self._modules] if m is not None]
        modes = tuple([(f"the mode or a number of {type(m).__name__}", m.captured_mode) for m in called])
        if keys is not None and self._same(owner, False) and keys[len(keys) - len(modes):] == modes:
            self._mark = mark
            return keys
        values, names = self._look(owner), self._names(owner)
        there = {name for name, v in zip(names, values, strict=True) if v is not UNBOUND}
        beyond = spots_beyond(self.plain, owner, called, there)
        self._keys = keys = (*[(name, _seen(v)) for name, v in zip(names, values, strict=True)
                               if not isinstance(v, ModuleType)], *[(name, _seen(v)) for name, _, v in beyond], *modes)
        self._mark = mark
        self._remember(self.plain, keys, values, owner, beyond)
        return keys

    def has_called(self, modules: list[Any]) -> bool:
        """Adds Modules whose modes `values` has from now on; True where some of these were not known."""
        known = {id(r()) for r in self._modules}
        new = [m for k, m in {id(m): m for m in modules}.items() if k not in known]
        if new:
            self._modules = [r for r in self._modules if r() is not None] + [ref(m) for m in new]
            self._keys = None
        return bool(new)

    def watch(self, keys: tuple) -> Callable[[object | None], bool]:
        """A function of the owner that returns True where `values` would give these very keys, as it just did, for a
        call with as many arguments."""
        if self.plain is None or self._sees_nothing(self.plain):
            return always
        return self._watched if self._keys is keys else _never

    def _sees_nothing(self, plain: FunctionType) -> bool:
        """True where the function reads its arguments alone."""
        return not (self._cells or self.globals or self.attributes or self._modules or plain.__defaults__ or
                    plain.__kwdefaults__)

    def _remember(self, plain: FunctionType, keys: tuple, values: list[Any], owner: object | None,
                  beyond: list[Spot]) -> None:
        weak = ref(self)

        def gone(_: ref) -> None:
            found = weak()
            if found is not None:
                found._keys = None

        self._references = [_reference(v, gone) for v in (*values, *[v for _, _, v in beyond])]
        seen = iter(values)
        cells = [(cell, next(seen)) for cell in self._cells]
        fixed = [(cell, v) for cell, v in cells if is_plain(v)]
        others = [(cell, id(v)) for cell, v in cells if not is_plain(v)]
        named = [(k, name, id(next(seen))) for k, names in enumerate(self._named(owner)) for name in names]
        defaults, keywords = plain.__defaults__, plain.__kwdefaults__
        count = len(keywords or ())
        further = [(get, id(v)) for _, get, v in beyond]
        looks, modules = bool(cells or named or further), bool(self._modules)

        def rest(owner: object | None, modes: bool = modules) -> bool:
            """True where everything that is looked at, but defaults, is the object that it was, and no mode has
            changed, where `modes` asks for these."""
            if self._keys is not keys or (modes and of_modules.mark is not self._mark):
                return False
            if not looks:
                return True
            try:
                for cell, value in fixed:
                    if cell.cell_contents is not value:
                        return False
                for cell, last in others:
                    if id(cell.cell_contents) != last:
                        return False
                for get, last in further:
                    if id(get()) != last:
                        return False
            except (ValueError, LookupError, TypeError):  # a cell is not bound, or something else is there
                return False
            if named:
                scopes = _scopes(plain, owner)
                for scope, name, last in named:
                    if id(scopes[scope].get(name, UNBOUND)) != last:
                        return False
            return True

        def same(owner: object | None, modes: bool = modules) -> bool:
            """True where everything that is looked at is the object that it was, and no mode has changed, where `modes`
            asks for these."""
            return plain.__defaults__ is defaults and plain.__kwdefaults__ is keywords and (
                not keywords or len(keywords) == count) and rest(owner, modes)

        # Calls of a function that had no defaults need none, however many it has by now.
        self._watched = rest if defaults is None and keywords is None else same
        self._same = same

    def _look(self, owner: object | None) -> list[Any]:
        """The values of everything that is looked at, in the order of `_names`."""
        function = present(self.plain, "[jit] expected a function of Python")
        found: list[Any] = []
        for cell in self._cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not bound yet
                found.append(UNBOUND)
        for names, scope in zip(self._named(owner), _scopes(function, owner), strict=True):
            found += [scope.get(name, UNBOUND) for name in names]
        return found + list(function.__defaults__ or ())

    def _named(self, owner: object | None) -> tuple[list[str], list[str], list[str]]:
        """Names of the globals, attributes and keywords with a default."""
        function = present(self.plain, "[jit] expected a function of Python")
        return self.globals, self.attributes if owner is not None else [], list(function.__kwdefaults__ or ())

    def _names(self, owner: object | None) -> list[str]:
        function = present(self.plain, "[jit] expected a function of Python")
        plain, attributes, keywords = self._named(owner)
        return [*function.__code__.co_freevars, *plain, *(f"self.{name}" for name in attributes), *keywords,
                *["a default"] * len(function.__defaults__ or ())]

    def names(self, args: tuple, kwargs: dict[str, Any], method: bool) -> list[str]:
        """The name of each argument in a message; the first parameter of a method is not among them."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][method:]
        return [plain[k] if k < len(plain) else f"argument {k}" for k in range(len(args))] + list(kwargs)


def _scopes(plain: FunctionType, owner: object | None) -> tuple[dict[str, Any], ...]:
    """The dicts where globals, attributes and defaults of keywords are looked up."""
    return plain.__globals__, getattr(owner, "__dict__", EMPTY), plain.__kwdefaults__ or EMPTY


def always(_: object | None) -> bool:
    """True: the result of `watch` where there is nothing to look at."""
    return True


def _never(_: object | None) -> bool:
    return False


def _seen(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_seen(v) for v in value])
    return static(value) if is_plain(value) else Same(value)
