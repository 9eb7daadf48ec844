"""Padding layers over the last one to three axes."""
from __future__ import annotations

from typing import ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_number, as_tensor, is_index
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


class _Pad(Layer):
    """`padding` is one integer for all sides, or (left, right, top, bottom, front, back), the last axis first; negative
    numbers cut. Raises ShapeError for another count."""

    axes: ClassVar[int]
    mode: ClassVar[str]
    value: float = 0.0

    def __init__(self, padding: int | tuple[int, ...]):
        sides = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * (2 * self.axes)
        if len(sides) != 2 * self.axes or not all(is_index(p) and not isinstance(p, bool) for p in sides):
            raise ShapeError(f"[{type(self).__name__}] expected one integer or {2 * self.axes} of them, "
                             f"got {padding!r}")
        self.padding = sides

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor(type(self).__name__, x).pad(self.padding, self.mode, self.value)


class _ConstantPad(_Pad):
    """`value` around the last axes; `padding` as one integer or one per side, the last axis first."""

    mode = "constant"

    def __init__(self, padding: int | tuple[int, ...], value: float):
        super().__init__(padding)
        self.value = as_number(type(self).__name__, "value", value)


class ConstantPad1d(_ConstantPad):
    __doc__ = _ConstantPad.__doc__
    axes = 1


class ConstantPad2d(_ConstantPad):
    __doc__ = _ConstantPad.__doc__
    axes = 2


class ConstantPad3d(_ConstantPad):
    __doc__ = _ConstantPad.__doc__
    axes = 3


class ZeroPad1d(_Pad):
    """Zeros around the last axes; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 1, "constant"


class ZeroPad2d(_Pad):
    """Zeros around the last axes; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 2, "constant"


class ZeroPad3d(_Pad):
    """Zeros around the last axes; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 3, "constant"


class ReflectionPad1d(_Pad):
    """Reflections of the elements inside at the edge; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Reflections of the elements inside at the edge; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """Reflections of the elements inside at the edge; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The edge repeated; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edge repeated; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The edge repeated; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The elements at the other end; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The elements at the other end; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The elements at the other end; `padding` as one integer or one per side, the last axis first."""

    axes, mode = 3, "circular"
