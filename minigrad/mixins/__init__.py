"""Tensor's methods, by topic. Each mixin builds on the one before:

base -> elementwise -> activations -> movement -> reduce -> creation -> indexing -> scan -> ordering -> sampling ->
linalg -> nn_functional -> attention -> aliases -> protocols -> tensor.Tensor
"""
