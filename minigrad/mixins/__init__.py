"""Tensor's methods, by topic. Each mixin builds on the one before:

base -> elementwise -> movement -> reduce -> creation -> indexing -> linalg -> nn_functional -> tensor.Tensor
"""
