"""Tensor's methods, by topic. Each mixin builds on the one before:

base -> elementwise -> activations -> movement -> reduce -> creation -> indexing -> scan -> ordering -> linalg ->
nn_functional -> attention -> aliases -> protocols -> tensor.Tensor
"""
