"""Calls of every function of the array API standard, to be made in two namespaces: names, kinds of operands, arguments.

Operands come from `values`: random numbers of each type in shapes with and without elements, and for floats NaN,
infinities and both zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BOOL, INTS, UINTS = ("bool",), ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
FLOATS, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
REAL = INTS + UINTS + FLOATS
ALL = BOOL + REAL + COMPLEX
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (2, 3), (3, 0, 2), (2, 1, 4))
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.0, 1e-3)


@dataclass(frozen=True)
class Case:
    """`call(xp, *arrays)` of arrays made of `arrays`; `part` is "", or names a namespace of an extension."""

    name: str
    call: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    what: str
    loose: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.what}"


def values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Small numbers, so that integers do not overflow where the standard leaves open what happens."""
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in UINTS:
        return rng.integers(0, 5, shape).astype(name)
    if name in INTS:
        return rng.integers(-4, 5, shape).astype(name)
    real = rng.standard_normal(shape) * 2
    return np.asarray(real + 1j * rng.standard_normal(shape) if name in COMPLEX else real).astype(name)


def _rng(*of: Any) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, str(of))))


UNARY = {
    **dict.fromkeys(
        "exp expm1 log log1p log2 log10 sqrt reciprocal sin cos tan asin acos atan sinh cosh tanh "
        "asinh acosh atanh".split(),
        FLOATS + COMPLEX,
    ),
    **dict.fromkeys("ceil floor trunc".split(), REAL),
    **dict.fromkeys("abs negative positive square sign conj real isnan isinf isfinite round".split(), REAL + COMPLEX),
    "signbit": FLOATS,
    "imag": COMPLEX,
    "logical_not": BOOL,
    "bitwise_invert": BOOL + INTS + UINTS,
}
BINARY = {
    **dict.fromkeys("add subtract multiply".split(), REAL + COMPLEX),
    "divide": FLOATS + COMPLEX,
    **dict.fromkeys("maximum minimum less less_equal greater greater_equal".split(), REAL),
    **dict.fromkeys("equal not_equal".split(), ALL),
    **dict.fromkeys("floor_divide remainder pow".split(), REAL),
    **dict.fromkeys("atan2 copysign hypot logaddexp nextafter".split(), FLOATS),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), BOOL),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), BOOL + INTS + UINTS),
    **dict.fromkeys("bitwise_left_shift bitwise_right_shift".split(), INTS + UINTS),
}
REDUCED = {
    **dict.fromkeys(("sum", "prod"), REAL + COMPLEX),
    "mean": FLOATS + COMPLEX,
    "var": FLOATS,
    "std": FLOATS,
    "max": REAL,
    "min": REAL,
    "all": ALL,
    "any": ALL,
    "count_nonzero": ALL,
}
OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], tuple[str, ...]]] = {
    "+": (lambda a, b: a + b, REAL),
    "-": (lambda a, b: a - b, REAL),
    "*": (lambda a, b: a * b, REAL + COMPLEX),
    "/": (lambda a, b: a / b, FLOATS + COMPLEX),
    "//": (lambda a, b: a // b, FLOATS),
    "%": (lambda a, b: a % b, FLOATS),
    "**": (lambda a, b: abs(a) ** b, FLOATS),
    "&": (lambda a, b: a & b, BOOL + INTS),
    "|": (lambda a, b: a | b, INTS),
    "^": (lambda a, b: a ^ b, INTS),
    "==": (lambda a, b: a == b, REAL),
    "!=": (lambda a, b: a != b, REAL),
    "<": (lambda a, b: a < b, REAL),
    ">=": (lambda a, b: a >= b, REAL),
}


def _function(name: str, **options: Any) -> Callable[..., Any]:
    return lambda xp, *arrays: getattr(xp, name)(*arrays, **options)


def elementwise() -> Iterator[Case]:
    """Each function of one and of two elements, of numbers, mixed types and special values."""
    for name, kinds in UNARY.items():
        for kind in kinds:
            for shape in SHAPES[:4]:
                yield Case(name, _function(name), (values(_rng(name, kind), shape, kind),), f"{kind}{list(shape)}")
        for kind in set(FLOATS) & set(kinds):
            yield Case(name, _function(name), (np.asarray(SPECIAL, kind),), f"{kind}-special")
    for name, kinds in BINARY.items():
        for kind in kinds:
            a, b = values(_rng(name), (2, 3), kind), values(_rng(kind), (3,), kind)
            if kind not in FLOATS + COMPLEX and name in (
                "floor_divide",
                "remainder",
                "pow",
                "bitwise_left_shift",
                "bitwise_right_shift",
            ):
                b = abs(b) + np.asarray(1, kind)
            yield Case(name, _function(name), (a, b), kind)
            yield Case(name, _function(name), (a[:, :0], b[:0]), f"{kind}-empty")
            if kind != "bool":
                number = 2 if kind not in COMPLEX else 2.5 - 1j
                yield Case(
                    name, lambda xp, x, name=name, number=number: getattr(xp, name)(x, number), (a,), f"{kind}-number"
                )
                wide = "int64" if kind in UINTS[:3] else kinds[-1] if kind in FLOATS + COMPLEX else "int16"
                if wide in kinds and kind != "uint64":
                    yield Case(name, _function(name), (a, b.astype(wide)), f"{kind}-{wide}")
        for kind in set(FLOATS) & set(kinds):
            a, b = np.meshgrid(SPECIAL, SPECIAL)
            yield Case(name, _function(name), (a.astype(kind), b.astype(kind)), f"{kind}-special")
    for name, (call, kinds) in OPERATORS.items():
        for kind in kinds:
            a, b = values(_rng(name), (3, 4), kind), values(_rng(kind), (4,), kind)
            yield Case(f"operator {name}", lambda xp, a, b, call=call: call(a, b), (a, b), kind)
            if kind != "bool":
                yield Case(f"operator {name}", lambda xp, a, call=call: call(a, 3), (a,), f"{kind}-number")
                yield Case(
                    f"operator {name}", lambda xp, a, call=call: call(3, a + a * a + 1), (a,), f"{kind}-reflected"
                )
    for kind in FLOATS + INTS:
        x, low = values(_rng("clip"), (4, 5), kind), values(_rng(kind), (5,), kind)
        yield Case("clip", lambda xp, x: xp.clip(x, -1, 2), (x,), kind)
        yield Case("clip", lambda xp, x, low: xp.clip(x, low), (x, low), kind)
        yield Case("clip", lambda xp, x, low: xp.clip(x, max=low), (x, low), kind)
    for kind in ALL:
        a, b, c = values(_rng(kind), (3, 4), kind), values(_rng(1), (4,), kind), values(_rng(2), (3, 1), "bool")
        yield Case("where", lambda xp, c, a, b: xp.where(c, a, b), (c, a, b), kind)


def reductions() -> Iterator[Case]:
    """Each reduction along no axis, one, several and all, of empty shapes too; sums so far; differences."""
    for name, kinds in REDUCED.items():
        for kind in kinds:
            for shape in SHAPES:
                axes = [None, *([0, -1] if shape else []), *([(0, 1)] if len(shape) > 1 else [])]
                for axis in axes:
                    if (name in ("max", "min") and 0 in shape) or (name in ("mean", "var", "std") and 0 in shape):
                        continue
                    for keepdims in (False, True):
                        yield Case(
                            name,
                            _function(name, axis=axis, keepdims=keepdims),
                            (values(_rng(name, kind), shape, kind),),
                            f"{kind}{list(shape)}-{axis}-{keepdims}",
                        )
    x = values(_rng("var"), (4, 5), "float64")
    for correction in (0, 1, 0.5, 2.0):
        for name in ("var", "std"):
            yield Case(name, _function(name, axis=0, correction=correction), (x,), f"correction-{correction}")
    for name in ("sum", "prod", "max", "min", "mean", "any", "all"):
        yield Case(name, _function(name, axis=1), (np.asarray(SPECIAL).reshape(2, 6),), "special")
    for kind in REAL + COMPLEX:
        x = values(_rng(kind), (2, 3, 4), kind)
        for name in ("cumulative_sum", "cumulative_prod"):
            for axis in (0, 1, -1):
                for initial in (False, True):
                    yield Case(
                        name, _function(name, axis=axis, include_initial=initial), (x,), f"{kind}-{axis}-{initial}"
                    )
            yield Case(name, _function(name), (x[0, 0],), f"{kind}-flat")
            yield Case(name, _function(name, include_initial=True), (x[0, 0, :0],), f"{kind}-empty")
        for n in (0, 1, 2):
            yield Case("diff", _function("diff", n=n, axis=1), (x,), f"{kind}-{n}")
        yield Case("diff", lambda xp, x: xp.diff(x, prepend=x, append=x), (x,), f"{kind}-longer")
        for name in ("sum", "prod", "cumulative_sum", "cumulative_prod"):
            wide = {"c": "complex128", "f": "float64"}.get(x.dtype.kind, "int64")
            yield Case(
                name,
                lambda xp, x, name=name, wide=wide: getattr(xp, name)(x, axis=0, dtype=getattr(xp, wide)),
                (x,),
                f"{kind}-dtype",
            )


def searches() -> Iterator[Case]:
    """Positions, order, sets."""
    for kind in REAL:
        for shape in (*SHAPES[2:4], (2, 3, 4)):
            x = values(_rng(kind), shape, kind)
            for axis in (None, 0, -1):
                for name in ("argmax", "argmin"):
                    yield Case(name, _function(name, axis=axis), (x,), f"{kind}{list(shape)}-{axis}")
                    yield Case(
                        name, _function(name, axis=axis, keepdims=True), (x,), f"{kind}{list(shape)}-{axis}-keep"
                    )
                if axis is not None:
                    for down in (False, True):
                        yield Case(
                            "sort", _function("sort", axis=axis, descending=down), (x,), f"{kind}{list(shape)}-{down}"
                        )
                        if not down:  # the oracle's stable descending order is its own
                            yield Case("argsort", _function("argsort", axis=axis), (x,), f"{kind}{list(shape)}")
        line, x = np.sort(values(_rng(kind), (9,), kind)), values(_rng(3), (2, 5), kind)
        for side in ("left", "right"):
            yield Case("searchsorted", _function("searchsorted", side=side), (line, x), f"{kind}-{side}")
        order = np.argsort(-line.astype(float))
        yield Case(
            "searchsorted",
            lambda xp, line, x, order: xp.searchsorted(line, x, sorter=xp.argsort(line)),
            (line[order], x, order),
            f"{kind}-sorter",
        )
        yield Case("sort", _function("sort"), (x[:, :0],), f"{kind}-empty")
    for kind in ALL:
        for shape in ((7,), (2, 6), (0,), (0, 3)):
            x = values(_rng(kind), shape, kind)
            yield Case("nonzero", _function("nonzero"), (x,), f"{kind}{list(shape)}")
            for name in ("unique_counts", "unique_inverse", "unique_values", "unique_all"):
                x = (
                    values(_rng(kind), shape, kind)
                    if kind not in FLOATS + COMPLEX
                    else values(_rng(kind), shape, "int8").astype(kind)
                )
                yield Case(name, _function(name), (x,), f"{kind}{list(shape)}")
    x = np.asarray([np.nan, 1, np.nan, -0.0, 0.0, 1, np.inf])
    for name in ("unique_counts", "unique_inverse", "unique_values", "unique_all"):
        yield Case(name, _function(name), (x,), "nan")


def movements() -> Iterator[Case]:
    """Shapes, axes, joining, indices."""
    calls: list[tuple[str, Callable[..., Any]]] = [
        ("broadcast_to", lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4))),
        ("broadcast_arrays", lambda xp, x: xp.broadcast_arrays(x, x[:1, :, :], x[0, 0, :])),
        ("concat", lambda xp, x: xp.concat([x, x[:, :, :0], x], axis=2)),
        ("concat", lambda xp, x: xp.concat((x, x[0, :, :]), axis=None)),
        ("expand_dims", lambda xp, x: xp.expand_dims(x, axis=1)),
        ("expand_dims", lambda xp, x: xp.expand_dims(x, axis=-1)),
        ("flip", lambda xp, x: xp.flip(x)),
        ("flip", lambda xp, x: xp.flip(x, axis=(0, -1))),
        ("moveaxis", lambda xp, x: xp.moveaxis(x, 0, -1)),
        ("moveaxis", lambda xp, x: xp.moveaxis(x, (0, 2), (1, 0))),
        ("permute_dims", lambda xp, x: xp.permute_dims(x, (2, 0, 1))),
        ("repeat", lambda xp, x: xp.repeat(x, 2)),
        ("repeat", lambda xp, x: xp.repeat(x, 3, axis=1)),
        ("repeat", lambda xp, x: xp.repeat(x, xp.asarray([1, 0, 2]), axis=1)),
        ("reshape", lambda xp, x: xp.reshape(x, (4, -1))),
        ("reshape", lambda xp, x: xp.reshape(x, (24,), copy=True)),
        ("roll", lambda xp, x: xp.roll(x, 5)),
        ("roll", lambda xp, x: xp.roll(x, -1, axis=2)),
        ("roll", lambda xp, x: xp.roll(x, (1, 2), axis=(0, -1))),
        ("roll", lambda xp, x: xp.roll(x, 1, axis=(0, 1))),
        ("squeeze", lambda xp, x: xp.squeeze(x[:1, :, 1:2], axis=(0, 2))),
        ("stack", lambda xp, x: xp.stack([x, x], axis=1)),
        ("stack", lambda xp, x: xp.stack((x, x), axis=-1)),
        ("tile", lambda xp, x: xp.tile(x, (2, 1, 2))),
        ("tile", lambda xp, x: xp.tile(x, (2, 2, 1, 1))),
        ("unstack", lambda xp, x: xp.unstack(x)),
        ("unstack", lambda xp, x: xp.unstack(x, axis=-1)),
        ("take", lambda xp, x: xp.take(x, xp.asarray([2, 0, -1]), axis=1)),
        ("take", lambda xp, x: xp.take(x[0, 0, :], xp.asarray([3, 3]))),
        ("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[[1, 0, -1]]]), axis=2)),
        ("meshgrid", lambda xp, x: xp.meshgrid(x[0, 0, :], x[0, :, 0])),
        ("meshgrid", lambda xp, x: xp.meshgrid(x[0, 0, :], x[0, :, 0], x[:, 0, 0], indexing="ij")),
        ("tril", lambda xp, x: xp.tril(x, k=1)),
        ("triu", lambda xp, x: xp.triu(x, k=-1)),
        ("matrix_transpose", lambda xp, x: xp.matrix_transpose(x)),
        ("mT", lambda xp, x: x.mT),
        ("T", lambda xp, x: x[0, ...].T),
        ("getitem", lambda xp, x: x[1, ::2, -1]),
        ("getitem", lambda xp, x: x[..., ::-1]),
        ("getitem", lambda xp, x: x[None, 0, ..., 1:3]),
        ("getitem", lambda xp, x: x[x == x]),
        ("getitem", lambda xp, x: x[xp.asarray([1, 0]), xp.asarray([2, -1]), 0]),
        ("setitem", lambda xp, x: _set(xp, x, (0, ..., 1), 1)),
        ("setitem", lambda xp, x: _set(xp, x, x == x, x[0, 0, 0])),
        ("zeros_like", lambda xp, x: xp.zeros_like(x)),
        ("ones_like", lambda xp, x: xp.ones_like(x)),
        ("full_like", lambda xp, x: xp.full_like(x, 1)),
        ("astype", lambda xp, x: xp.astype(x, xp.complex128)),
        ("asarray", lambda xp, x: xp.asarray(x, copy=True)),
        ("shape", lambda xp, x: xp.asarray([*x.shape, x.ndim, x.size])),
    ]
    for kind in ALL:
        x = values(_rng(kind), (2, 3, 4), kind)
        for k, (name, call) in enumerate(calls):
            if not (kind == "bool" and name == "full_like"):
                yield Case(name, call if name != "setitem" or kind != "bool" else _set_bool, (x,), f"{kind}-{k}")
        for to in ALL:
            if kind not in COMPLEX or to in COMPLEX:
                given = abs(x) if to in UINTS and kind not in COMPLEX + BOOL else x
                yield Case("astype", lambda xp, x, to=to: xp.astype(x, getattr(xp, to)), (given,), f"{kind}-{to}")


