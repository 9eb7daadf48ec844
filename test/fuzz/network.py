"""Networks as small programs: a list of operations with sizes, and how it is run.

Value k is what operation k gives, `v3` in texts. The lines that `written` makes of a network are Python that minigrad
and PyTorch both run. Sizes of parameters follow from the shapes of what they are applied to, so that a network with an
operation left out, or with smaller inputs, is a network again, unless PyTorch refuses it.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fuzz.definitions import Definitions

Shape = tuple[int, ...]
Args = dict[str, Any]


@dataclass(frozen=True)
class Op:
    """One operation: a name in `KINDS`, the values it takes, and its arguments."""

    kind: str
    operands: tuple[int, ...] = ()
    args: Args = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """`outputs` are values, `seed` is that of all numbers.

    `loss`: 'weighted' (the sum of outputs times fixed numbers) or 'square'. `wanted`: 'values', 'gradients' (by inputs
    and parameters), 'all' (both in one realize), 'parts' (both, one by one), 'second' (second derivatives). `calls`: 0
    is eager, else the function is captured and called so often, with other numbers each time. `winograd`: 'auto', or
    'always', wherever the algorithm fits.
    """

    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    seed: int
    dtype: str = "float32"
    device: str = "CPU"
    loss: str = "weighted"
    wanted: str = "gradients"
    calls: int = 0
    poison: bool = False
    threads: int = 2
    opencl_plans: str = "auto"
    cpu: str = "native"
    winograd: str = "auto"

    def to_json(self) -> str:
        """One line of text that `from_json` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def text(self) -> str:
        """An operation a line, for people."""
        how = {k: v for k, v in asdict(self).items() if k not in ("ops", "outputs")}
        lines = [" ".join(f"{k}={v}" for k, v in how.items())]
        for k, op in enumerate(self.ops):
            args = " ".join(f"{name}={value}" for name, value in op.args.items() if value is not None)
            lines.append(f"  v{k} = {op.kind} {' '.join(f'v{o}' for o in op.operands)} {args}".rstrip())
        return "\n".join([*lines, "  -> " + ", ".join(f"v{k}" for k in self.outputs)])


def from_json(text: str) -> Network:
    """The network that `to_json` wrote."""
    read = json.loads(text)
    ops = tuple([Op(o["kind"], tuple(o["operands"]), {k: _tuple(v) for k, v in o["args"].items()})
                 for o in read.pop("ops")])
    return Network(ops, tuple(read.pop("outputs")), **read)


def _tuple(value: Any) -> Any:
    return tuple([_tuple(v) for v in value]) if isinstance(value, list) else value


@dataclass(frozen=True)
class Leaf:
    """Numbers that a network takes: normal ones times `scale`, or with `below` positions in 0..below."""

    name: str
    shape: Shape
    scale: float = 1.0
    below: int = 0
    parameter: bool = False


