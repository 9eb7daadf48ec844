"""Models of the other examples as programs for C, and as ONNX models."""
