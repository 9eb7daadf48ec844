"""Batch norm whose batch is that of all processes (`minigrad.distributed`)."""
from __future__ import annotations

from typing import Any

from minigrad.distributed import reduced, size
from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.modes import of_modules
from minigrad.nn.norm import BatchNorm, towards, wide
from minigrad.optim.statistics import note_moved
from minigrad.state.tree import children_of
from minigrad.tensor import Tensor


class SyncBatchNorm(BatchNorm):
    """`BatchNorm` by the mean and the variance of the batches of all processes together, which may differ in size, for
    x of shape [N, num_features, ...]. Gradients go to the inputs of all of them. One process alone, and what does not
    train, has BatchNorm's.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_group: None = None, *, bias: bool = True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias)
        if process_group is not None:
            raise MinigradError(f"[SyncBatchNorm] expected process_group=None, which is all processes, got "
                                f"{process_group!r}")

    def forward(self, x: Tensor) -> Tensor:
        if size() == 1 or (self.track_running_stats and not Tensor.training):
            return super().forward(x)
        self._check(x, 0)
        channels, axes = self.num_features, (0, *range(2, x.ndim))
        local = x.numel() // channels
        if not isinstance(local, int):
            raise ShapeError(f"[SyncBatchNorm] expected a shape without Variables, got {list(x.shape)}")
        whole = wide(x)
        sums = reduced(Tensor.cat(whole.sum(axes), Tensor([float(local)], dtype=whole.dtype, device=x.device)))
        count, shape = sums[channels:], (1, channels, *[1] * (x.ndim - 2))
        mean = sums[:channels] / count
        centred = whole - mean.reshape(*shape)
        var = reduced((centred * centred).sum(axes)) / count
        if self.track_running_stats:
            with Tensor.no_grad():
                self._follow(mean.detach(), var.detach() * (count / (count - 1)).detach())
        y = centred * (var + self.eps).rsqrt().reshape(*shape)
        y = y if self.weight is None else y * self.weight.reshape(*shape)
        y = y if self.bias is None else y + self.bias.reshape(*shape)
        return y.cast(x.dtype)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Moves the running statistics towards these."""
        batches = self.num_batches_tracked
        for old, new in ((self.running_mean, mean), (self.running_var, var)):
            old.assign(towards(old, new.cast(old.dtype), self.momentum, batches))
        batches.assign(batches + 1)
        note_moved(self.running_mean, self.running_var, batches)

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: None = None) -> Any:
        """Makes every BatchNorm in a model (any object) a SyncBatchNorm, with the parameters that it has, and returns
        the model."""
        seen: set[int] = set()
        stack = [module]
        while stack:
            part = stack.pop()
            if id(part) in seen or isinstance(part, Tensor):
                continue
            seen.add(id(part))
            if isinstance(part, BatchNorm) and not isinstance(part, SyncBatchNorm):
                part.__class__ = cls  # captured steps, optimizers and hooks hold this very layer
                of_modules.switch(part)
            stack += [value for _, value in children_of(part)]
        return module
