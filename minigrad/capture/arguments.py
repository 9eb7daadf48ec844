"""What a capture depends on besides Tensors: the structure of arguments, static values, and what surrounds a function.

A key is a tuple of plain values: equal keys mean that a function would build the same graph from the same Tensors.
"""
from __future__ import annotations

import dis
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from minigrad.errors import ShapeError, present
from minigrad.expr import Expr, Index, unbind
from minigrad.mixins.modes import of_modules
from minigrad.tensor import Tensor

_PLAIN = (bool, int, str, bytes, complex, type(None), type(Ellipsis))


class Arguments:
    """The Tensors among arguments in the order they are met, the values of Variables, and one key per argument."""

    __slots__ = ("tensors", "dims", "keys", "_first")

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self.tensors: list[Tensor] = []
        self.dims: dict[str, int] = {}
        self._first: dict[int, int] = {}
        keys = [self._tensor(a) if type(a) is Tensor else self.key(a) for a in args]
        if kwargs:
            keys += [(name, self.key(a)) for name, a in kwargs.items()]
        self.keys = tuple(keys)

    def key(self, value: Any) -> Any:
        """Everything about one argument but the data of Tensors and the values of Variables."""
        kind = type(value)
        if kind is Tensor:
            return self._tensor(value)
        if kind in (list, tuple):
            return kind.__name__, tuple([self.key(v) for v in value])
        if isinstance(value, (dict, OrderedDict)):
            return kind, tuple([(static(k), self.key(v)) for k, v in value.items()])
        if isinstance(value, tuple):
            return kind, tuple([self.key(v) for v in value])
        if isinstance(value, Expr):
            return "Index", self.expression(value)
        if is_dataclass(value) and not isinstance(value, type):
            return kind, tuple([self.key(getattr(value, f.name)) for f in fields(value)])
        if kind is slice:
            return "slice", self.key(value.start), self.key(value.stop), self.key(value.step)
        return static(value)

    def _tensor(self, t: Tensor) -> tuple:
        tensors, node = self.tensors, t._node
        first = self._first.setdefault(id(t), len(tensors))
        tensors.append(t)
        shape = node.shape
        for d in shape:
            if type(d) is not int:
                shape = tuple([d if type(d) is int else self.expression(d) for d in shape])
                break
        return "Tensor", shape, node.dtype, node.device, t._requires_grad, t._grad is None, first

    def expression(self, e: Index) -> Index:
        """`e` without the values of its Variables, which are noted."""
        plain, values = unbind(e)
        for v, value in values.items():
            if self.dims.setdefault(v.name, value) != value:
                raise ShapeError(f"[jit] expected one value of {v.name!r} per call, "
                                 f"got {self.dims[v.name]} and {value}")
        return plain


def static(value: Any) -> Any:
    """A hashable stand-in for a value that is no Tensor: equal only for what gives the same graph."""
    kind = type(value)
    if kind in _PLAIN:
        return kind.__name__, value
    if kind is float or kind is range or isinstance(value, np.generic):
        return kind.__name__, repr(value)
    if kind is np.ndarray:
        data = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
        return "ndarray", value.shape, str(value.dtype), data
    return Same(value)


class Same:
    """Equal to another one of the same object, for as long as that lives."""

    __slots__ = ("_of", "_id")

    def __init__(self, value: Any):
        self._id = id(value)
        try:
            self._of: Callable[[], Any] = ref(value)
        except TypeError:
            self._of = partial(_given, value)

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or other._id != self._id:
            return False
        value = self._of()
        return value is not None and value is other._of()


_EMPTY: dict[str, Any] = {}
_UNBOUND = ModuleType("unbound")
"""Stands for a name without a value; like a module it is not part of a key."""


def _reference(value: Any, gone: Callable[[ref], None]) -> Callable[[], Any]:
    """What gives the value; only small immutable values are kept alive, of others `gone` hears when they die."""
    if _is_plain(value):
        return partial(_given, value)
    try:
        return ref(value, gone)
    except TypeError:
        return partial(_given, value)


def _given(value: Any) -> Any:
    return value


