"""What differs between a call in minigrad.array_api and in array_api_strict."""
from __future__ import annotations

import warnings
from typing import Any

import array_api_strict as strict
import numpy as np
from array_api.cases import Case

import minigrad.array_api as xp

TOLERANCE = {"float32": 2e-5, "complex64": 4e-5, "float64": 1e-9, "complex128": 1e-9}

EXCEPTIONS = {f"linalg.{name}-{kind}": "there are no decompositions of complex matrices" for kind in (
    "complex64", "complex128") for name in ("cholesky", "det", "slogdet", "qr", "eigh", "svd")}
"""What differs from array_api_strict, by case, and why: docs/differences-array-api.md."""


def difference(case: Case) -> str | None:
    """The difference in words, None where there is none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = _flat(case.call(strict, *[strict.asarray(a) for a in case.arrays]))
        try:
            found = _flat(case.call(xp, *[xp.asarray(a) for a in case.arrays]))
            if len(found) != len(expected):
                return f"{len(found)} results for {len(expected)}"
            return next((d for d in map(_differs, found, expected, [case] * len(found)) if d), None)
        except Exception as e:
            return f"{type(e).__name__}: {e}"


def _flat(result: Any) -> list[Any]:
    return [a for r in result for a in _flat(r)] if isinstance(result, tuple | list) else [result]


def _differs(found: Any, expected: Any, case: Case) -> str | None:
    if not isinstance(found, xp.Array):
        return None if found == expected else f"{found!r} for {expected!r}"
    kinds = ("real floating", "complex floating")
    same = found.dtype.name == str(expected.dtype).rpartition(".")[2] or (case.loose and any(
        xp.isdtype(found.dtype, k) and strict.isdtype(expected.dtype, k) for k in kinds))
    if not same or found.shape != expected.shape:
        return f"{found.dtype}{list(found.shape)} for {expected.dtype}{list(expected.shape)}"
    a, b = found.numpy(), np.asarray(expected)
    if a.dtype != np.dtype(found.dtype.name):
        return f"numpy's {a.dtype} for {found.dtype}"
    if a.dtype.kind not in "fc":
        return None if np.array_equal(a, b) else f"{a.tolist()} for {b.tolist()}"
    limit = TOLERANCE[a.dtype.name]
    finite = b[np.isfinite(b)]
    if not np.allclose(a, b, rtol=limit, atol=limit * max(1.0, float(abs(finite).max()) if finite.size and
                                                          "special" not in case.what else 1.0), equal_nan=True):
        return f"{a.tolist()} for {b.tolist()}"
    if "special" in case.what and a.dtype.kind == "f" and (np.signbit(a) != np.signbit(b))[b == 0].any():
        return f"signs of zeros in {a.tolist()} for {b.tolist()}"
    return None
