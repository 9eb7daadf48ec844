"""Times of convolutions of libraries, by their algorithms, each a product in the end.

Weights besides those of products: a factor of the work of `direct`, `igemm`, `gemm`, `winograd`, `fft` over a plain
product's; of streams that transforms add, `transform` of Winograd's, `spectrum` of Fourier's; `column`, microseconds
of unfolding an image and of calling the library of products; `batched`, a product of all images over that; `thin` and
`thin_rate`, the time of a stream and the share of lanes for groups of few channels; `strided`, the factor of direct
ones with strides; `apart`, that of a gradient where strides pass over pixels; `filters`, microseconds of Winograd's
filters; `half`, the rate of halves over float32's.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.dojo_products import product, rate_of
from minigrad.codegen.machines.gpus import Gpu

OPTIONS = tuple(np.array([(*tile, parts) for tile in (
    (128, 128, 256), (128, 64, 256), (64, 128, 256), (64, 64, 256), (64, 32, 128), (32, 64, 128), (32, 32, 64),
    (16, 64, 64)) for parts in (1, 4, 16)], float).T)
WINOGRAD, FILTER = 2, 3  # outputs and taps of a side of its tiles
MATRIX = 8  # channels that matrix units take at once


class Convolution:
    """One or more convolutions: sizes, and the time of each algorithm. `back` is the gradient of the input."""

    def __init__(self, c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float], size: Any, rate: Any, back: Any):
        def of(name: str, other: float = 1.0) -> Any:
            return np.asarray(c.get(name, other), float)

        self.gpu, self.w = gpu, w
        self.images, self.channels, self.filters, self.groups = of("n"), of("c"), of("k"), of("groups")
        self.taps = of("r") * of("s")
        self.r, self.s, self.height, self.width = of("r"), of("s"), of("h"), of("w")
        self.back, self.size, self.rate = back, size, rate
        strides = of("stride_h"), of("stride_w")
        self.stride = strides[0] * strides[1]
        self.met = np.minimum(strides[0], self.r) * np.minimum(strides[1], self.s)  # phases of the gradient with a tap
        self.out_height = np.maximum(1, np.floor((self.height + 2 * of("pad_h", 0) - of("dil_h") * (self.r - 1) - 1)
                                                 / strides[0]) + 1)
        self.out_width = np.maximum(1, np.floor((self.width + 2 * of("pad_w", 0) - of("dil_w") * (self.s - 1) - 1)
                                                / strides[1]) + 1)
        self.pixels = self.out_height * self.out_width
        self.rows = np.where(back, self.channels, self.filters) / self.groups
        self.inner = np.where(back, self.filters, self.channels) / self.groups
        # a gradient is that of the phases that a tap meets, each of which has all pixels of the result
        phases = self.met * np.maximum(self.height * self.width / self.stride, self.pixels)
        self.columns = np.where(back, phases, self.pixels)
        data = self.images * (self.channels * self.height * self.width + self.filters * self.pixels)
        self.stream = self.seconds((data + self.channels * self.filters * self.taps / self.groups) * size)
        self.launch = w["launch"] * 1e-6

    def seconds(self, bytes_: Any) -> Any:
        return bytes_ / (self.gpu.dram_gbs * 1e9 * self.gpu.dram_share_measured)

    def product(self, algorithm: str, columns: Any, depth: Any, batch: Any, taps: Any = 1.0) -> Any:
        rate = self.rate / self.w[algorithm]
        return product(self.gpu, self.w, self.rows, columns, depth, batch, self.size, rate, taps, OPTIONS)

    def depth(self) -> Any:
        return self.inner * self.taps / np.where(self.back, self.met, 1)

    def igemm(self, algorithm: str = "igemm") -> Any:
        found = self.product(algorithm, self.images * self.columns, self.depth(), self.groups, self.taps)
        return found * np.where(self.back & (self.met < self.stride), self.w["apart"], 1.0)

    def depthwise(self) -> Any:
        """Few channels of a group: a stream, and multiply-adds without a tile."""
        work = self.images * self.filters * self.channels / self.groups * self.taps * self.pixels
        lanes = self.gpu.f32_tflops_single * 1e12 * self.w["thin_rate"]
        return np.maximum(self.stream * self.w["thin"], 2 * work / lanes) + self.launch

    def direct(self) -> Any:
        tiled = self.igemm("direct") * np.where((self.stride > 1) & (self.taps > 1), self.w["strided"], 1.0)
        return np.where(self.groups > 1, np.minimum(tiled, self.depthwise()), tiled)

    def gemm(self) -> Any:
        """Products of unfolded images, one after the other; of 1 x 1 filters all at once where that is faster."""
        column = self.w["column"] * 1e-6
        one = self.images * (self.product("gemm", self.columns, self.depth(), self.groups) + column)
        plain = (self.taps == 1) & (self.stride == 1)
        all_ = self.product("gemm", self.columns, self.depth(), self.groups * self.images) * self.w["batched"]
        unfolded = self.seconds(2 * self.channels * self.taps * self.pixels * self.size)
        return np.where(plain, np.minimum(one, all_ + column), one + self.images * unfolded)

    def winograd(self) -> Any:
        """16 products for tiles of 2 x 2 outputs; filters are cut into 3 x 3, for strides in two."""
        high = np.where(self.back, self.height, self.out_height)
        wide = np.where(self.back, self.width, self.out_width)
        tiles = np.ceil(high / WINOGRAD) * np.ceil(wide / WINOGRAD) * self.images
        cuts = np.ceil(self.r / FILTER) * np.ceil(self.s / FILTER) * np.where((self.stride > 1) & ~self.back, 2, 1)
        points = (WINOGRAD + FILTER - 1) ** 2
        # its operands stay in the unit
        t = self.product("winograd", tiles, self.inner * cuts, self.groups * points, points / 4)
        prepared = self.w["transform"] * self.stream + self.w["filters"] * 1e-6
        return np.maximum(t, self.stream + self.launch) + prepared

    def fft(self) -> Any:
        side = np.exp2(np.ceil(np.log2(np.maximum(self.height + self.r, self.width + self.s))))
        work = self.product("fft", self.images, self.inner * self.groups, side * side / 2)  # of complex numbers
        planes = self.images * (self.channels + self.filters) + self.channels * self.filters
        return work + self.seconds(planes * side * side * 4 * 4) * self.w["spectrum"] + 3 * self.launch


def _of_algorithms(convolution: Convolution, names: Any) -> Any:
    """The times by the algorithm that each row names."""
    names = np.asarray(names)
    found = np.full(names.shape, np.nan)
    for name in np.unique(names):
        found = np.where(names == name, getattr(convolution, str(name))(), found)
    return found


def conv2d_miopen(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    half = np.asarray(c["dtype"]) != "f32"
    lanes = np.where(half & (gpu.f16_vector_ratio > 1), w["half"], 1.0)
    products = np.isin(np.asarray(c["kernel"]), ("igemm", "gemm")) & bool(gpu.f16_matrix_per_cycle_unit)
    rate = np.where(products, rate_of(c["dtype"], gpu, w), lanes)
    back = np.asarray(c["direction"]) == "B"
    return _of_algorithms(Convolution(c, gpu, w, np.where(half, 2.0, 4.0), rate, back), c["kernel"])


def conv2d_tvm(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    half = np.asarray(c["dtype"]) == "f16"
    rate = np.where(half, max(1.0, gpu.f16_vector_ratio), 1.0)
    return _of_algorithms(Convolution(c, gpu, w, np.where(half, 2.0, 4.0), rate, np.bool_(False)), c["kernel"])


def conv2d_deepbench(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    """The faster of an implicit product and, for 3 x 3 filters, Winograd's. Channels of halves are padded."""
    half = np.asarray(c["dtype"]) == "f16"
    padded = {name: np.where(half, np.ceil(c[name] / MATRIX) * MATRIX, c[name]) for name in ("c", "k")}
    whole = (padded["c"] == c["c"]) & (padded["k"] == c["k"])
    sizes = {**c, **padded, "r": c["filter_h"], "s": c["filter_w"]}
    rate = np.where(whole, rate_of(c["dtype"], gpu, w), 1.0)
    size, back = np.where(half, 2.0, 4.0), np.asarray(c["direction"]) == "B"
    there = Convolution(sizes, gpu, w, size, rate, back)
    lanes = Convolution(sizes, gpu, w, size, np.where(half, max(1.0, gpu.f16_vector_ratio), 1.0), back)
    small = (there.r == FILTER) & (there.s == FILTER) & (there.stride == 1)
    product = np.where(there.rows < MATRIX, np.minimum(there.igemm(), lanes.depthwise()), there.igemm())
    return np.where(small, np.minimum(product, lanes.winograd()), product)
