"""Layers that take the number of their input's channels from the first input, and are plain ones from then on."""
from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.nn import conv, linear, norm
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


class _Lazy(Layer):
    """The layer without its first argument, which is the input's length along `axis` at the first call. That call makes
    the parameters, and the layer one of the plain class, in its mode and with its hooks. Asking for parameters or for
    the state before raises MinigradError: call the model once, before an optimizer is made or a state is loaded."""

    plain: ClassVar[type[Layer]]
    axis: ClassVar[int]
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, device: str | None = None, dtype: Any = None, **options: Any):
        given = signature(self.plain.__init__).bind(self, 0, *args, **options)  # mistakes are reported here
        for name, value in self.defaults.items():
            given.arguments.setdefault(name, value)
        place = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
        self._made_with = (given.args[2:], {**given.kwargs, **place})

    @property
    def without_state(self) -> str:
        """The message for users who ask for parameters that are not there yet."""
        return f"{type(self).__name__} has none before its first call: call the model once on an example"

    def __call__(self, *args: Any, **options: Any) -> Any:
        x = as_tensor(type(self).__name__, args[0] if args else None)
        if not -x.ndim <= self.axis < x.ndim:
            raise ShapeError(f"[{type(self).__name__}] expected an input with an axis {self.axis} of channels, "
                             f"got {list(x.shape)}")
        given, named = self._made_with
        made = self.plain(x.shape[self.axis], *given, **named)
        for t in vars(made).values():
            if isinstance(t, Tensor):
                t.to_(x.device)
        made_of: Any = self.plain  # as in PyTorch: models, optimizers and hooks hold this very layer
        self.__class__ = made_of
        del self._made_with
        vars(self).update(vars(made))
        return self(*args, **options)

    def forward(self, *args: Any, **options: Any) -> Any:
        raise MinigradError(f"[{type(self).__name__}] expected to be called itself, not forward")


def _lazy(plain: type[Layer], axis: int, **defaults: Any) -> Any:
    own = [p.replace(default=defaults.get(p.name, p.default)) for p in [*signature(plain).parameters.values()][1:]]
    members = {"__signature__": signature(plain).replace(parameters=own),
               "__doc__": f"`{plain.__name__}` that takes its first argument from the first input.\n\n{_Lazy.__doc__}",
               "plain": plain, "axis": axis, "defaults": defaults, "__module__": __name__}
    return type(f"Lazy{plain.__name__}", (_Lazy, plain), members)


LazyLinear = _lazy(linear.Linear, -1)
LazyConv1d, LazyConv2d, LazyConv3d = (_lazy(kind, -n - 1) for n, kind in enumerate(
    (conv.Conv1d, conv.Conv2d, conv.Conv3d), 1))
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (_lazy(kind, -n - 1) for n, kind in enumerate(
    (conv.ConvTranspose1d, conv.ConvTranspose2d, conv.ConvTranspose3d), 1))
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (_lazy(kind, 1) for kind in (
    norm.BatchNorm1d, norm.BatchNorm2d, norm.BatchNorm3d))
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(kind, -n - 1, affine=True, track_running_stats=True) for n, kind in enumerate(  # PyTorch's, for lazy ones
        (norm.InstanceNorm1d, norm.InstanceNorm2d, norm.InstanceNorm3d), 1))
