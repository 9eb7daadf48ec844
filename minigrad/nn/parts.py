"""The base of layers and Modules: their parts, their state, and its device and type."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Self

from minigrad.dtype import DType
from minigrad.state import get_parameters, get_state_dict, load_state_dict
from minigrad.state.tree import children_of
from minigrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """The names that `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Parts:
    """PyTorch's methods of what has parameters: the Tensors in attributes, in lists and dictionaries too, by the paths
    to them."""

    training: bool | None = None
    _buffer_names: tuple[str, ...] = ()  # attributes with Tensors that are no parameters
    _transient: tuple[str, ...] = ()  # attributes that are no part of the state

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

    def apply(self, fn: Callable[[Any], None]) -> Self:
        """Calls a function with every layer inside this Module, and with itself last."""
        for module in [*self.modules()][::-1]:
            fn(module)
        return self

    # Modes

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of this Module and of those inside it."""
        for module in self.modules():
            if isinstance(module, Parts):
                module.training = mode
        return self

    def eval(self) -> Self:
        """Batch norm uses its running statistics, dropout leaves nothing out."""
        return self.train(False)

    # State

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """The float Tensors inside that are no buffers, each once: frozen ones too, no running statistics. Without
        `recurse` those in attributes of this Module alone."""
        return (t for _, t in self.named_parameters(recurse=recurse))

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """(path, Tensor) of `parameters()`; the first path of each."""
        buffers = {id(t) for t in self._buffers_inside().values()}
        found = {id(t): (name, t) for name, t in reversed(get_state_dict(self).items())
                 if t.dtype.is_float and id(t) not in buffers}
        return _under(prefix, recurse, reversed(found.values()))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """(path, Tensor) of running statistics, of what `register_buffer` was given, and of what is not float."""
        parameters = {id(t) for t in self.parameters()}
        state = {name: t for name, t in get_state_dict(self).items() if id(t) not in parameters}
        return _under(prefix, recurse, (state | self._buffers_inside()).items())

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The Tensors inside that are no parameters."""
        return (t for _, t in self.named_buffers(recurse=recurse))

    def _buffers_inside(self) -> dict[str, Tensor]:
        """The Tensors that layers name as buffers, by path: those that are no part of the state, too."""
        owned = [(f"{path}.{name}" if path else name, getattr(part, name, None)) for path, part in self.named_modules()
                 for name in getattr(part, "_buffer_names", ())]
        return {path: t for path, t in owned if isinstance(t, Tensor)}

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Every Tensor inside by its path, behind `prefix` as it stands: 'encoder.'."""
        return {prefix + name: t for name, t in get_state_dict(self).items()}

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

    def cuda(self, *_: Any) -> NoReturn:
        """Raises DeviceError: GPUs are devices of OpenCL."""
        Tensor(0).cuda()


def note_buffer(module: Parts, name: str, persistent: bool = True) -> None:
    """Makes an attribute one of a buffer, and part of the state where it is `persistent`."""
    module._buffer_names = (*[n for n in module._buffer_names if n != name], name)
    module._transient = (*[n for n in module._transient if n != name], *([] if persistent else [name]))


def forget_buffer(module: Parts, name: str) -> None:
    """Undoes `note_buffer`."""
    module._buffer_names = tuple([n for n in module._buffer_names if n != name])
    module._transient = tuple([n for n in module._transient if n != name])


def _under(prefix: str, recurse: bool, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """With `prefix` and a dot before the names, those with a dot only with `recurse`."""
    start = f"{prefix.rstrip('.')}." if prefix else ""
    return ((start + name, t) for name, t in named if recurse or "." not in name)
