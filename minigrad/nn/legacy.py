"""PyTorch's arguments `size_average` and `reduce` of losses, which `reduction` has taken the place of."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any


def with_old_reductions(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose arguments by name have `reduction` among them, with PyTorch's order of arguments: in place of
    the * stands `size_average`, before `reduction` stands `reduce`, and all can be given by position. These two win, as
    there, with a warning."""
    own = signature(function)
    order: list[Parameter] = []
    for p in own.parameters.values():
        old = [Parameter("size_average", Parameter.POSITIONAL_OR_KEYWORD, default=None)] if (
            p.kind is Parameter.KEYWORD_ONLY and not any(q.name == "size_average" for q in order)) else []
        if p.name == "reduction":
            old.append(Parameter("reduce", Parameter.POSITIONAL_OR_KEYWORD, default=None))
        order += [*old, p.replace(kind=Parameter.POSITIONAL_OR_KEYWORD)]
    names, first = [p.name for p in order], [p.name for p in order].index("size_average")

    @wraps(function)
    def loss(*args: Any, **options: Any) -> Any:
        if len(args) > len(names):
            raise TypeError(f"{function.__name__}() expected at most {len(names)} arguments, got {len(args)}")
        given = {**dict(zip(names[first:], args[first:], strict=False)), **options}
        twice = [n for n in names[first:len(args)] if n in options]
        if twice:
            raise TypeError(f"{function.__name__}() got several values for {twice[0]!r}")
        mean, reduce = given.pop("size_average", None), given.pop("reduce", None)
        if mean is not None or reduce is not None:
            given["reduction"] = "none" if reduce is not None and not reduce else (
                "mean" if mean is None or mean else "sum")
            warnings.warn(f"[{function.__name__}] expected reduction={given['reduction']!r}, got size_average and "
                          "reduce, which are deprecated", UserWarning, stacklevel=2)
        return function(*args[:first], **given)

    loss.__dict__["__signature__"] = own.replace(parameters=order)
    return loss