def _set(xp: Any, x: Any, key: Any, value: Any) -> Any:
    y = xp.asarray(x, copy=True)
    y[key] = value
    return y


def _set_bool(xp: Any, x: Any) -> Any:
    return _set(xp, x, (0, ...), True)


def products() -> Iterator[Case]:
    """Products of matrices of all types."""
    for kind in REAL + COMPLEX:

        def of(*shape: int, kind: str = kind) -> np.ndarray:
            return values(_rng(shape), shape, kind)

        for a, b in (
            ((3, 4), (4, 5)),
            ((4,), (4,)),
            ((2, 3, 4), (4,)),
            ((4,), (4, 2)),
            ((2, 1, 3, 4), (5, 4, 2)),
            ((3, 0), (0, 2)),
        ):
            yield Case("matmul", _function("matmul"), (of(*a), of(*b)), f"{kind}{list(a)}{list(b)}")
        for axes in (0, 1, 2, ((0,), (1,)), ((1, 0), (0, 1))):
            a, b = ((3, 4), (4, 3)) if axes in (0, 1, ((0,), (1,)), ((1, 0), (0, 1))) else ((2, 3, 4), (3, 4))
            yield Case("tensordot", _function("tensordot", axes=axes), (of(*a), of(*b)), f"{kind}-{axes}")
        yield Case("vecdot", _function("vecdot"), (of(2, 3, 4), of(4)), kind)
        yield Case("vecdot", _function("vecdot", axis=-2), (of(3, 4), of(3, 1)), f"{kind}-axis")


