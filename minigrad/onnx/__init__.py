"""Models that other frameworks wrote: `OnnxModel(path)({"x": array})`. Needs the extra `onnx`."""
from minigrad.onnx.model import Described, OnnxModel
from minigrad.onnx.refusal import Invalid, Unsupported

__all__ = ["Described", "Invalid", "OnnxModel", "Unsupported"]
