"""Models as people write them in torch, for torch.compile: with random weights, in small sizes or larger."""
from __future__ import annotations

from bench.torch_models import language, others, vision
from bench.torch_models.case import Build, Case

MODELS: dict[str, Build] = {**vision.MODELS, **language.MODELS, **others.MODELS}

__all__ = ["MODELS", "Build", "Case"]
