"""What to do instead of reading values while a function is captured."""
from __future__ import annotations

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
    """What to do instead of a call such as 'Tensor.item()'."""
    name = call.removesuffix("()")
    found = _ADVICE.get(name) or _ADVICE.get(name.rpartition(".")[2])
    return found or "return the tensor and read it outside; what the next call needs can stay a Tensor"
