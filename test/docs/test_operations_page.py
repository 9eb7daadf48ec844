"""docs/operations.md lists what there is: all of it, and nothing else."""
from __future__ import annotations

import inspect
import re

from support.paths import ROOT

from minigrad import Tensor, nn, optim

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
UNLISTED = {"batchnorm_train", "byte_products", "dequantized", "device", "dim", "dot_bytes", "dtype", "element_size",
            "cuda", "data_ptr", "get_device", "is_cpu", "is_cuda", "is_pinned", "is_shared", "pin_memory",
            "storage_offset", "is_complex", "is_floating_point",
            "gru_step", "is_same_size", "is_signed", "itemsize", "kept_grad", "lazy_node", "lazydata",
            "lstm_step", "moved", "nbytes", "ndim", "ndimension", "needs_grad", "nelement", "node", "numel", "over",
            "rmsnorm", "sequential", "shape", "size", "stepped"}
"""Sizes and types, fields of the handle, what layers and optimizers call, and what tinygrad calls otherwise."""


def listed(title: str) -> set[str]:
    """The names in the bullets of a section."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return {name for line in section.splitlines() if line.startswith("- ") for name in re.findall(r"`(\w+)`", line)}


def test_methods_of_tensors() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    assert listed("Tensor") == public - UNLISTED and UNLISTED < public


def test_layers() -> None:
    initial = {name for name, f in vars(nn.init).items() if inspect.isfunction(f) and f.__module__ == nn.init.__name__
               and not name.startswith("_")}
    of_utils = {name for name, f in vars(nn.utils).items() if inspect.isfunction(f) and not name.startswith("_")
                and f.__module__.startswith(nn.utils.__name__)}
    sequences = {name for name, f in vars(nn.utils.rnn).items() if getattr(f, "__module__", "") == nn.utils.rnn.__name__
                 and not name.startswith("_")}
    assert listed("nn") == {*nn.__all__, *nn.state.__all__, *initial, *of_utils, "rnn", *sequences}


def test_optimizers() -> None:
    schedules = {name for name in listed("optim") if hasattr(optim.lr_scheduler, name) and name != "Optimizer"}
    assert listed("optim") == ({*optim.__all__} - {"Optimizer"}) | schedules
    kind = optim.lr_scheduler.LRScheduler
    assert schedules == {k.__name__ for k in vars(optim.lr_scheduler).values()
                         if isinstance(k, type) and issubclass(k, kind) and k is not kind}