@dataclass
class Written:
    """A network as lines `name = text`. `computed`: lines of inputs that are computed from no buffer, in minigrad's
    words; PyTorch is given their numbers."""

    leaves: list[Leaf] = field(default_factory=list)
    computed: list[tuple[str, str, Shape]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    _reach: dict[str, frozenset[str]] = field(default_factory=dict)
    _own: list[str] = field(default_factory=list)

    def parameter(self, shape: Shape, scale: float = 1.0) -> str:
        """The name of a new parameter."""
        return self.leaf(Leaf(f"w{len(self.leaves)}", tuple(shape), scale, parameter=True))

    def positions(self, shape: Shape, below: int) -> str:
        """The name of new positions in 0..below."""
        return self.leaf(Leaf(f"i{len(self.leaves)}", tuple(shape), below=below))

    def leaf(self, leaf: Leaf) -> str:
        """The name of a new leaf."""
        self.leaves.append(leaf)
        self._own.append(leaf.name)
        return leaf.name

    def differentiable(self, outputs: tuple[int, ...]) -> list[str]:
        """The leaves of floats that the outputs depend on."""
        reached = frozenset().union(*[self._reach[f"v{k}"] for k in outputs])
        return [leaf.name for leaf in self.leaves if leaf.name in reached and not leaf.below]


@dataclass(frozen=True)
class Kind:
    """How an operation is drawn for operand values (None: it has no meaning there) and written."""

    draw: Callable[..., tuple[tuple[int, ...], Args] | None]
    write: Callable[..., str]
    weight: float


KINDS: dict[str, Kind] = {}
SOURCES: dict[str, Kind] = {}
"""Kinds without operands: inputs."""

META = {"F": Definitions(), "cat": torch.cat, "where": torch.where, "einsum": torch.einsum, "stack": torch.stack,
        "maximum": torch.maximum, "float32": torch.float64, "bfloat16": torch.float64, "float16": torch.float64}
"""The names of lines, for PyTorch in float64."""


def written(network: Network) -> Written:
    """The lines of a network. Raises whatever PyTorch raises where the network has no meaning."""
    w = Written()
    values: dict[str, Any] = {}
    for k, op in enumerate(network.ops):
        w._own = []
        add(w, values, f"v{k}", op)
    return w


def add(w: Written, values: dict[str, Any], name: str, op: Op) -> None:
    """Appends an operation; `values` has tensors without numbers by name."""
    first = len(w.leaves)
    w._own = []
    operands = [f"v{o}" for o in op.operands]
    if op.kind in SOURCES:
        text = SOURCES[op.kind].write(w, **op.args)
    else:
        text = KINDS[op.kind].write(w, *[(o, w.shapes[int(o[1:])]) for o in operands], **op.args)
    for leaf in w.leaves[first:]:
        kind = torch.int64 if leaf.below else torch.float64
        values[leaf.name] = torch.empty(leaf.shape, dtype=kind, device="meta")
    if op.kind in SOURCES and SOURCES[op.kind].weight < 0:  # computed
        shape = tuple(op.args["shape"])
        w.computed.append((name, text, shape))
        values[name] = torch.empty(shape, dtype=torch.float64, device="meta")
    else:
        w.lines.append((name, text))
        values[name] = eval(text, META, values)
    if 0 in values[name].shape:
        raise ValueError("an empty value")
    w.shapes.append(tuple(values[name].shape))
    w._reach[name] = frozenset(w._own).union(*[w._reach[o] for o in operands])


def numbers(network: Network, leaf: Leaf, at: int, call: int) -> np.ndarray:
    """The numbers of leaf `at` at a call, as the dtype has them; float64, or int32 of positions. Parameters change from
    the third call on, as an optimizer's would."""
    if leaf.parameter:
        call //= 2
    rng = np.random.default_rng([network.seed & 0xffffffff, at, call])
    if leaf.below:
        return rng.integers(0, leaf.below, leaf.shape).astype(np.int32)
    return rounded(rng.standard_normal(leaf.shape) * leaf.scale, network.dtype)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers that a dtype has, in float64."""
    kind: Any = getattr(torch, dtype)
    found: np.ndarray = torch.tensor(np.asarray(array, np.float32)).to(kind).double().numpy()
    return found


def cotangents(network: Network, shapes: list[Shape]) -> list[np.ndarray]:
    """What outputs are multiplied by in the loss."""
    rng = np.random.default_rng([network.seed & 0xffffffff, 12345])
    return [rounded(rng.standard_normal(shape), network.dtype) for shape in shapes]


def pruned(network: Network) -> Network:
    """Without the operations that no output depends on."""
    needed = set(network.outputs)
    for k in reversed(range(len(network.ops))):
        if k in needed:
            needed.update(network.ops[k].operands)
    new = {k: n for n, k in enumerate(sorted(needed))}
    ops = tuple([replace(op, operands=tuple(new[o] for o in op.operands))
                 for k, op in enumerate(network.ops) if k in needed])
    return replace(network, ops=ops, outputs=tuple(dict.fromkeys(new[o] for o in network.outputs)))
