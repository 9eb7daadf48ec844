"""A network as a test in minigrad's own words."""
from __future__ import annotations

from fuzz.network import Network, written
from fuzz.run import UNIT


def script(network: Network) -> str:
    """A pytest module that compares the network's device with NUMPY."""
    w = written(network)
    names = w.differentiable(network.outputs) if network.wanted != "values" else []
    lines = []
    for leaf in w.leaves:
        make = f"positions({leaf.below}, {leaf.shape})" if leaf.below else f"numbers({leaf.shape}, {leaf.scale:.6g})"
        lines.append(f"{leaf.name} = {make}" + (".requires_grad_()" if leaf.name in names else ""))
    lines += [f"{name} = ({text}).cast({network.dtype!r})" for name, text, _ in w.computed]
    lines += [f"{name} = {text}" for name, text in w.lines]
    outputs = [f"v{k}" for k in network.outputs]
    if names:
        square = "{0} * {0}" if network.loss == "square" or network.wanted == "second" else "{0}"
        terms = [f"({square.format(f'v{k}')} * numbers({w.shapes[k]})).sum()" for k in network.outputs]
        lines.append("loss = " + " + ".join(terms))
    by = ", ".join(names)
    if network.wanted == "second" and names:
        lines += [f"first = loss.gradient({by})", f"second = sum((g * g).sum() for g in first).gradient({by})",
                  "return list(second)"]
    elif names:
        kept = "" if network.wanted == "gradients" else "".join(f"{o}, " for o in outputs)
        lines.append(f"return [{kept}*loss.gradient({by})]")
    else:
        lines.append(f"return [{', '.join(outputs)}]")
    body = "\n    ".join(lines)
    tolerance = UNIT[network.dtype] * (300 if network.dtype == "float32" else 16)
    return f'''"""{network.text()}

Run again exactly: python -m fuzz --network '{network.to_json()}'
"""
import numpy as np
from minigrad import Tensor, cat, config, jit, maximum, where
from minigrad.nn import functional as F


def network():
    rng = np.random.default_rng({network.seed & 0xffffffff})

    def numbers(shape, scale=1.0):
        return Tensor((rng.standard_normal(shape) * scale).astype(np.float32)).cast({network.dtype!r}).realize()

    def positions(below, shape):
        return Tensor(rng.integers(0, below, shape).astype(np.int32)).realize()

    {body}


def results(device):
    Tensor.manual_seed({network.seed & 0x7fffffff})
    with config(device=device, threads={network.threads}, opencl_plans={network.opencl_plans!r}):
        return [r.float().numpy() for r in {"jit(network)()" if network.calls else "network()"}]


def test_network():
    for got, want in zip(results({network.device!r}), results("NUMPY")):
        np.testing.assert_allclose(got, want, rtol={tolerance:.1g}, atol={tolerance:.1g} * np.abs(want).max())
'''