def method_of(function: Callable) -> tuple[Any, object | None]:
    """(the function, the object that it is a method of), of what `partial` was given too; a call of an object is one of
    its methods."""
    while isinstance(function, partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004 (whether it is a function of Python)
    if isinstance(called, FunctionType):
        return called, function
    return getattr(function, "__func__", function), getattr(function, "__self__", None)


class Surroundings:
    """What a function reads besides its arguments: closure cells, defaults, module globals, attributes of its object,
    `owner`.

    Names are found in its code and in functions nested in it; not in other functions that it calls. The modes of the
    Modules that it was seen to call count too.
    """

    def __init__(self, function: Callable):
        self.function = function
        plain, self.owner = method_of(function)
        self.plain: FunctionType | None = plain if isinstance(plain, FunctionType) else None
        self.globals: list[str] = []
        self.attributes: list[str] = []
        if self.plain is not None:
            code = self.plain.__code__
            self.globals = sorted(_globals(code))
            self.attributes = sorted(_attributes(code)) if code.co_argcount else []
        self._cells = self.plain.__closure__ or () if self.plain is not None else ()
        self._modules: list[ref] = []
        self._keys: tuple[tuple[str, Any], ...] | None = None
        """What `values` said last, for as long as all that it has seen lives: `_references` tell when something dies,
        so that until then an id says which object it is."""
        self._references: list[Callable[[], Any]] = []
        self._same: Callable[[object | None], bool] = bool
        self._watched: Callable[[object | None], bool] = bool

    def values(self, owner: object | None) -> tuple[tuple[str, Any], ...]:
        """(name, key) of everything in sight; `owner` is the object whose method this is, if it is one.

        It is the same tuple as last time where everything is the same object as last time.
        """
        keys = self._keys
        if keys is not None and self._same(owner):
            return keys
        if self.plain is None:
            return ()
        mark, values = of_modules.mark, self._look(owner)
        keys = tuple([(name, _seen(v)) for name, v in zip(self._names(owner), values, strict=True)
                      if not isinstance(v, ModuleType)])
        if self._modules:
            called = [m for m in [r() for r in self._modules] if m is not None]
            keys += tuple([(f"the mode of {type(m).__name__}", m.captured_mode) for m in called])
        self._keys = keys
        self._remember(self.plain, keys, values, owner, mark if self._modules else None)
        return keys

    def has_called(self, modules: list[Any]) -> bool:
        """Whether some of these are Modules that were not known: from now on `values` has the modes of those that live.
        """
        known = {id(r()) for r in self._modules}
        new = [m for k, m in {id(m): m for m in modules}.items() if k not in known]
        if new:
            self._modules = [r for r in self._modules if r() is not None] + [ref(m) for m in new]
            self._keys = None
        return bool(new)

    def watch(self, keys: tuple) -> Callable[[object | None], bool]:
        """A function of the owner: whether `values` would say these very keys, as it just did, for a call with as many
        arguments."""
        if self.plain is None or self._sees_nothing(self.plain):
            return always
        return self._watched if self._keys is keys else _never

    def _sees_nothing(self, plain: FunctionType) -> bool:
        """Whether it reads its arguments alone."""
        return not (self._cells or self.globals or self.attributes or self._modules or plain.__defaults__ or
                    plain.__kwdefaults__)

    def _remember(self, plain: FunctionType, keys: tuple, values: list[Any], owner: object | None,
                  mark: object) -> None:
        weak = ref(self)

        def gone(_: ref) -> None:
            found = weak()
            if found is not None:
                found._keys = None

        self._references = [_reference(v, gone) for v in values]
        seen = iter(values)
        cells = [(cell, next(seen)) for cell in self._cells]
        fixed = [(cell, v) for cell, v in cells if _is_plain(v)]
        others = [(cell, id(v)) for cell, v in cells if not _is_plain(v)]
        named = [(k, name, id(next(seen))) for k, names in enumerate(self._named(owner)) for name in names]
        defaults, keywords = plain.__defaults__, plain.__kwdefaults__
        count = len(keywords or ())

        looks = bool(cells or named)

        def rest(owner: object | None) -> bool:
            """Whether everything in sight but defaults is the object that it was."""
            if self._keys is not keys or mark is not None and of_modules.mark is not mark:
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
            except ValueError:  # not bound yet
                return False
            if named:
                scopes = _scopes(plain, owner)
                for scope, name, last in named:
                    if id(scopes[scope].get(name, _UNBOUND)) != last:
                        return False
            return True

        def same(owner: object | None) -> bool:
            """Whether everything in sight is the object that it was."""
            return plain.__defaults__ is defaults and plain.__kwdefaults__ is keywords and (
                not keywords or len(keywords) == count) and rest(owner)

        # Calls of a function that had no defaults need none, however many it has by now.
        self._watched = rest if defaults is None and keywords is None else same
        self._same = same

    def _look(self, owner: object | None) -> list[Any]:
        """The values of everything in sight, in the order of `_names`."""
        function = present(self.plain, "[jit] expected a function of Python")
        found: list[Any] = []
        for cell in self._cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not bound yet
                found.append(_UNBOUND)
        for names, scope in zip(self._named(owner), _scopes(function, owner), strict=True):
            found += [scope.get(name, _UNBOUND) for name in names]
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
        """What to call each argument in a message; the first parameter of a method is not among them."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][method:]
        return [plain[k] if k < len(plain) else f"argument {k}" for k in range(len(args))] + list(kwargs)


def _scopes(plain: FunctionType, owner: object | None) -> tuple[dict[str, Any], ...]:
    """Where globals, attributes and defaults of keywords are looked up."""
    return plain.__globals__, getattr(owner, "__dict__", _EMPTY), plain.__kwdefaults__ or _EMPTY


def always(_: object | None) -> bool:
    """What `watch` gives where there is nothing to look at."""
    return True


def _never(_: object | None) -> bool:
    return False


def _is_plain(value: Any) -> bool:
    """Whether it is small and immutable, so that it may be kept alive."""
    return type(value) in _PLAIN or type(value) is float


def _seen(value: Any) -> Any:
    return static(value) if _is_plain(value) else Same(value)


def _codes(code: CodeType) -> list[CodeType]:
    """The code of a function and of everything defined inside."""
    found = [code]
    for c in found:
        found += [k for k in c.co_consts if isinstance(k, CodeType)]
    return found


def _globals(code: CodeType) -> set[str]:
    return {i.argval for c in _codes(code) for i in dis.get_instructions(c) if i.opname == "LOAD_GLOBAL"}


def _attributes(code: CodeType) -> set[str]:
    """Names of attributes that are read from the first argument."""
    owner, found = code.co_varnames[0], set()
    for c in _codes(code):
        before = None
        for i in dis.get_instructions(c):
            if i.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == owner:
                found.add(i.argval)
            loads = i.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
            before = (i.argval[-1] if isinstance(i.argval, tuple) else i.argval) if loads else None
    return found
