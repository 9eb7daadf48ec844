"""The base of all mixins: the handle's fields, wrapping of Nodes, broadcasting and promotion."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np

from minigrad.dtype import DType, bool_, float32, float64, int32, int64, number_type, promote, uint64
from minigrad.errors import DTypeError, OutOfRangeError, ShapeError
from minigrad.expr import Expr, Index, bounds
from minigrad.handles import ask, asked, changed, changed_by_user, changes, forget, handles
from minigrad.mixins.modes import WithModes, modes
from minigrad.ops import build as B
from minigrad.ops.convert import held
from minigrad.ops.identity import own
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape
from minigrad.ops.storage import DETACH
from minigrad.runtime.registry import get_device

if TYPE_CHECKING:
    from minigrad.mixins.operations import Operations
else:
    Operations = object

Scalar = bool | int | float
_WRAPPING = frozenset({"add", "sub", "mul", "and", "or", "xor"})
"""Operations of integers whose lower bits are those of the operands' lower bits."""
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_CHECK_EVERY = 256  # levels of depth after which the size of a handle's graph is looked at again


def join_shapes(shapes: Iterable[Shape]) -> str:
    return " and ".join([str(list(s)) for s in shapes])


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape that all of them broadcast to. Raises ShapeError if there is none."""
    result = _broadcast(shapes)
    if result is None:
        raise ShapeError(f"[{name}] expected shapes that broadcast, got {join_shapes(shapes)}")
    return result


@lru_cache(maxsize=4096)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    rank = max(map(len, shapes))
    result: list[Index] = []
    for i in range(-rank, 0):
        dims = {s[i] for s in shapes if len(s) >= -i and s[i] != 1}
        if len(dims) > 1:
            return None
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def as_axes(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted axes from 0, all of them for None. Raises OutOfRangeError, and ShapeError for axes named twice."""
    if axis is None:
        return tuple(range(rank))
    try:
        given = tuple([index(a) for a in axis]) if isinstance(axis, Sequence) else (index(axis),)
    except TypeError:
        raise ShapeError(f"[{name}] expected an integer or several as axis, got {axis!r}") from None
    count = max(rank, 1)  # of a number, axis 0 and -1 are none
    axes = tuple(sorted([a + count if a < 0 else a for a in given]))
    outside = any(not 0 <= a < count for a in axes)
    if outside or len(set(axes)) != len(axes):
        error = OutOfRangeError if outside else ShapeError
        raise error(f"[{name}] expected distinct axes in {-count}..{count - 1}, got {axis}")
    return axes if rank else ()


def as_axis(name: str, axis: int, rank: int) -> int:
    """One axis counted from 0. Raises OutOfRangeError, and ShapeError for what is no integer."""
    place = as_index(axis)
    if not isinstance(place, int) or not -rank <= place < rank:
        error = OutOfRangeError if isinstance(place, int) else ShapeError
        if not rank:
            raise error(f"[{name}] expected a tensor with axes, got one of shape [] and axis {axis!r}")
        raise error(f"[{name}] expected an axis in {-rank}..{rank - 1}, got {axis!r}")
    return place % rank


def as_position(name: str, item: Index, shape: Shape, axis: int) -> Index:
    """An index along an axis of `shape`, counted from 0. Raises OutOfRangeError."""
    n = shape[axis]
    if type(n) is type(item) is int and 0 <= item < n:
        return item
    place = n + item if isinstance(item, int) and item < 0 else item
    if bounds(place)[1] < 0 or bounds(place - n)[0] >= 0:
        raise OutOfRangeError(f"[{name}] expected an index in {-n}..{n - 1} along axis {axis} of {list(shape)}, "
                              f"got {item}")
    return place