def creations() -> Iterator[Case]:
    """Arrays from numbers, lists and sizes."""
    kinds = [None, *ALL]
    for kind in kinds:

        def typed(name: str, *args: Any, kind: str | None = kind, **options: Any) -> Case:
            return Case(
                name,
                lambda xp: getattr(xp, name)(*args, **options, **({"dtype": getattr(xp, kind)} if kind else {})),
                (),
                f"{kind}{args}",
                loose=kind is None,
            )

        for shape in (3, (), (2, 0), (2, 3)):
            yield typed("zeros", shape)
            yield typed("ones", shape)
            yield typed("full", shape, True if kind == "bool" else 1)
        yield typed("eye", 3)
        yield typed("eye", 2, 4, k=1)
        if kind != "bool":
            yield typed("asarray", [[1, 2], [3, 4]])
            yield typed("asarray", 3)
        if kind not in BOOL + COMPLEX:
            for args in ((5,), (1, 7), (0, 9, 2), (9, 0, -3), (3, 3)):
                yield typed("arange", *args)
        if kind is None or kind in FLOATS + COMPLEX:
            for ends in ((0, 1, 5), (-2.5, 7, 4), (3, 1, 1), (0, 1, 0)):
                yield typed("linspace", *ends)
                yield typed("linspace", *ends, endpoint=False)
    given: tuple[Any, ...] = (True, 2, 2.5, 1 - 2j, [True, False], [1.5, 2], [[1j], [2]], [[]])
    for value in given:
        yield Case("asarray", lambda xp, value=value: xp.asarray(value), (), str(value), loose=True)


