"""One step of Stable Diffusion 1.5's U-Net at 512x512, and its decoder, at random weights in float32, by each side.

    python -m bench.diffusion [--rounds 2] [--calls 3] [--torch PYTHON]      all sides in turn, a row for each
    python -m bench.diffusion --side minigrad --part unet                    one of them, as JSON

Each measurement is a process of its own, as the U-Net's weights are 3.4 GB; sides take turns, `--rounds` times. PYTHON
is an interpreter with torch and diffusers, which `torch` needs. A U-Net's step here is one image
without guidance; with guidance a step has two.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.memory import RESET, resident
from bench.peers import set_threads

SIDES, PARTS = ("minigrad", "torch", "onnxruntime"), ("unet", "decoder")
LATENTS, TEXT = (1, 4, 64, 64), (1, 77, 768)


def inputs_of(part: str, tiny: bool) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    latents = random.standard_normal((1, 4, 8, 8) if tiny else LATENTS, np.float32)
    if part == "decoder":
        return [latents]
    return [latents, np.array([500.0], np.float32), random.standard_normal(TEXT, np.float32)]


def our_model(part: str, tiny: bool) -> Any:
    """The model with random weights."""
    from examples.diffusion.unet import Config, UNet2DConditionModel
    from examples.zoo.vae import AutoencoderKLDecoder

    model: Any = (UNet2DConditionModel(Config((32, 64, 64, 64)) if tiny else Config()) if part == "unet"
                  else AutoencoderKLDecoder((32, 32, 32, 32) if tiny else (128, 256, 512, 512)))
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.realize()
    return model


def ours(part: str, tiny: bool) -> Callable[[], Any]:
    from minigrad import Tensor, jit

    model = our_model(part, tiny)
    given = [Tensor(array).realize() for array in inputs_of(part, tiny)]
    step = jit(model)
    return lambda: step(*given).numpy()


def export(part: str, path: str) -> None:
    """Writes our model as ONNX."""
    from minigrad import Tensor, onnx

    onnx.export(our_model(part, False), *[Tensor(array) for array in inputs_of(part, False)], path=path)


def torch_model(part: str) -> Any:
    import torch

    diffusers = import_module("diffusers")
    torch.manual_seed(0)
    if part == "unet":
        return diffusers.UNet2DConditionModel(cross_attention_dim=768).eval()
    levels = 4
    return diffusers.AutoencoderKL(block_out_channels=(128, 256, 512, 512), layers_per_block=2,
                                   down_block_types=("DownEncoderBlock2D",) * levels,
                                   up_block_types=("UpDecoderBlock2D",) * levels).eval()


def torch_call(part: str) -> Callable[[], Any]:
    import torch

    model, given = torch_model(part), [torch.from_numpy(array) for array in inputs_of(part, False)]
    run = model.forward if part == "unet" else model.decode

    def call() -> Any:
        with torch.inference_mode():
            return run(*given, return_dict=False)[0].numpy()

    return call


def onnxruntime_call(part: str, threads: int) -> Callable[[], Any]:
    """The same model by minigrad's own export, in a process before, whose memory is not counted."""
    onnxruntime, arrays = import_module("onnxruntime"), inputs_of(part, False)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        subprocess.run([sys.executable, "-m", "bench.diffusion", "--part", part, "--export", path], check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda: session.run(None, dict(zip(names, arrays, strict=True)))[0]


def measure(side: str, part: str, threads: int, calls: int, tiny: bool) -> dict[str, float]:
    """Times of the first and of the other calls, the least of these by the clock and of processors, and the peak of
    what was resident then."""
    set_threads(threads)
    call = (ours(part, tiny) if side == "minigrad" else torch_call(part) if side == "torch"
            else onnxruntime_call(part, threads))
    started, before = time.perf_counter(), time.process_time()
    call()
    first, first_cpu = time.perf_counter() - started, time.process_time() - before
    call()
    RESET.write_text("5")
    times, processors = [], []
    for _ in range(calls):
        started, before = time.perf_counter(), time.process_time()
        result = call()
        times.append(time.perf_counter() - started)
        processors.append(time.process_time() - before)
    assert np.isfinite(result).all()
    return {"first_s": first, "first_cpu_s": first_cpu, "best_s": min(times), "cpu_s": min(processors),
            "peak_mb": resident("VmHWM") / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--part", choices=PARTS, default="unet")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a small model, of minigrad alone")
    parser.add_argument("--torch", default=sys.executable, help="an interpreter with torch and diffusers")
    parser.add_argument("--export", metavar="FILE", help="write our model as ONNX")
    parser.add_argument("--sides", default="minigrad,torch", help="those to measure, with commas between")
    o = parser.parse_args()
    if o.export:
        export(o.part, o.export)
        return
    if o.side:
        print(json.dumps(measure(o.side, o.part, o.threads, o.calls, o.tiny)))
        return
    for part in PARTS:
        rows: dict[str, list[dict[str, float]]] = {side: [] for side in o.sides.split(",")}
        for _ in range(o.rounds):
            for side, found in rows.items():
                python = o.torch if side == "torch" else sys.executable
                done = subprocess.run([python, "-m", "bench.diffusion", "--side", side, "--part", part, "--threads",
                                       str(o.threads), "--calls", str(o.calls)], capture_output=True, text=True,
                                      check=False)
                if done.returncode:
                    print(part, side, (done.stderr.strip().splitlines() or ["it failed"])[-1])
                    continue
                found.append(json.loads(done.stdout.splitlines()[-1]))
        for side, found in rows.items():
            if found:
                best = {key: min(each[key] for each in found) for key in found[0]}
                print(f"{part:8} {side:12} by the clock {best['best_s']:.2f} s, of processors {best['cpu_s']:.2f} s, "
                      f"first {best['first_cpu_s']:.1f} s, peak {best['peak_mb']:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
