"""The flags of `torch.backends` that scripts ask for or set. None of these libraries is used here, and their settings
change nothing; `MINIGRAD_ALLOW_TF32` is what allows less exact products."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def _absent(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(is_available=lambda: False, **settings)


cudnn = _absent(enabled=False, benchmark=False, deterministic=False, allow_tf32=False)
cuda = _absent(is_built=lambda: False, matmul=SimpleNamespace(allow_tf32=False))
mps = _absent(is_built=lambda: False)
