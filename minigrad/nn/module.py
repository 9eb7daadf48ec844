"""`Module`: a base class for models that were written for PyTorch. Layers here have none, and models need none."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from minigrad.dtype import DType
from minigrad.errors import DTypeError, MinigradError
from minigrad.mixins.modes import of_modules
from minigrad.state import get_parameters, get_state_dict, load_state_dict
from minigrad.state.tree import children_of
from minigrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A model with PyTorch's methods: `forward` is what a call runs, in the mode that `train()` and `eval()` set.

    A Module starts in training, as in PyTorch: batch norm and dropout inside it behave so, whatever stands around the
    call, until `eval()`. (Without Modules `with Tensor.train():` says it.) Parameters are the Tensors in attributes, in
    lists and dictionaries too; the names of their state are the paths to them.
    """

    training: bool | None = True
    _buffer_names: tuple[str, ...] = ()  # attributes with Tensors that are no parameters
    _transient: tuple[str, ...] = ()  # attributes that are no part of the state

    def forward(self, *args: Any, **options: Any) -> Any:
        """What the model computes."""
        raise MinigradError(f"[{type(self).__name__}] expected a method forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        of_modules.ask(self)
        if self.training is None:
            return self.forward(*args, **options)
        with Tensor.train(self.training):
            return self.forward(*args, **options)

    @property
    def captured_mode(self) -> Any:
        """What a function that was captured calling this Module depends on besides Tensors."""
        return self.training

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.training
        object.__setattr__(self, name, value)
        if before is not self.training:
            of_modules.switch(self)

    # Modes

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of this Module and of those inside it."""
        for module in self.modules():
            if isinstance(module, Module):
                module.training = mode
        return self

    def eval(self) -> Self:
        """Batch norm uses its running statistics, dropout leaves nothing out."""
        return self.train(False)

    # Parts

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """(path, layer) of this Module, path '', and of every layer inside it: what can be called and has attributes.
        """
        seen: set[int] = set()
        pending: list[tuple[str, Any]] = [("", self)]
        while pending:
            path, part = pending.pop()
            if id(part) in seen or isinstance(part, Tensor):
                continue
            seen.add(id(part))
            if callable(part) and hasattr(part, "__dict__"):
                yield path, part
            inner = [(f"{path}.{name}" if path else name, value) for name, value in children_of(part)]
            pending.extend(reversed(inner))

    def modules(self) -> Iterator[Any]:
        """This Module and every layer inside it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """(name, layer) of the layers, lists and dictionaries in attributes."""
        return iter([(name, value) for name, value in vars(self).items()
                     if name[0] != "_" and not isinstance(value, Tensor) and (children_of(value) or callable(value))])

    def children(self) -> Iterator[Any]:
        """The layers, lists and dictionaries in attributes."""
        return (value for _, value in self.named_children())

    def apply(self, fn: Callable[[Any], None]) -> Self:
        """Calls a function with every layer inside this Module, and with itself last."""
        for module in [*self.modules()][::-1]:
            fn(module)
        return self

    def add_module(self, name: str, module: Any) -> None:
        """The attribute `name`."""
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
        """A Tensor that is no parameter as an attribute; it is computed here. One that is not `persistent` is no part
        of the state."""
        self._buffer_names = (*self._buffer_names, name)
        if not persistent:
            self._transient = (*self._transient, name)
        setattr(self, name, tensor if tensor is None else tensor.realize())

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """A Tensor with a gradient as an attribute."""
        setattr(self, name, param)

    # State

    def parameters(self) -> Iterator[Tensor]:
        """The float Tensors inside that are no buffers, each once: frozen ones too, no running statistics."""
        return (t for _, t in self.named_parameters())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """(path, Tensor) of `parameters()`; the first path of each."""
        buffers = {id(t) for t in self._buffers_inside().values()}
        found = {id(t): (name, t) for name, t in reversed(get_state_dict(self, prefix).items())
                 if t.dtype.is_float and id(t) not in buffers}
        return reversed(found.values())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """(path, Tensor) of running statistics, of what `register_buffer` was given, and of what is not float."""
        parameters = {id(t) for t in self.parameters()}
        state = {name: t for name, t in get_state_dict(self).items() if id(t) not in parameters}
        return iter((state | self._buffers_inside()).items())

    def buffers(self) -> Iterator[Tensor]:
        """The Tensors inside that are no parameters."""
        return (t for _, t in self.named_buffers())

    def _buffers_inside(self) -> dict[str, Tensor]:
        """What layers name as buffers, by path: those that are no part of the state, too."""
        owned = [(f"{path}.{name}" if path else name, getattr(part, name, None)) for path, part in self.named_modules()
                 for name in getattr(part, "_buffer_names", ())]
        return {path: t for path, t in owned if isinstance(t, Tensor)}

    def state_dict(self) -> dict[str, Tensor]:
        """Every Tensor inside by its path."""
        return get_state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Gives the Tensors inside the values in `state`; see `nn.state.load_state_dict`. Returned are the names that
        `state` lacks and those that the model lacks, which are none unless `strict` is False."""
        load_state_dict(self, state, strict)
        own = get_state_dict(self)
        missing, unexpected = ([n for n in a if n not in b] for a, b in ((own, state), (state, own)))
        return IncompatibleKeys(missing, unexpected)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, or makes them zeros without `set_to_none`."""
        for t in get_parameters(self):
            t.grad = None if set_to_none or t.grad is None else t.grad.zeros_like()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Makes every parameter one that gradients flow to, or stops that. Buffers stay as they are."""
        for t in self.parameters():
            t.requires_grad_(requires_grad)
        return self

    def to(self, *target: Any, device: str | None = None, dtype: DType | str | None = None) -> Self:
        """Every Tensor inside on another device, float ones in another type; see `Tensor.to`."""
        for t in {id(t): t for t in [*get_parameters(self), *self._buffers_inside().values()]}.values():
            wanted = t.to(*target, device=device, dtype=dtype)
            t.to_(wanted.device, wanted.dtype if t.dtype.is_float else t.dtype)
        return self

    def half(self) -> Self:
        return self.to(dtype="float16")

    def float(self) -> Self:
        return self.to(dtype="float32")

    def double(self) -> Self:
        return self.to(dtype="float64")

    def bfloat16(self) -> Self:
        return self.to(dtype="bfloat16")

    def cpu(self) -> Self:
        return self.to("CPU")

    def extra_repr(self) -> str:
        """What stands between the brackets of a Module without layers."""
        return ""

    def __repr__(self) -> str:
        lines = [f"  ({name}): " + repr(part).replace("\n", "\n  ") if isinstance(part, Module) else
                 f"  ({name}): {type(part).__name__}" for name, part in self.named_children()]
        inner = "\n" + "\n".join(lines) + "\n" if lines else self.extra_repr()
        return f"{type(self).__name__}({inner})"


def Parameter(data: Any, requires_grad: bool = True) -> Tensor:  # noqa: N802  (PyTorch's name)
    """A Tensor that gradients flow to: `Tensor(data, requires_grad=True)`, over values of its own."""
    if isinstance(data, Tensor) and not data.dtype.is_float:
        raise DTypeError(f"[Parameter] expected a float tensor, got {data.dtype}")
    return Tensor(data, requires_grad=requires_grad)


def ParameterList(parameters: Iterable[Any] = ()) -> list[Tensor]:  # noqa: N802  (PyTorch's name)
    """A list of parameters, which any list is."""
    return [p if isinstance(p, Tensor) else Parameter(p) for p in parameters]


def ParameterDict(parameters: Mapping[str, Any] | None = None) -> dict[str, Tensor]:  # noqa: N802  (PyTorch's name)
    """A dictionary of parameters, which any dictionary is."""
    return {name: p if isinstance(p, Tensor) else Parameter(p) for name, p in (parameters or {}).items()}