def as_shape(args: tuple[Any, ...]) -> Shape:
    """A shape from `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    try:
        return tuple([d if isinstance(d, Expr) else index(d) for d in args])
    except TypeError:
        raise ShapeError(f"[shape] expected dims as integers, got {list(args)}") from None


def check_shape(name: str, shape: Shape) -> Shape:
    """`shape`, or a ShapeError if one of its dims may not be negative and is."""
    if any(bounds(d)[1] < 0 for d in shape):
        raise ShapeError(f"[{name}] expected dims of 0 or more, got {list(shape)}")
    return shape


def as_tensor(name: str, value: Any) -> Any:
    """`value`, which must be a tensor. Raises DTypeError."""
    if not isinstance(value, Base):
        kind = type(value)
        other = kind.__name__ if kind.__name__ != "Tensor" else f"a {kind.__module__.partition('.')[0]}.Tensor"
        raise DTypeError(f"[{name}] expected a Tensor, got {other}")
    return value


def is_index(value: Any) -> bool:
    """True for an integer, Python's, numpy's, a symbolic one or one in a tensor."""
    return as_index(value) is not None


def as_index(value: Any) -> Any:
    """`value` as an integer of Python or a symbolic one, None if it is none."""
    if isinstance(value, (int, Expr)):
        return value
    try:
        return index(value)
    except (TypeError, DTypeError, ShapeError):
        return None


def as_count(name: str, what: str, value: Any, least: int = 0) -> Any:
    """`value`, an integer of `least` or more or a symbolic one. Raises ShapeError."""
    count = as_index(value)
    if count is None or (isinstance(count, int) and count < least):
        raise ShapeError(f"[{name}] expected {what} as an integer of {least} or more, got {value!r}")
    return count if isinstance(count, Expr) else index(count)


def as_number(name: str, what: str, value: Any) -> Any:
    """`value`, a number of Python, numpy or in a tensor of shape (), as a Python one. Raises DTypeError, for a tensor
    whose gradient would end here, too."""
    if isinstance(value, (np.generic, Base)) and value.shape == ():
        if isinstance(value, Base) and value.needs_grad and modes.now.grad_enabled:
            raise DTypeError(f"[{name}] expected {what} as a number, got a tensor with requires_grad=True, to which no "
                             "gradient goes here: give its .detach()")
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return value
    raise DTypeError(f"[{name}] expected {what} as a number, got {value!r}")


def as_parameter(name: str, what: str, value: Any) -> Any:
    """`as_number`, or a tensor as it is where a gradient goes to it."""
    wanted = isinstance(value, Base) and value.needs_grad and modes.now.grad_enabled
    return value if wanted else as_number(name, what, value)


def scalar_dtype(dtype: DType, value: Scalar | Index) -> DType:
    """The type of an operation between a tensor of `dtype` and a Python number: the tensor's where it can be, int64
    for int32, which stands for PyTorch's int64, and an integer beyond it."""
    if isinstance(value, bool) or dtype.is_float:
        return dtype
    if isinstance(value, float):
        return float32
    if dtype is not bool_ and dtype is not int32:
        return dtype
    kind = number_type(value) if isinstance(value, int) else int32
    return int64 if kind is uint64 and dtype is int32 else kind


