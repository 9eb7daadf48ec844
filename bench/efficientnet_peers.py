"""EfficientNet in torch, and exported from it to onnxruntime: the other sides of `bench.efficientnet`.

The same network as in examples/efficientnet: squeeze-and-excitation, SiLU, no dropout, symmetric padding.
"""
from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.options import Bench
from bench.timing import Side
from examples.efficientnet.model import Stage

OPSET = 17


class Shape(NamedTuple):
    stages: tuple[Stage, ...]
    head: int
    classes: int


def network(torch: Any, shape: Shape) -> Any:
    """A module from images [N, 3, H, W] to logits [N, classes]."""
    nn: Any = torch.nn

    def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]

    class Gate(nn.Module):
        def __init__(self, channels: int, squeezed: int):
            super().__init__()
            self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

        def forward(self, x: Any) -> Any:
            means = nn.functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))
            return x * torch.sigmoid(self.expand(means))

    class Block(nn.Module):
        def __init__(self, stage: Stage):
            super().__init__()
            hidden = stage.in_channels * stage.expansion
            parts = [*conv_norm(stage.in_channels, hidden, 1), nn.SiLU()] if stage.expansion != 1 else []
            parts += [*conv_norm(hidden, hidden, stage.kernel, stage.stride, hidden), nn.SiLU(),
                      Gate(hidden, stage.in_channels // 4), *conv_norm(hidden, stage.out_channels, 1)]
            self.parts = nn.Sequential(*parts)
            self.residual = stage.stride == 1 and stage.in_channels == stage.out_channels

        def forward(self, x: Any) -> Any:
            return x + self.parts(x) if self.residual else self.parts(x)

    blocks = []
    for stage in shape.stages:
        blocks.append(Block(stage))
        blocks += [Block(stage._replace(in_channels=stage.out_channels, stride=1)) for _ in range(stage.repeats - 1)]
    return nn.Sequential(*conv_norm(3, 32, 3, 2), nn.SiLU(), *blocks,
                         *conv_norm(shape.stages[-1].out_channels, shape.head, 1), nn.SiLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape.head, shape.classes))


def torch_sides(torch: Any, shape: Shape, mode: str, images: np.ndarray, labels: np.ndarray,
                compiled: bool) -> list[Side]:
    """Eager in both layouts to infer, in channels-last, torch's better one, to train; compiled where asked."""
    variants = [("nchw", False), ("channels_last", False)] if mode == "infer" else [("channels_last", False)]
    variants += [("channels_last", True)] if compiled else []
    return [Side("torch", f"{'compile' if compile else 'eager'} {layout}",
                 _torch_step(torch, shape, mode, images, labels, layout, compile)) for layout, compile in variants]


def _torch_step(torch: Any, shape: Shape, mode: str, images: np.ndarray, labels: np.ndarray, layout: str,
                compiled: bool) -> Callable[[], Any]:
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    model = network(torch, shape).to(memory_format=order).train(mode == "train")
    batch, classes = torch.from_numpy(images).to(memory_format=order), torch.from_numpy(labels)
    forward = torch.compile(model) if compiled else model
    if mode == "infer":
        def infer() -> None:
            with torch.no_grad():
                forward(batch)

        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def train() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(batch), classes).backward()
        optimizer.step()

    return train


def onnxruntime_sides(bench: Bench, shape: Shape, images: np.ndarray) -> list[Side]:
    """A session whose idle threads spin, and one whose threads sleep; none where torch cannot export."""
    torch, onnxruntime = bench.peers.torch, bench.peers.onnxruntime
    exported = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(network(torch, shape).eval(), (torch.from_numpy(images),), exported,
                              opset_version=OPSET, dynamo=False)
    except Exception as error:  # the exporter raises errors of its own, without a common class
        bench.report.say(f"without onnxruntime: torch cannot export the network: {str(error).splitlines()[0]}")
        return []
    sides = []
    for variant, spin in (("spin", "1"), ("sleep", "0")):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = bench.options.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", spin)
        session = onnxruntime.InferenceSession(exported.getvalue(), options, providers=["CPUExecutionProvider"])
        sides.append(Side("onnxruntime", variant, _onnxruntime_step(session, images)))
    return sides


def _onnxruntime_step(session: Any, images: np.ndarray) -> Callable[[], Any]:
    inputs = {session.get_inputs()[0].name: images}
    return lambda: session.run(None, inputs)