def extensions() -> Iterator[Case]:
    """`linalg` and `fft`."""

    def of(name: str, **options: Any) -> Callable[..., Any]:
        return lambda xp, *arrays: getattr(xp.linalg, name)(*arrays, **options)

    for kind in FLOATS:
        for shape in ((3, 3), (2, 4, 4), (1, 1)):
            x = values(_rng(kind, shape), shape, kind)
            square = (x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])).astype(kind)
            yield Case("linalg.cholesky", of("cholesky"), (square,), f"{kind}{shape}")
            yield Case("linalg.cholesky", of("cholesky", upper=True), (square,), f"{kind}{shape}-upper")
            for name in ("det", "inv", "slogdet"):
                yield Case(f"linalg.{name}", of(name), (x,), f"{kind}{shape}")
            yield Case("linalg.eigvalsh", of("eigvalsh"), (square,), f"{kind}{shape}")
            yield Case(
                "linalg.eigh",
                lambda xp, x: (
                    lambda r: (
                        r.eigenvalues,
                        _again(xp, r.eigenvectors * r.eigenvalues[..., None, :], r.eigenvectors),
                    )
                )(xp.linalg.eigh(x)),
                (square,),
                f"{kind}{shape}",
            )
            for n in (0, 1, 3, -2):
                yield Case(
                    "linalg.matrix_power",
                    (lambda xp, x, n=n: xp.linalg.matrix_power(x, n)),
                    (x,),
                    f"{kind}{shape}-{n}",
                )
            for right in ((shape[-1],), (*shape[:-1], 2), (shape[-1], 3)):
                b = values(_rng(right), right, kind)
                yield Case("linalg.solve", of("solve"), (square, b), f"{kind}{shape}{right}")
        for shape in ((4, 3), (3, 4), (2, 3, 3)):
            x = values(_rng(kind, shape), shape, kind)
            for full in (False, True):
                yield Case(
                    "linalg.svd",
                    lambda xp, x, full=full: (
                        lambda r: (
                            r.S,
                            _shapes(xp, r),
                            _again(
                                xp,
                                r.U[..., : min(x.shape[-2:])] * r.S[..., None, :],
                                xp.matrix_transpose(r.Vh[..., : min(x.shape[-2:]), :]),
                            ),
                        )
                    )(xp.linalg.svd(x, full_matrices=full)),
                    (x,),
                    f"{kind}{shape}-{full}",
                )
            for mode in ("reduced", "complete"):
                yield Case(
                    "linalg.qr",
                    lambda xp, x, mode=mode: (lambda r: (_shapes(xp, r), r.Q @ r.R))(xp.linalg.qr(x, mode=mode)),
                    (x,),
                    f"{kind}{shape}-{mode}",
                )
            for name in ("svdvals", "pinv", "matrix_rank"):
                yield Case(f"linalg.{name}", of(name), (x,), f"{kind}{shape}")
            for order in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")):
                for keep in (False, True):
                    yield Case(
                        "linalg.matrix_norm",
                        of("matrix_norm", ord=order, keepdims=keep),
                        (x,),
                        f"{kind}{shape}-{order}",
                    )
        for order in (0, 1, 2, 3.5, -1, float("inf"), -float("inf")):
            for axis in (None, 0, -1, (0, 1)):
                x = values(_rng(order), (3, 4, 2), kind)
                yield Case(
                    "linalg.vector_norm", of("vector_norm", ord=order, axis=axis), (x,), f"{kind}-{order}-{axis}"
                )
                yield Case(
                    "linalg.vector_norm",
                    of("vector_norm", ord=order, axis=axis, keepdims=True),
                    (x,),
                    f"{kind}-{order}-{axis}-keep",
                )
    for kind in REAL + COMPLEX:
        a, b = values(_rng(kind), (2, 3), kind), values(_rng(2), (2, 3), kind)
        yield Case("linalg.cross", of("cross"), (a, b), kind)
        yield Case("linalg.outer", of("outer"), (a[0], b[1]), kind)
        for offset in (0, 1, -1):
            x = values(_rng(offset), (2, 3, 4), kind)
            yield Case("linalg.diagonal", of("diagonal", offset=offset), (x,), f"{kind}{offset}")
            yield Case("linalg.trace", of("trace", offset=offset), (x,), f"{kind}{offset}")
        for name, first, second in (("matmul", a, b.T), ("tensordot", a.T, a), ("vecdot", a, b)):
            options: dict[str, Any] = {"axes": 1} if name == "tensordot" else {}
            yield Case(f"linalg.{name}", of(name, **options), (first, second), kind)
        yield Case("linalg.matrix_transpose", of("matrix_transpose"), (a,), kind)
    for kind in COMPLEX:
        x = values(_rng(kind), (3, 4), kind)
        yield Case("linalg.vector_norm", of("vector_norm"), (x,), kind)
        yield Case("linalg.matrix_norm", of("matrix_norm"), (x,), kind)
        for name in ("cholesky", "det", "inv", "slogdet", "eigvalsh", "svdvals", "pinv", "matrix_rank"):
            yield Case(f"linalg.{name}", of(name), (x[:, :3] @ x[:, :3].conj().T + np.eye(3, dtype=kind),), kind)
        yield Case("linalg.solve", of("solve"), (x[:, :3], x), kind)
        yield Case("linalg.qr", lambda xp, x: (lambda r: r.Q @ r.R)(xp.linalg.qr(x)), (x,), kind)
        yield Case("linalg.eigh", lambda xp, x: xp.linalg.eigh(x).eigenvalues, (x[:, :3] + x[:, :3].conj().T,), kind)
        yield Case("linalg.svd", lambda xp, x: xp.linalg.svd(x).S, (x,), kind)
        yield Case("linalg.matrix_power", lambda xp, x: xp.linalg.matrix_power(x, 2), (x[:, :3],), kind)
    yield from transforms()


