"""Models that other frameworks wrote, `OnnxModel(path)({"x": array})`, and calls written for them, `export(f, x)`.
Needs the extra `onnx`."""
from minigrad.onnx.exporting import export
from minigrad.onnx.model import Described, OnnxModel
from minigrad.onnx.refusal import Invalid, Unsupported
from minigrad.onnx.values import Narrow

__all__ = ["Described", "Invalid", "Narrow", "OnnxModel", "Unsupported", "export"]
