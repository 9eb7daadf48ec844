"""Steps of loops with a carried state, written once for minigrad and for torch, and random ones."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import Tensor, scan

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Loop:
    """`step(state, slices, rest)` -> (state, results), over tuples of tensors made of these arrays."""

    name: str
    step: Callable[[Any, Any, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]
    state: tuple[tuple[int, ...], ...]
    slices: tuple[tuple[int, ...], ...]
    rest: tuple[tuple[int, ...], ...] = ()

    def arrays(self, length: int, seed: int = 0) -> list[list[np.ndarray]]:
        """Random values of the state, of all slices and of the rest."""
        rng = np.random.default_rng(seed)
        shapes = [self.state, [(length, *s) for s in self.slices], self.rest]
        return [[(rng.standard_normal(s) / 2).astype(np.float32) for s in group] for group in shapes]


def unrolled(loop: Loop, groups: Any, stack: Any, reverse: bool = False) -> list[Any]:
    """The state after the loop, then the results of all steps, by a loop of Python."""
    state, slices, rest = groups
    state, made = tuple(state), []
    order = range(len(slices[0]))
    for t in reversed(order) if reverse else order:
        state, results = loop.step(state, tuple(x[t] for x in slices), rest)
        made.append(results)
    return [*state, *[stack(list(parts)) for parts in zip(*(made[::-1] if reverse else made), strict=True)]]


def scanned(loop: Loop, state: Any, slices: Any, rest: Any, **options: Any) -> list[Tensor]:
    """What `unrolled` gives, by `scan`."""
    carry, ys = scan(lambda state, slices: loop.step(state, slices, rest), tuple(state), tuple(slices), **options)
    return [*carry, *ys]


def weighted(results: list[Any]) -> Any:
    """A number that all elements of the results matter to, differently, and none much more by its own rounding."""
    return sum((r.sin() * (k + 1)).sum() for k, r in enumerate(results))


def tensors(arrays: list[list[np.ndarray]], device: str) -> list[tuple[Tensor, ...]]:
    """The arrays as Tensors that gradients go to."""
    return [tuple(Tensor(a, device=device, requires_grad=True) for a in group) for group in arrays]


def _rnn(state: Any, slices: Any, rest: Any) -> Any:
    h = (slices[0] + state[0] @ rest[0]).tanh()
    return (h,), (h, (h * h).sum(-1))


def _lstm(state: Any, slices: Any, rest: Any) -> Any:
    h, c = state
    n = h.shape[-1]
    gates = slices[0] + h @ rest[0]
    i, f, g, o = (gates[..., k * n:(k + 1) * n] for k in range(4))
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h, c), (h,)


def _delta(state: Any, slices: Any, rest: Any) -> Any:
    """The gated delta rule over heads [H, K, V]: Yang et al. 2024, https://arxiv.org/abs/2412.06464."""
    s, = state
    q, k, v, beta, decay = slices
    s = s * decay.sigmoid()[:, None, None]
    error = (v - (s * k[:, :, None]).sum(1)) * beta.sigmoid()[:, None]
    s = s + k[:, :, None] * error[:, None, :]
    return (s,), ((s * q[:, :, None]).sum(1),)


def _mamba(state: Any, slices: Any, rest: Any) -> Any:
    """The recurrence of Mamba 2 over heads [H, P, N]: Dao & Gu 2024, https://arxiv.org/abs/2405.21060."""
    s, = state
    x, b, c, dt = slices
    s = s * (-dt.exp())[:, None, None].exp() + (dt[:, None] * x)[:, :, None] * b[None, None, :]
    return (s,), ((s * c[None, None, :]).sum(-1) + rest[0][:, None] * x,)


def _convolution(state: Any, slices: Any, rest: Any) -> Any:
    """A window over the last steps, which moves by one: LFM2."""
    window, = state
    moved = window * 0 + _shifted(window, slices[0])
    return (moved,), ((moved * rest[0]).sum(0),)


def _shifted(window: Any, x: Any) -> Any:
    like = type(window)
    rows = [window[1:], x[None]]
    return like.cat(*rows, dim=0) if like is Tensor else __import__("torch").cat(rows, 0)


def _sums(state: Any, slices: Any, rest: Any) -> Any:
    total = state[0] + slices[0]
    return (total,), (total,)


def _swapped(state: Any, slices: Any, rest: Any) -> Any:
    a, b = state
    return (b, a + slices[0]), (a * b, b)


def _mixed(state: Any, slices: Any, rest: Any) -> Any:
    """Every new element depends on all of the state, which is read twice and out of order."""
    m, = state
    p = m @ m.T
    m = (p / 4).tanh() + slices[0] - m.flip(0) * 0.5 if isinstance(m, Tensor) else \
        (p / 4).tanh() + slices[0] - m.flip((0,)) * 0.5
    return (m,), (p.sum(), m[0])


LOOPS = [
    Loop("rnn", _rnn, ((3, 5),), ((3, 5),), ((5, 5),)),
    Loop("lstm", _lstm, ((2, 17), (2, 17)), ((2, 68),), ((17, 68),)),
    Loop("delta", _delta, ((2, 16, 19),), ((2, 16), (2, 16), (2, 19), (2,), (2,))),
    Loop("mamba", _mamba, ((3, 4, 5),), ((3, 4), (5,), (5,), (3,)), ((3,),)),
    Loop("convolution", _convolution, ((3, 7),), ((7,),), ((3, 7),)),
    Loop("sums", _sums, ((33,),), ((33,),)),
    Loop("sum", _sums, ((),), ((),)),
    Loop("swapped", _swapped, ((4, 3), (4, 3)), ((4, 3),)),
    Loop("mixed", _mixed, ((4, 4),), ((4, 4),)),
]
