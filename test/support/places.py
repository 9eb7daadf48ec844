"""Integer operands, and operations beside PyTorch's in place and not."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from support.beside_torch import check, normal

from minigrad import Tensor

try:
    import torch
except ImportError:
    torch = None

X, Y = normal(4, 5), normal(4, 5, seed=1)


def i(like: Any, array: np.ndarray) -> Any:
    """An index or a mask of the kind of `like`."""
    return Tensor(array) if isinstance(like, Tensor) else torch.tensor(array)


def both(ours: Callable[[Any, Any], Any], theirs: Callable[[Any, Any], Any]) -> None:
    """Both arguments take part, so that each has a gradient."""
    check(lambda x, y: ours(x, y) + (x * y).sum() * 0, lambda x, y: theirs(x, y) + (x * y).sum() * 0, X, Y)
