"""The table from operators to expressions over Tensors, by domain."""
from __future__ import annotations

from minigrad.onnx import (
    attention,
    control,
    convolution,
    elementwise,
    images,
    losses,
    microsoft,
    quantised,
    recurrent,
    reductions,
    shapes,
)
from minigrad.onnx.node import Operator

PAGES = (elementwise, reductions, shapes, convolution, attention, quantised, control, recurrent, images, losses)
OPERATORS: dict[str, dict[str, Operator]] = {
    "": {name: operator for page in PAGES for name, operator in page.TABLE.items()},
    "com.microsoft": microsoft.TABLE,
}
