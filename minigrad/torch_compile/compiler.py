"""`backend`: the function that `torch.compile` calls with the graphs that it finds."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from minigrad.errors import DeviceError, MinigradError
from minigrad.torch_compile.graph import Graph
from minigrad.torch_compile.products import UNREAD
from minigrad.torch_compile.table import decompositions, name_of

OPTIONS = {"strict": False}
"""`strict`: an operator that minigrad does not have is an error, rather than run by torch with a warning."""


def backend(module: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
            options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The compiled function of an FX graph: `torch.compile(model, backend=backend, options={"strict": True})`.

    `inputs` are examples of what it will be given. Gradients are torch's: AOTAutograd makes graphs of ATen operators,
    one for the forward and one for the backward pass, and minigrad runs both. Raises MinigradError for options that are
    not there and DeviceError for tensors that are not on the CPU.
    """
    given = OPTIONS | (options or {})
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown or mode not in (None, "default"):
        what = f"options {', '.join(unknown)}" if unknown else f"mode {mode!r}"
        raise MinigradError(f"[torch.compile] expected no mode and the options {', '.join(OPTIONS)}, got {what}")
    foreign = sorted({str(t.device) for t in inputs if isinstance(t, torch.Tensor) and t.device.type != "cpu"})
    if foreign:
        raise DeviceError(f"[torch.compile] expected tensors on the cpu, got some on {', '.join(foreign)}")

    def compiled(graph: fx.GraphModule, _: Sequence[Any]) -> Graph:
        return Graph(graph, given["strict"])

    return aot_autograd(fw_compiler=compiled, bw_compiler=compiled, decompositions=decompositions(),
                        partition_fn=_partition)(module, inputs)


def _partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """The graphs of the forward and the backward pass: what is cheap is computed again rather than kept, and what no
    gradient reads is not kept."""
    for node in joint.graph.nodes:
        unread = UNREAD.get(name_of(node.target).rpartition(".")[0], ()) if node.op == "call_function" else ()
        node.args = tuple([None if k in unread else a for k, a in enumerate(node.args)])
    return _by_cut(joint, inputs, **options)


_by_cut = partial(min_cut_rematerialization_partition, compiler="inductor")

trace_rules.add("minigrad")  # Dynamo would trace what runs between graphs: a buffer that goes with a tensor, say
