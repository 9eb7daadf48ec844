"""Reductions for work-groups, and a GPU to plan them for."""
from support.packed import tensor

from minigrad.target import Target

GPU = Target("gpu", "opencl", "none", 4, 64, 8, local_memory=32 << 10, max_group=256)
REDUCTIONS = {
    "sum of rows": lambda: tensor(7, 150).sum(1),
    "sum of columns": lambda: tensor(150, 7).sum(0),
    "maximum": lambda: tensor(3, 2, 97).max((0, 2)),
    "all": lambda: tensor(9, 41).sum(),
    "mean and more": lambda: (tensor(5, 64).mean(1) + 1).sqrt(),
    "matrix and vector": lambda: tensor(9, 70) @ tensor(70),
    "softmax": lambda: tensor(5, 77).softmax(1),
    "layer norm": lambda: (lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt())(
        tensor(6, 50)),
    "int32": lambda: (tensor(4, 100) * 9).cast("int32").sum(1),
}
