"""What scripts ask or set in `torch.backends`: none of these libraries is here, and their settings change nothing; that
products may be less exact is `MINIGRAD_ALLOW_TF32`."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def _absent(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(is_available=lambda: False, **settings)


cudnn = _absent(enabled=False, benchmark=False, deterministic=False, allow_tf32=False)
cuda = _absent(is_built=lambda: False, matmul=SimpleNamespace(allow_tf32=False))
mps = _absent(is_built=lambda: False)
