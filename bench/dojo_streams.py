"""Times of what memory bounds: elementwise operations, norms, a lattice's step, whole networks.

Weights: `launch`, microseconds of a launch, `joined`, more of one whose lanes join sums; `once`, `again`, streams of
softmax and norms over a plain one's, where a row is held and where it is read again from the last cache; `norm`,
likewise of long norms; `held`, share of the last cache in which what the operation before wrote is found; `reach`,
what these reach over the record's share of memory; `cell` and `packed`, operations of a cell of the lattice, and of
numbers that are packed besides; `touched`, times that a network's activations cross to memory, `channels`, that with
channels last; `matrix`, share of the arithmetic rate; `second`, part of the smaller of memory and arithmetic that the
larger does not hide; `layers`, launches for the cubic root of a million multiply-adds.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigrad.codegen.machines.gpus import Gpu

BINARY = ("add", "mul", "sub", "div", "max", "min")
ROWS_HELD = 1024  # columns that a group holds in registers


def rows_torch(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    kernel, columns = np.asarray(c["kernel"]), c["columns"]
    plane = 4.0 * c["rows"] * columns
    reach = np.minimum(2.0 * gpu.units, c["rows"]) * columns * 4 / gpu.l2_bytes  # of rows that are worked on at once
    missed = np.clip((reach - 0.3) / 0.4, 0, 1)
    long = np.asarray(columns) > ROWS_HELD
    softmax = np.where(long, w["again"] + (2 - w["again"]) * missed, w["once"])
    norm = np.where(long, w["norm"], w["once"])
    factor = np.where(kernel == "softmax", softmax, np.where(np.isin(kernel, ("ln", "layernorm", "rms")), norm, 1.0))
    moved = plane * np.where(np.isin(kernel, BINARY), 3, 2) * factor
    found = w["held"] * np.minimum(gpu.l2_bytes, moved / 2)
    launch = w["launch"] + np.where(factor != 1, w["joined"], 0.0)
    return launch * 1e-6 + (moved - found) / (gpu.dram_gbs * 1e9 * min(1.0, gpu.dram_share_measured * w["reach"]))


CELLS = 256 ** 3


def lbm_opencl(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    kernel = np.asarray(c["kernel"])
    moved = CELLS * np.where(kernel == "lbm_f32", 153.0, 77.0)
    work = CELLS * (w["cell"] + np.where(kernel == "lbm_f16c", w["packed"], 0.0))
    memory, lanes = moved / (gpu.dram_gbs * 1e9 * gpu.dram_share_measured), work / (gpu.f32_tflops_single * 1e12)
    return np.maximum(memory, lanes) + w["second"] * np.minimum(memory, lanes)


def network(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float], batch: Any, rate: float) -> Any:
    """A network's inference, from its multiply-adds, activations and parameters, of two bytes each."""
    if any(np.ndim(c[x]) == 0 and c[x] == "" for x in ("gmacs", "mactivations", "mparams")):
        raise LookupError("a network whose work is not known")
    work = 2e9 * c["gmacs"] * batch / (rate * w["matrix"])
    last = np.asarray(c.get("layout", "nchw")) == "nhwc"
    crossed = 2e6 * c["mactivations"] * batch * np.where(last, w.get("channels", 0.0), w["touched"])
    memory = (crossed + 2e6 * c["mparams"]) / (gpu.dram_gbs * 1e9 * gpu.dram_share_measured)
    launches = w["layers"] * np.cbrt(c["gmacs"] * 1e3) * w["launch"] * 1e-6
    return np.maximum(work, memory) + w["second"] * np.minimum(work, memory) + launches


def timm_infer(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    return network(c, gpu, w, c["batch"], half_rate(gpu))


def ncnn_vulkan(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    return network(c, gpu, w, 1.0, 1e12 * gpu.f32_tflops_single * max(1.0, gpu.f16_vector_ratio))


def half_rate(gpu: Gpu) -> float:
    """Operations a second of halves, by matrix units where there are any."""
    matrix = 2e6 * gpu.f16_matrix_per_cycle_unit * gpu.units * gpu.clock_mhz
    return matrix or 1e12 * gpu.f32_tflops_single * max(1.0, gpu.f16_vector_ratio)


BYTES = {"f16": 2.0, "q8_0": 1.06, "q4_k_m": 0.613}
"""Of a parameter in llama.cpp's formats."""


def llm_token(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    """A token: all parameters cross once where it is generated, a prompt's share its arithmetic."""
    name, form = str(c["model"]).split()
    size = name.rpartition("-")[2]
    if form not in BYTES or not size.endswith("b"):
        raise LookupError(str(c["model"]))
    parameters = float(size[:-1]) * 1e9
    work = 2 * parameters / (half_rate(gpu) * w["matrix"])
    if str(c["work"]).startswith("prompt"):
        return work
    memory = parameters * BYTES[form] / (gpu.dram_gbs * 1e9 * gpu.dram_share_measured)
    return memory + work * w["second"] + w["layers"] * w["launch"] * 1e-6
