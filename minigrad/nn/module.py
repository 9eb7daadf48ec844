"""`Module`: the base class of layers, and of models that were written for PyTorch; others need none."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from inspect import Parameter as Parameter_
from inspect import signature
from itertools import count
from types import FunctionType
from typing import Any, Self
from weakref import ref

from minigrad.capture.arguments import is_plain
from minigrad.errors import DTypeError, MinigradError
from minigrad.mixins.hooks import HookHandle
from minigrad.mixins.modes import of_modules
from minigrad.nn.arguments import check_arguments
from minigrad.nn.parts import Parts, note_buffer
from minigrad.nn.text import structure, text_of_layer, text_of_part
from minigrad.state.tree import children_of
from minigrad.tensor import Tensor

_numbers = count()


class Module(Parts):
    """A model with PyTorch's methods: `forward` is what a call runs, in the mode that `train()` and `eval()` set.

    A Module starts in training, as in PyTorch: batch norm and dropout inside it behave so, whatever stands around the
    call, until `eval()`. (Without Modules `with Tensor.train():` says it.) Parameters are the Tensors in attributes, in
    lists and dictionaries too; the names of their state are the paths to them.
    """

    training: bool | None = True
    _hooks: Mapping[int, tuple[str, Callable[..., Any]]] = {}  # 'before' or 'after' forward

    def forward(self, *args: Any, **options: Any) -> Any:
        """Computes the result of a call."""
        raise MinigradError(f"[{type(self).__name__}] expected a method forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if of_modules.asked:
            of_modules.ask(self)
        forward = self._between_hooks if self._hooks else self.forward
        if self.training is None:
            return forward(*args, **options)
        with Tensor.train(self.training):
            return forward(*args, **options)

    @property
    def captured_mode(self) -> Any:
        """The properties that a function that was captured calling this Module depends on besides Tensors: its mode and
        hooks, and the numbers and strings in attributes."""
        plain = [(name, repr(v)) for name, v in vars(self).items() if is_plain(v) and name != "training"]
        return self.training, *self._hooks, *plain

    def __setattr__(self, name: str, value: Any) -> None:
        if _buffers and (entry := _buffers.get(id(value))) is not None and entry[0]() is value:
            note_buffer(self, name, entry[1])
        old = getattr(self, name, None)
        if (is_plain(old) or is_plain(value)) and (type(old) is not type(value) or old != value):
            before = self.captured_mode if of_modules.asked else ...
            object.__setattr__(self, name, value)
            of_modules.switch(self, before)
        else:
            object.__setattr__(self, name, value)

    # Hooks

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Calls `hook(module, args)` before each `forward`: what it returns, unless that is None, takes the place of
        the arguments without a name. `remove()` of the result takes it away."""
        return self._register("before", hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Calls `hook(module, args, output)` after each `forward`: what it returns, unless that is None, takes the
        place of the output. `remove()` of the result takes it away. Inside `jit` hooks run when the function does."""
        return self._register("after", hook)

    def _register(self, place: str, hook: Callable[..., Any]) -> HookHandle:
        if not callable(hook):
            raise MinigradError(f"[register_forward_hook] expected a function, got {hook!r}")
        number = next(_numbers)

        def change(hooks: dict[int, Any]) -> None:
            before = self.captured_mode
            self._hooks = hooks
            self._transient = (*[n for n in self._transient if n != "_hooks"], "_hooks")
            of_modules.switch(self, before)

        change({**self._hooks, number: (place, hook)})
        return HookHandle(lambda: change({k: h for k, h in self._hooks.items() if k != number}))

    def _between_hooks(self, *args: Any, **options: Any) -> Any:
        for place, hook in list(self._hooks.values()):
            found = hook(self, args) if place == "before" else None
            args = args if found is None else found if isinstance(found, tuple) else (found,)
        output = self.forward(*args, **options)
        for place, hook in list(self._hooks.values()):
            found = hook(self, args, output) if place == "after" else None
            output = output if found is None else found
        return output

    # Parts

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """(name, layer) of the layers, lists and dictionaries in attributes."""
        return iter([(name, value) for name, value in vars(self).items()
                     if name[0] != "_" and not isinstance(value, Tensor) and _is_child(value)])

    def children(self) -> Iterator[Any]:
        """The layers, lists and dictionaries in attributes."""
        return (value for _, value in self.named_children())

    def add_module(self, name: str, module: Any) -> None:
        """Sets the attribute `name`."""
        setattr(self, name, module)

    register_module = add_module

    def get_submodule(self, target: str) -> Any:
        """The layer, list or dictionary at a path such as 'encoder.layers.0'; this Module at ''. Raises MinigradError
        where there is none."""
        part: Any = self
        for name in target.split(".") if target else ():
            inner = dict(children_of(part))
            if name not in inner or isinstance(inner[name], Tensor):
                raise MinigradError(f"[get_submodule] expected a path to a part of {type(self).__name__}, "
                                    f"got {target!r}")
            part = inner[name]
        return part

    def get_parameter(self, target: str) -> Tensor:
        """The Tensor at a path. Raises MinigradError where there is none."""
        owner, _, name = target.rpartition(".")
        found = dict(children_of(self.get_submodule(owner))).get(name)
        if not isinstance(found, Tensor):
            raise MinigradError(f"[get_parameter] expected a path to a Tensor of {type(self).__name__}, got {target!r}")
        return found

    get_buffer = get_parameter

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a Tensor that is no parameter as an attribute; it is computed here. One that is not `persistent` is no
        part of the state."""
        note_buffer(self, name, persistent)
        setattr(self, name, tensor if tensor is None else tensor.realize())

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Adds a Tensor with a gradient as an attribute."""
        setattr(self, name, param)

    def extra_repr(self) -> str:
        """The text between the brackets when it is printed, before its layers."""
        return ""

    def __repr__(self) -> str:
        parts = [(name, text_of_part(part)) for name, part in self.named_children() if _has_layers(part)]
        return structure(type(self).__name__, self.extra_repr(), parts)


class Layer(Module):
    """A Module whose mode is that around the call, until `train()` or `eval()` of it or of a Module that it is part of
    says otherwise."""

    training: bool | None = None
    _made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Checks the arguments and keeps the plain ones, which are shown when it is printed."""
        options = {name: value for name, value in options.items() if name not in ("device", "dtype")}
        check_arguments(cls, args, options)
        self = super().__new__(cls)
        object.__setattr__(self, "_made_with", (tuple([_plain(v) for v in args]),
                                                {name: _plain(v) for name, v in options.items()}))
        return self

    def __init_subclass__(cls, **options: Any) -> None:
        """Gives the layers of this library PyTorch's arguments `device` and `dtype`."""
        super().__init_subclass__(**options)
        own = vars(cls).get("__init__")
        if own is not None and cls.__module__.startswith("minigrad.") and "device" not in signature(own).parameters:
            type.__setattr__(cls, "__init__", _placed(own))

    def reset_parameters(self) -> None:
        """Gives the Tensors of the layer the values of a new one, made with the same arguments. Raises MinigradError
        for a layer that has others in it, which are asked each for itself."""
        if next(self.children(), None) is not None:
            raise MinigradError(f"[reset_parameters] expected a layer without others in it, got {type(self).__name__}")
        args, options = self._made_with
        fresh = type(self)(*args, **options).state_dict()
        with Tensor.no_grad():
            for name, t in self.state_dict().items():
                t.assign(fresh[name].detach().to(t.device, t.dtype))

    def extra_repr(self) -> str:
        """The arguments that PyTorch shows."""
        return text_of_layer(self)


def _placed(init: Callable[..., None]) -> Callable[..., None]:
    """`init` with two more arguments, which say where a layer's Tensors are and of which float type."""
    @wraps(init)
    def made(self: Layer, *args: Any, device: str | None = None, dtype: Any = None, **options: Any) -> None:
        init(self, *args, **options)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    own = signature(init)
    place = [Parameter_(n, Parameter_.KEYWORD_ONLY, default=None) for n in ("device", "dtype")]
    made.__dict__["__signature__"] = own.replace(parameters=sorted(
        [*own.parameters.values(), *place], key=lambda p: p.kind))
    return made


def _plain(value: Any) -> Any:
    """A number, a name or several; None for anything else."""
    if isinstance(value, (tuple, list)):
        return tuple([_plain(v) for v in value])
    return value if isinstance(value, (bool, int, float, str)) else None


def _is_child(part: Any) -> bool:
    """True for a layer or another object with attributes, and for a list or dictionary with one or a Tensor in it."""
    if isinstance(part, (list, tuple, dict)) and not isinstance(part, Parts):
        return any(isinstance(p, Tensor) or _is_child(p) for p in (part.values() if isinstance(part, dict) else part))
    return isinstance(part, Parts) or bool(children_of(part)) or callable(part)


def _has_layers(part: Any) -> bool:
    """True for a layer, or a list or dictionary with one in it."""
    if isinstance(part, (list, tuple, dict)):
        return isinstance(part, Parts) or any(_has_layers(p) for p in (
            part.values() if isinstance(part, dict) else part))
    return not isinstance(part, (Tensor, FunctionType)) and callable(part)


_buffers: dict[int, tuple[ref[Tensor], bool]] = {}
"""The Tensors that `Buffer` made, by id, with True where they are part of the state."""


def Buffer(data: Any, persistent: bool = True) -> Tensor:  # noqa: N802  (PyTorch's name)
    """A Tensor that is no parameter of the Module that it becomes an attribute of; one that is not `persistent` is no
    part of the state: `self.mask = nn.Buffer(mask)` is `self.register_buffer("mask", mask)`."""
    made = (data.detach() if isinstance(data, Tensor) else Tensor(data)).realize()
    number = id(made)
    _buffers[number] = ref(made, lambda _: _buffers.pop(number, None) and None), persistent
    return made


def Parameter(data: Any, requires_grad: bool = True) -> Tensor:  # noqa: N802  (PyTorch's name)
    """A Tensor that gradients flow to: `Tensor(data, requires_grad=True)`, over values of its own."""
    if isinstance(data, Tensor) and not data.dtype.is_float:
        raise DTypeError(f"[Parameter] expected a float tensor, got {data.dtype}"
                         + ("" if data.ndim else "; empty(n) has n elements, Tensor(n) is the number n"))
    return Tensor(data, requires_grad=requires_grad)


def ParameterList(values: Iterable[Any] | None = None) -> list[Tensor]:  # noqa: N802  (PyTorch's name)
    """A list of parameters, which any list is."""
    return [p if isinstance(p, Tensor) else Parameter(p) for p in values or ()]


def ParameterDict(parameters: Mapping[str, Any] | None = None) -> dict[str, Tensor]:  # noqa: N802  (PyTorch's name)
    """A dictionary of parameters, which any dictionary is."""
    return {name: p if isinstance(p, Tensor) else Parameter(p) for name, p in (parameters or {}).items()}