def _again(xp: Any, left: Any, right: Any) -> Any:
    """left right^T: what does not depend on the signs of vectors."""
    return xp.matmul(left, xp.matrix_transpose(right))


def _shapes(xp: Any, results: Any) -> Any:
    return xp.asarray([d for r in results for d in r.shape])


def transforms() -> Iterator[Case]:
    """`fft`."""

    def of(name: str, **options: Any) -> Callable[..., Any]:
        return lambda xp, *arrays: getattr(xp.fft, name)(*arrays, **options)

    for kind in FLOATS + COMPLEX:
        x = values(_rng(kind), (3, 4, 12), kind)
        for name in ("fft", "ifft", "irfft", "hfft", "rfft", "ihfft"):
            if (kind in FLOATS) != (name in ("rfft", "ihfft")) and not (name in ("fft", "ifft") and kind in COMPLEX):
                continue
            for n in (None, 5, 12, 17):
                for axis in (-1, 1):
                    for norm in ("backward", "ortho", "forward"):
                        yield Case(
                            f"fft.{name}", of(name, n=n, axis=axis, norm=norm), (x,), f"{kind}-{n}-{axis}-{norm}"
                        )
            for n in (1, 64, 97, 360):
                line = values(_rng(n), (2, n), kind)
                yield Case(f"fft.{name}", of(name, n=n), (line,), f"{kind}-long-{n}")
        for name in ("fftn", "ifftn", "irfftn", "rfftn"):
            if (kind in FLOATS) == (name == "rfftn"):
                for options in ({}, {"axes": (0, 2)}, {"s": (4, 6), "axes": (1, 2)}):
                    yield Case(f"fft.{name}", of(name, **options), (x,), f"{kind}-{options}")
        for name in ("fftshift", "ifftshift"):
            for axes in (None, 1, (0, 2)):
                yield Case(f"fft.{name}", of(name, axes=axes), (x,), f"{kind}-{axes}")
    for name in ("fftfreq", "rfftfreq"):
        for n in (1, 5, 8):
            for d in (1.0, 0.25):
                yield Case(
                    f"fft.{name}", lambda xp, name=name, n=n, d=d: getattr(xp.fft, name)(n, d=d), (), f"{n}-{d}", True
                )


def cases() -> list[Case]:
    """All of them."""
    return [*elementwise(), *reductions(), *searches(), *movements(), *products(), *creations(), *extensions()]
