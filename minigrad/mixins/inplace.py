"""Methods that end in `_`, and `x += y`: this handle gets the new value, as by `assign`; other handles keep the old.

Nothing that was computed from the old value changes, so that gradients are right whatever is replaced. Only a leaf that
gradients are collected in must not change while they are recorded: its gradient would be that of neither value.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from minigrad.dtype import DType, bool_, int32
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.mixins.base import Base, as_number
from minigrad.mixins.modes import modes
from minigrad.ops import build as B
from minigrad.ops.convert import held
from minigrad.ops.storage import ASSIGN, BUFFER


def _in_place(name: str) -> Callable[..., Any]:
    """The method `name` as one that replaces this tensor's value, and gives back this tensor."""
    def method(self: Any, *args: Any, **options: Any) -> Any:
        self._check_in_place(name + "_")
        if self.dtype is int32:  # the operation alone would give int64
            for number in (*args, *options.values()):
                if type(number) is int:
                    held(name + "_", number, int32)
        return self._become(name + "_", getattr(self, name)(*args, **options))

    method.__name__ = name + "_"
    method.__doc__ = f"`{name}`, of which this tensor is then the result."
    return method


class InPlaceMixin(Base):
    """Results must have this tensor's shape and a type that it can hold. Raises MinigradError for a leaf with
    requires_grad outside `Tensor.no_grad()`, ShapeError and DTypeError for results that do not fit."""

    __slots__ = ()

    def _check_in_place(self, name: str) -> None:
        if modes.now.grad_enabled and self._is_leaf():
            raise MinigradError(f"[{name}] expected anything but a leaf with requires_grad=True while gradients are "
                                f"recorded, got one of shape {list(self.shape)}: write `with Tensor.no_grad():` around "
                                "it, or x = f(x)")

    def _become(self, name: str, value: Any) -> Self:
        if value.shape != self.shape:
            raise ShapeError(f"[{name}] expected a result of shape {list(self.shape)}, got {list(value.shape)}")
        if not _holds(self.dtype, value.dtype):
            raise DTypeError(f"[{name}] expected a result that {self.dtype} can hold, got {value.dtype}: use "
                             f"x = x.{name.removesuffix('_')}(...)")
        node = self.node
        if node.storage is None and node.op is not ASSIGN and node.op is not BUFFER and not self._is_leaf():
            # Nothing is in memory yet: the new value need not take the old one's place there.
            self._rebind(B.cast(value.node, self.dtype), value)
            return self
        return self.assign(value)

    # Filled

    def zero_(self) -> Self:
        """All elements 0."""
        return self.fill_(0)

    def fill_(self, value: Any) -> Self:
        """All elements `value`, a number or a tensor of shape ()."""
        self._check_in_place("fill_")
        if isinstance(value, type(self)) and not value.ndim:
            return self._become("fill_", value.expand(*self.shape).cast(self.dtype))
        number = held("fill_", as_number("fill_", "value", value), self.dtype)
        return self._become("fill_", self.full_like(number))

    def copy_(self, src: Any) -> Self:
        """The values of `src`, which broadcasts and is cast, from whatever device."""
        self._check_in_place("copy_")
        return self.assign(src)

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Normal numbers."""
        self._check_in_place("normal_")
        return self._become("normal_", self.normal(*self.shape, mean=mean, std=std, dtype=self.dtype,
                                                   device=self.device))

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Uniform in [low, high)."""
        self._check_in_place("uniform_")
        return self._become("uniform_", self.uniform(*self.shape, low=low, high=high, dtype=self.dtype,
                                                     device=self.device))

    def exponential_(self, lambd: float = 1.0) -> Self:
        """Exponential numbers of the mean 1 / lambd, all above 0."""
        self._check_in_place("exponential_")
        rate = _above_zero("exponential_", "lambd", lambd)
        x = -(1 - self.rand(*self.shape, dtype=self.dtype.compute, device=self.device)).log().minimum(-1e-30)
        return self._become("exponential_", (x * (1 / rate)).cast(self.dtype))

    def bernoulli_(self, p: float = 0.5) -> Self:
        """1 with probability p, else 0."""
        self._check_in_place("bernoulli_")
        drawn = self.rand(*self.shape, device=self.device) < as_number("bernoulli_", "p", p)
        return self._become("bernoulli_", drawn.cast(self.dtype))

    def random_(self, low: int = 0, high: int | None = None) -> Self:
        """Integers in [low, high); `random_(high)` starts at 0, and `random_()` ends at 2**24 or the largest number."""
        self._check_in_place("random_")
        most = min(1 << 24, int(self.dtype.max) + 1) if self.dtype.is_int else 1 << 24
        low, high = (low, high) if high is not None else (0, low or most)
        return self._become("random_", self.randint(*self.shape, low=low, high=high, dtype=self.dtype,
                                                    device=self.device))

    def geometric_(self, p: float) -> Self:
        """Numbers of trials with probability p up to the first success, from 1 on."""
        share = as_number("geometric_", "p", p)
        if not 0 < share < 1:
            raise ShapeError(f"[geometric_] expected p between 0 and 1, got {p}")
        self._check_in_place("geometric_")
        x = 1 - self.rand(*self.shape, device=self.device)
        return self._become("geometric_", (x.log() * (1 / math.log1p(-share))).floor().cast(self.dtype) + 1)

    def log_normal_(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """exp of normal numbers."""
        self._check_in_place("log_normal_")
        _above_zero("log_normal_", "std", std)
        return self._become("log_normal_", self.normal(*self.shape, mean=mean, std=std, dtype=self.dtype,
                                                       device=self.device).exp())

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Numbers of Cauchy's distribution."""
        self._check_in_place("cauchy_")
        _above_zero("cauchy_", "sigma", sigma)
        angle = (self.rand(*self.shape, dtype=self.dtype.compute, device=self.device) - 0.5) * math.pi
        return self._become("cauchy_", (angle.tan() * sigma + median).cast(self.dtype))

    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Self:
        """A number at [i, i, ...]; with `wrap`, a tall matrix has further diagonals below it, one row apart. Raises
        ShapeError for fewer than 2 axes, and for more than 2 of unequal lengths."""
        shape: Any = self.shape
        if self.ndim < 2 or (self.ndim > 2 and len(set(shape)) > 1):
            raise ShapeError(f"[fill_diagonal_] expected a matrix, or equal lengths, got {list(shape)}")
        self._check_in_place("fill_diagonal_")
        if 0 in shape:
            return self
        step = sum([math.prod(shape[a + 1:]) for a in range(self.ndim)])
        place = self.reshape(-1)._order(0)
        inside = (place % step).eq(0)
        if not (wrap and self.ndim == 2):
            inside = inside.bitwise_and(place < min(shape) * step)
        return self._become("fill_diagonal_", self.masked_fill(inside.reshape(*shape), as_number(
            "fill_diagonal_", "value", fill_value)))

    # Shapes

    def _reshaped(self, name: str, value: Any) -> Self:
        """Makes this handle stand for the same elements in another shape."""
        if self._is_leaf():
            raise MinigradError(f"[{name}] expected anything but a leaf with requires_grad=True, got one of shape "
                                f"{list(self.shape)}")
        self._rebind(value.node, value)
        return self

    def squeeze_(self, dim: Any = None) -> Self:
        """Without axes of length 1."""
        return self._reshaped("squeeze_", self.squeeze(dim))

    def unsqueeze_(self, dim: int) -> Self:
        """With a new axis of length 1."""
        return self._reshaped("unsqueeze_", self.unsqueeze(dim))

    def transpose_(self, dim0: int, dim1: int) -> Self:
        """With two axes exchanged."""
        return self._reshaped("transpose_", self.transpose(dim0, dim1))

    def t_(self) -> Self:
        """A matrix as its transpose."""
        return self._reshaped("t_", self.t())

    swapaxes_ = swapdims_ = transpose_

    def detach_(self) -> Self:
        """Forgets what this tensor was made from."""
        return self.replace(self.detach())

    # What has a method of its own

    abs_, neg_, sign_, square_ = (_in_place(n) for n in ("abs", "neg", "sign", "square"))
    sqrt_, rsqrt_, reciprocal_ = (_in_place(n) for n in ("sqrt", "rsqrt", "reciprocal"))
    exp_, log_, log1p_, expm1_ = (_in_place(n) for n in ("exp", "log", "log1p", "expm1"))
    sin_, cos_, tanh_, sigmoid_ = (_in_place(n) for n in ("sin", "cos", "tanh", "sigmoid"))
    floor_, ceil_, trunc_, round_ = (_in_place(n) for n in ("floor", "ceil", "trunc", "round"))
    relu_, leaky_relu_, erfinv_ = (_in_place(n) for n in ("relu", "leaky_relu", "erfinv"))
    add_, sub_, mul_, div_ = (_in_place(n) for n in ("add", "sub", "mul", "div"))
    pow_, remainder_, floor_divide_ = (_in_place(n) for n in ("pow", "remainder", "floor_divide"))
    clamp_, clip_, clamp_min_, clamp_max_ = (_in_place(n) for n in ("clamp", "clip", "clamp_min", "clamp_max"))
    lerp_, addcmul_, addcdiv_, addmm_ = (_in_place(n) for n in ("lerp", "addcmul", "addcdiv", "addmm"))
    masked_fill_, masked_scatter_ = (_in_place(n) for n in ("masked_fill", "masked_scatter"))
    index_add_, index_copy_, index_fill_ = (_in_place(n) for n in ("index_add", "index_copy", "index_fill"))
    scatter_, scatter_add_, scatter_reduce_ = (_in_place(n) for n in ("scatter", "scatter_add", "scatter_reduce"))
    tril_, triu_, nan_to_num_ = (_in_place(n) for n in ("tril", "triu", "nan_to_num"))
    logical_not_, bitwise_and_, bitwise_or_ = (_in_place(n) for n in ("logical_not", "bitwise_and", "bitwise_or"))

    acos_, asin_, atan_, acosh_, asinh_, atanh_ = (_in_place(n) for n in (
        "acos", "asin", "atan", "acosh", "asinh", "atanh"))
    arccos_, arcsin_, arctan_, arccosh_, arcsinh_, arctanh_ = acos_, asin_, atan_, acosh_, asinh_, atanh_
    tan_, sinh_, cosh_, sinc_ = (_in_place(n) for n in ("tan", "sinh", "cosh", "sinc"))
    polygamma_, mvlgamma_ = _in_place("polygamma"), _in_place("mvlgamma")
    erf_, erfc_, lgamma_, digamma_ = (_in_place(n) for n in ("erf", "erfc", "lgamma", "digamma"))
    exp2_, log2_, log10_, logit_ = (_in_place(n) for n in ("exp2", "log2", "log10", "logit"))
    frac_, fix_, sgn_, deg2rad_, rad2deg_ = (_in_place(n) for n in ("frac", "fix", "sgn", "deg2rad", "rad2deg"))
    absolute_, negative_, subtract_, multiply_ = (_in_place(n) for n in (
        "absolute", "negative", "subtract", "multiply"))
    divide_, true_divide_, fmod_, float_power_ = (_in_place(n) for n in (
        "divide", "true_divide", "fmod", "float_power"))
    atan2_, hypot_, copysign_, nextafter_ = (_in_place(n) for n in ("atan2", "hypot", "copysign", "nextafter"))
    arctan2_, xlogy_, heaviside_, ldexp_ = atan2_, *(_in_place(n) for n in ("xlogy", "heaviside", "ldexp"))
    gcd_, lcm_, cumsum_, cumprod_ = (_in_place(n) for n in ("gcd", "lcm", "cumsum", "cumprod"))
    lt_, le_, gt_, ge_, eq_, ne_ = (_in_place(n) for n in ("lt", "le", "gt", "ge", "eq", "ne"))
    less_, less_equal_, greater_, greater_equal_, not_equal_ = (_in_place(n) for n in (
        "less", "less_equal", "greater", "greater_equal", "not_equal"))
    logical_and_, logical_or_, logical_xor_ = (_in_place(n) for n in ("logical_and", "logical_or", "logical_xor"))
    bitwise_xor_, bitwise_not_ = _in_place("bitwise_xor"), _in_place("bitwise_not")
    bitwise_left_shift_, bitwise_right_shift_ = _in_place("bitwise_left_shift"), _in_place("bitwise_right_shift")
    addr_, addmv_, addbmm_, baddbmm_ = (_in_place(n) for n in ("addr", "addmv", "addbmm", "baddbmm"))
    put_, index_put_, index_reduce_, renorm_ = (_in_place(n) for n in ("put", "index_put", "index_reduce", "renorm"))

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ifloordiv__, __imod__, __ipow__ = floor_divide_, remainder_, pow_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
    __ilshift__, __irshift__ = bitwise_left_shift_, bitwise_right_shift_


def _above_zero(name: str, what: str, value: Any) -> Any:
    number = as_number(name, what, value)
    if not number > 0:
        raise ShapeError(f"[{name}] expected {what} above 0, got {value}")
    return number


def _holds(dtype: DType, other: DType) -> bool:
    """True where results of type `other` may be kept in `dtype`: bool < integers < floats."""
    rank = {"b": 0, "u": 1, "i": 1, "f": 2}
    return rank[other.kind] <= rank[dtype.kind] or other is bool_


def result_of(tensor: Any, name: str, value: Any, inplace: bool) -> Any:
    """`value`, which the tensor is then too with `inplace`, as PyTorch's layers have it."""
    if not inplace:
        return value
    tensor._check_in_place(name)
    return tensor._become(name, value)
