"""The table from operators to expressions over Tensors, by domain."""
from __future__ import annotations

from minigrad.onnx import (
    attention,
    control,
    convolution,
    deformed,
    elementwise,
    images,
    learned,
    losses,
    microsoft,
    microsoft_attention,
    microsoft_quantised,
    quantised,
    recurrent,
    reductions,
    shapes,
    stateful,
    strings,
    training,
)
from minigrad.onnx.node import Operator

PAGES = (elementwise, reductions, shapes, convolution, attention, quantised, control, recurrent, images, losses,
         deformed, stateful, strings)
OPERATORS: dict[str, dict[str, Operator]] = {
    "": {name: operator for page in PAGES for name, operator in page.TABLE.items()} | microsoft.STANDARD,
    "ai.onnx.ml": learned.TABLE, "ai.onnx.preview": stateful.PREVIEW, "ai.onnx.preview.training": training.TABLE,
    "com.microsoft": microsoft.TABLE | microsoft_attention.TABLE | microsoft_quantised.TABLE,
}
