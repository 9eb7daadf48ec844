"""Advice for messages: instead of reading values while a function is captured, and where it is captured again and
again."""
from __future__ import annotations

from typing import Any

_CHOICE = "choose with condition.where(a, b) for any value of the condition, or decide before the call"
_SHAPE = "its result has as many elements as values say: keep the shape, as in mask.where(x, 0), or call it outside"
_SHOW = "return the tensor and show it outside; its repr shows the shape here"
_ADVICE = {
    "__bool__": _CHOICE, "equal": _CHOICE, "allclose": _CHOICE, "is_nonzero": _CHOICE,
    "__getitem__": _SHAPE, "nonzero": _SHAPE, "argwhere": _SHAPE, "masked_select": _SHAPE, "unique": _SHAPE,
    "unique_consecutive": _SHAPE, "bincount": _SHAPE, "where": _SHAPE, "histogram": _SHAPE, "one_hot": _SHAPE,
    "__format__": _SHOW,
    "__int__": "keep it a Tensor: indices, counts of steps and exponents may be one",
    "__index__": "keep it a Tensor: indices and offsets may be one",
    "LBFGS.step": "how far it goes depends on numbers: call step(closure) outside, where the closure may be a captured "
                  "function, or take an optimizer that reads nothing, such as Adam"}


def advice_for(call: str) -> str:
    """Advice for use instead of a call such as 'Tensor.item()'."""
    name = call.removesuffix("()")
    found = _ADVICE.get(name) or _ADVICE.get(name.rpartition(".")[2])
    return found or "return the tensor and read it outside; what the next call needs can stay a Tensor"


def change_of(name: str, before: Any, now: Any) -> str:
    """A sentence about how something that a function reads differs between two calls, by its keys there (`arguments`),
    with advice for the common cases. `before` is None where there was nothing of that name."""
    if _kind(before) == _kind(now) == "Tensor":
        for what, old, new in zip(("shape", "type", "device"), before[1:], now[1:], strict=False):
            if what == "shape" and old != new:
                return f"{name!r} has shape {list(new)}, and had {list(old)}; a size that changes may be a Variable"
            if old != new:
                return f"{name!r} has {what} {new}, and had {old}"
        return f"{name!r} has another gradient or requires_grad, or is another argument too"
    old, new = _plain(before), _plain(now)
    values = f" from {old} to {new}" if old and new else ""
    return f"{name!r} changed{values}; make it a Variable or a Tensor if it changes often"


def _kind(key: Any) -> Any:
    return key[0] if type(key) is tuple and key else None


def _plain(key: Any) -> str:
    """A number or a string as it is written, '' for anything else."""
    kind = _kind(key)
    return key[1] if kind == "float" else repr(key[1]) if kind in ("int", "bool", "str") else ""
