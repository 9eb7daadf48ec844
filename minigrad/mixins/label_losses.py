"""Losses of sequences and of sets of labels."""
from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from minigrad.config import current
from minigrad.dtype import int32
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_count, as_tensor
from minigrad.mixins.losses import reduced
from minigrad.mixins.ranges import check_indices
from minigrad.mixins.rounding import rounded_once

_NEVER = -1e30  # the logarithm of the probability of what cannot be: finite, so that it has a gradient


class LabelLossMixin(Base):
    __slots__ = ()

    def ctc_loss(self, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
                 zero_infinity: bool = False) -> Self:
        """The negative logarithm of the probability of label sequences, over all ways to spread them over time with
        blanks in between (Graves et al. 2006, "Connectionist temporal classification").

        Of log-probabilities [T, N, C], targets [N, S] (of which `target_lengths` [N] count, none of them `blank`) and
        as many steps of time as `input_lengths` [N] says; or of [T, C] with [S]. Targets one after the other in one
        axis are taken apart by their lengths, which are read. 'mean' is that of losses over target lengths. What is
        too long for its time has an infinite loss, or none with `zero_infinity`. T small kernels, one after another.
        """
        if self.ndim == 2:
            times, sizes = (self._indices("ctc_loss", np.asarray(n) if isinstance(n, (int, tuple)) else n).reshape(1)
                            for n in (input_lengths, target_lengths))
            rows = self._indices("ctc_loss", targets).reshape(1, -1)
            loss = self.unsqueeze(1).ctc_loss(rows, times, sizes, blank, reduction, zero_infinity)
            return loss.reshape(()) if reduction == "none" else loss
        if self.ndim != 3 or not self.dtype.is_float:
            raise ShapeError(f"[ctc_loss] expected log-probabilities [T, N, C] or [T, C], got {self.dtype} "
                             f"{list(self.shape)}")
        steps, batch, classes = (self._known_length("ctc_loss", a) for a in range(3))
        if not 0 <= as_count("ctc_loss", "blank", blank) < classes:
            raise ShapeError(f"[ctc_loss] expected a blank in 0..{classes - 1}, got {blank}")
        times, sizes = (self._indices("ctc_loss", list(n) if isinstance(n, tuple) else n)
                        for n in (input_lengths, target_lengths))
        labels = self._indices("ctc_loss", targets)
        if labels.ndim == 1:
            labels = labels._apart(sizes)
        if labels.ndim != 2 or {labels.shape[0], *times.shape, *sizes.shape} != {batch}:
            raise ShapeError(f"[ctc_loss] expected targets [{batch}, S] and lengths [{batch}], got "
                             f"{list(labels.shape)}, {list(times.shape)} and {list(sizes.shape)}")
        if current().check_indices:
            counted = labels._order(1) < sizes.unsqueeze(1)
            check_indices("ctc_loss", counted.where(labels, blank), classes)
        loss = -self._log_probability(labels.cast(int32), times, sizes, blank, steps)
        impossible = loss > -_NEVER / 2
        loss = impossible.where(0.0 if zero_infinity else math.inf, loss).cast(self.dtype)
        return reduced(loss / sizes.maximum(1) if reduction == "mean" else loss, reduction)

    def _apart(self, sizes: Self) -> Self:
        """Rows [N, longest] of vectors that stand one after the other."""
        counts = sizes.numpy()
        if counts.sum() != self.shape[0]:
            raise ShapeError(f"[ctc_loss] expected target lengths that add up to {self.shape[0]}, got "
                             f"{counts.tolist()}")
        starts = np.cumsum(counts) - counts
        places = starts[:, None] + np.arange(max(counts.max(initial=0), 1))
        return self._gather(0, self._indices("ctc_loss", np.minimum(places, max(counts.sum() - 1, 0)).ravel())).reshape(
            *places.shape) if self.shape[0] else self.zeros(len(counts), 0, dtype=int32, device=self.device)

    def _log_probability(self, labels: Self, times: Self, sizes: Self, blank: int, steps: int) -> Self:
        """[N]: of the labels [N, S] with blanks around each. A state is one of these 2S + 1, and comes from itself,
        from the one before, or from two before if that is another label."""
        batch: Any = labels.shape[0]
        between = labels.full_like(blank)
        states = between.stack(labels, dim=-1).flatten(1).pad((0, 1), value=blank)
        count: Any = states.shape[1]
        other = states.ne(blank).bitwise_and(states.ne(states.pad((2, 0), value=blank)._cut(1, 0, count)))
        jump = other.where(0.0, _NEVER).unsqueeze(-1).pad((0, 2))  # [N, 2S + 1, 3]: two before, one before, itself
        wide = self.cast(self.dtype.compute)
        places = states.reshape(1, batch, count).expand(steps, batch, count)
        emitted = wide._gather(2, places).maximum(_NEVER).contiguous()
        order = type(self).arange(count, device=self.device)
        reached = order.eq(0).where(0.0, _NEVER).cast(wide.dtype).expand(batch, count).contiguous()
        jump = jump.cast(wide.dtype).contiguous()
        for t in range(steps):
            come = (reached.pad((2, 0), value=_NEVER).unfold(1, 3) + jump).logsumexp(-1) + emitted[t]
            reached = (times > t).unsqueeze(-1).where(come, reached).contiguous()
        last = sizes.reshape(-1, 1) * 2
        ends = reached._gather(1, last).cat(sizes.reshape(-1, 1).eq(0).where(_NEVER, reached._gather(
            1, (last - 1).maximum(0))), dim=1)
        return ends.logsumexp(1)

    # Of several labels

    @rounded_once
    def multi_margin_loss(self, target: Any, p: int = 1, margin: float = 1.0, weight: Self | None = None,
                          reduction: str = "mean") -> Self:
        """Of scores [N, C] and classes [N]: the mean over the other classes i of max(0, margin - x[class] + x[i])**p,
        times the class's `weight` [C], with C as the number of them."""
        if self.ndim < 2:
            target = self._indices("multi_margin_loss", target, self.numel()).reshape(1)
            row = self.reshape(1, -1).multi_margin_loss(target, p, margin, weight, reduction)
            return row.reshape(()) if reduction == "none" else row
        target = self._indices("multi_margin_loss", target, self.shape[-1])
        if self.ndim != 2 or target.shape != self.shape[:1] or p not in (1, 2):
            raise ShapeError(f"[multi_margin_loss] expected scores [N, C], classes [N] and p of 1 or 2, got "
                             f"{list(self.shape)}, {list(target.shape)} and {p}")
        own = target.unsqueeze(1)
        loss = (self - self._gather(1, own) + margin).relu() ** p
        loss = loss if weight is None else loss * as_tensor("multi_margin_loss", weight)._gather(0, target).unsqueeze(1)
        other = self._order(1).ne(own)
        return reduced(other.where(loss, 0).mean(1), reduction)

    @rounded_once
    def multilabel_margin_loss(self, target: Any, reduction: str = "mean") -> Self:
        """Of scores [N, C] and labels [N, C], of which those before the first -1 count: the sum of
        max(0, 1 - (x[label] - x[i])) over labels and over i that are none, over C."""
        target = self._indices("multilabel_margin_loss", target, self.shape[-1] if self.ndim else None, ignored=-1)
        if not self.ndim and not target.ndim:
            return self.reshape(1).multilabel_margin_loss(target.reshape(1), reduction).reshape(())
        if self.ndim not in (1, 2) or target.shape != self.shape:
            raise ShapeError(f"[multilabel_margin_loss] expected scores and labels [N, C], got {list(self.shape)} and "
                             f"{list(target.shape)}")
        counts = (target < 0).cumsum(-1).eq(0)
        place = target.maximum(0)
        chosen = place.unsqueeze(-1).eq(self._order(self.ndim - 1).unsqueeze(-2)).bitwise_and(counts.unsqueeze(-1))
        chosen = chosen.any(-2)
        pairs = (1 - self._gather(-1, place).unsqueeze(-1) + self.unsqueeze(-2)).relu()
        kept = counts.unsqueeze(-1).bitwise_and(chosen.logical_not().unsqueeze(-2))
        return reduced(kept.where(pairs, 0).sum((-2, -1)) / self.shape[-1], reduction)

    @rounded_once
    def multilabel_soft_margin_loss(self, target: Any, weight: Any = None, reduction: str = "mean") -> Self:
        """Of logits [N, C] and targets of 0 and 1: the mean over classes of binary cross-entropies, times `weight`."""
        loss = self.binary_crossentropy_logits(target, "none", weight)
        return reduced(loss.mean(-1), reduction)