class Base(Operations, metaclass=WithModes):
    """A handle on a Node, whose fields the engine, captures and autograd read and set, too.

    `node`: the Node that stands for the value. `lazy_node`: the one that stood for it until it was realized.
    `needs_grad`: whether gradients flow to it, or a leaf's hooks. `kept_grad`: a leaf's gradient, once there.

    Code that changes a field of a handle that others know, or keeps what it found there, calls `handles.changed`
    afterwards; `lazydata`, `requires_grad` and `grad` do so by themselves.
    """

    __slots__ = ("node", "needs_grad", "kept_grad", "lazy_node", "__weakref__")
    node: Node
    needs_grad: Any
    kept_grad: Self | None
    lazy_node: ref[Node] | None

    @classmethod
    def _wrap(cls, node: Node, *parents: Base) -> Self:
        """A handle on the result of an operation over `parents`."""
        self = object.__new__(cls)
        if changes.mark is node.serial:  # `own`, without the call
            node.owned = True
        else:
            node = own(node)
        self.node = node
        self.kept_grad = self.lazy_node = None
        self.needs_grad = False
        for p in parents:
            if p.needs_grad:
                self.needs_grad = records = modes.now.grad_enabled
                if not records and node.dtype.is_float:  # gradients of what is made of it end here
                    self.node = own(apply(DETACH, node, id=0))
                break
        handle = ref(self, forget)  # `handles.register` and `changed`, without the calls
        handles[handle] = None
        changes.mark = handle  # another object than any before
        if parents and node.depth > _CHECK_EVERY:
            self._bound_graph_after(max([p.node.depth for p in parents]))
        return self

    def _bound_graph_after(self, depth: int) -> None:
        """Looks at the size of the graph where its depth passes a multiple of some number of levels."""
        if depth // _CHECK_EVERY != self.node.depth // _CHECK_EVERY:
            self._bound_graph()

    @property
    def grad(self) -> Self | None:
        """The gradient of a leaf, None until there is one."""
        if asked:
            ask(self)
        if self.kept_grad is not None:
            changed()  # somebody may keep it
        return self.kept_grad

    @grad.setter
    def grad(self, gradient: Self | None) -> None:
        if gradient is not None and as_tensor("grad", gradient).shape != self.shape:
            raise ShapeError(f"[grad] expected a gradient of shape {list(self.shape)}, got {list(gradient.shape)}")
        self.kept_grad = gradient
        changed_by_user(self)

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def device(self) -> str:
        return self.node.device

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    def numel(self) -> Index:
        return B.numel(self.node.shape)

    def _operand(self, other: Any) -> Any:
        """`other` as a handle on this tensor's device; Python numbers and symbolic ints stay as they are."""
        if isinstance(other, (Base, bool, int, float, Expr)):
            return other
        if isinstance(other, np.generic):
            return other.item()
        return type(self)._from_data(other, None, self.device)

    def _pair(self, name: str, other: Any) -> tuple[Node, Node, tuple[Base, ...]]:
        """Both operands as Nodes of one shape and dtype, and the handles they come from."""
        x = self.node
        if not isinstance(other, Base):
            other = self._operand(other)
            if not isinstance(other, Base):
                return *self._with_number(name, other), (self,)
        y = other.node
        if x.type is y.type:
            return x, y, (self, other)
        if x.dtype is not y.dtype:
            dtype = promote(x.dtype, y.dtype)
            x, y = B.cast(x, dtype), B.cast(y, dtype)
        if x.shape != y.shape:
            shape = broadcast_shapes(name, x.shape, y.shape)
            x, y = B.expand(x, shape), B.expand(y, shape)
        return x, y, (self, other)

    def _with_number(self, name: str, number: Scalar | Index) -> tuple[Node, Node]:
        """`_pair` of this tensor and a Python number."""
        x, dtype = self.node, scalar_dtype(self.dtype, number)
        if type(number) is int and dtype.is_int and not dtype.min <= number <= dtype.max:
            if name in _COMPARISONS:  # all elements are less than it, or all are greater
                return B.full(0, x.shape, int32, x.device), B.full(1 if number > 0 else -1, x.shape, int32, x.device)
            if name == "where":
                held(name, number, dtype)  # which may count from the end of an unsigned type
            elif name not in _WRAPPING or not -1 << 63 <= number < 1 << 64:
                raise DTypeError(f"[{name}] expected an integer that {dtype} can hold, got {number}")
        return B.cast(x, dtype), B.full(number, x.shape, dtype, x.device)

    def _binary(self, name: str, other: Any, build: Callable[[Node, Node], Node], reverse: bool = False) -> Self:
        x, y, parents = self._pair(name, other)
        return self._wrap(build(y, x) if reverse else build(x, y), *parents)

    def _unary(self, build: Callable[[Node], Node]) -> Self:
        return self._wrap(build(self.node), self)

    def _as_float(self) -> Self:
        """This tensor, integers and bools as float32."""
        return self if self.dtype.is_float else self._wrap(B.cast(self.node, float32), self)

    def _in_double(self) -> Self:
        """These numbers as float64, as float32 on a device without it; float64 stays."""
        x = self._as_float()
        wide = float64 if "fp64" in get_device(x.node.device).target.features else x.dtype.compute
        return x if x.dtype is wide else self._wrap(B.cast(x.node, wide), x)


def flat(cls: type) -> type:
    """The class with what it inherits from mixins as its own, over `Base` alone.

    Python visits every base of an object's class, twice, when the object dies, and once when garbage is collected: of
    thirty that takes longer than everything else about a handle, once a kernel has had the caches.
    """
    found: dict[str, Any] = {}
    for c in reversed(cls.__mro__[:cls.__mro__.index(Base)]):
        found.update(vars(c))
    return type(cls)(cls.__name__, (Base,), found)
