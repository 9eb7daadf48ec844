"""Sums of products of bytes on GPUs: which become integer dot products of words, and what these compute."""
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from conftest import drivers
from support.packed import equal_the_kernel, flat_kernel

import minigrad
from minigrad import Tensor, devices, show
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.policy import tiles
from minigrad.codegen.render.llvm_dot_products import signed_dot_of
from minigrad.codegen.render.opencl import render_opencl
from minigrad.dtype import int32
from minigrad.ops.scalars import dot_bytes
from minigrad.runtime.opencl import OpenCL
from minigrad.runtime.opencl_devices import byte_products, find_device
from minigrad.state import QuantizedTensor
from minigrad.target import BYTE_PRODUCTS, Target
from minigrad.value import binary, local

GPU = Target("gpu", "opencl", "none", 4, 64, 8, local_memory=48 << 10, max_group=256,
             features=frozenset(BYTE_PRODUCTS.values()))
SIGNS = {("int8", "int8"): "ss_int", ("uint8", "int8"): "us_int", ("int8", "uint8"): "us_int",
         ("uint8", "uint8"): "uu_uint"}
rng = np.random.default_rng(6)


def made(case: str, a: str, b: str, device: str = "CPU") -> Tensor:
    """Sums of products of two types, of numbers of their whole range; the same each time."""
    numbers = np.random.default_rng(6)

    def of(*shape: int, dtype: str) -> Tensor:
        info = np.iinfo(dtype)
        values = numbers.integers(info.min, info.max, shape, dtype, endpoint=True)
        values.flat[:2] = info.min, info.max
        return Tensor(values, device=device).cast("int32")

    if case == "conv":
        return of(2, 3, 9, 9, dtype=a).conv2d(of(18, 3, 3, 3, dtype=b), padding=1)
    if case == "batched":
        return of(3, 17, 45, dtype=a) @ of(3, 45, 19, dtype=b)
    if case == "a.T @ b.T":
        return of(64, 33, dtype=a).transpose(0, 1) @ of(40, 64, dtype=b).transpose(0, 1)
    if case == "in parts":
        return of(33, 2048, dtype=a) @ of(2048, 20, dtype=b)
    if case == "scaled":
        return (of(19, 70, dtype=a) @ of(70, 37, dtype=b) + of(37, dtype=a)).cast("float32") * 0.5
    return of(19, 23, dtype=a) @ of(23, 37, dtype=b)


def tiled(kernel: Kernel, nest: Nest, target: Target) -> Function:
    """The loops of a nest in tiles."""
    chosen = tiles.plan(nest, target)
    assert not isinstance(chosen, str), chosen
    return build_nests(kernel.with_nests((chosen[0],)), chosen[1], "f")


CASES: dict[tuple[str, str], tuple[str, ...]] = {("int8", "int8"): ("odd", "a.T @ b.T", "batched", "scaled", "conv")}
CASES |= {signs: ("odd", "scaled") for signs in SIGNS if signs not in CASES}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles with edges in small tests."""
    monkeypatch.setattr(tiles, "MIN_WORK", 1)


@pytest.mark.parametrize("signs, case", [(signs, case) for signs, cases in CASES.items() for case in cases])
def test_tiles_of_words_equal_the_kernel(signs: tuple[str, str], case: str, small: None) -> None:
    kernel = flat_kernel(made(case, *signs), GPU)
    nest, = kernel.nests
    function = tiled(kernel, nest, GPU)
    verify_function(function)
    equal_the_kernel(kernel, [function])
    assert f"dot_4x8packed_{SIGNS[signs]}(" in render_opencl(function, GPU).source
    own = BYTE_PRODUCTS[signs[0] == "int8", signs[1] == "int8"]
    without = replace(GPU, features=GPU.features - {own})
    assert "dot_4x8" not in render_opencl(tiled(kernel, nest, without), without).source


@pytest.mark.parametrize("a, b", [("int16", "int8"), ("int32", "int32"), ("float32", "float32")])
def test_wider_numbers_are_no_words(a: str, b: str, small: None) -> None:
    x, y = (Tensor(rng.integers(-99, 99, shape).astype(kind), device="CPU").cast("float32" if "f" in kind else "int32")
            for kind, shape in ((a, (19, 23)), (b, (23, 37))))
    kernel = flat_kernel(x @ y, GPU)
    assert "dot_4x8" not in render_opencl(tiled(kernel, kernel.nests[0], GPU), GPU).source


@pytest.mark.parametrize("signed", [*product((False, True), repeat=2)])
def test_signs_of_bytes_are_known(signed: tuple[bool, bool]) -> None:
    w, x = local("w", int32), local("x", int32)
    found = signed_dot_of(dot_bytes(w, x, dtype=int32, signed=signed))
    assert found == (((x, w), (False, True)) if signed == (True, False) else ((w, x), signed))
    other = dot_bytes(w, x, dtype=int32, signed=(not signed[0], signed[1]))
    mixed = binary("add", dot_bytes(w, x, dtype=int32, signed=signed).args[0], other.args[1])
    assert signed_dot_of(mixed) is None


HAVE_THEM = [name for name in drivers() if byte_products(find_device(name.partition(":")[2]).handle)]


@pytest.fixture(scope="module", params=HAVE_THEM)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A driver that has integer dot products, with plans as for a GPU, whether they are fast there or not."""
    info = find_device(request.param.partition(":")[2])
    own = OpenCL(replace(info, vector_bytes=4, features=info.features.union(BYTE_PRODUCTS.values())))
    own.name = f"BYTE_PRODUCTS{info.index}"
    own.target = replace(own.target, name=own.name)
    devices.register(own.name, lambda: own)
    yield own.name
    devices.unregister(own.name)


@pytest.mark.parametrize("signs", SIGNS, ids="-".join)
def test_products_of_bytes_are_executed(device: str, signs: tuple[str, str], small: None) -> None:
    """All cases of a pair of signs at once: drivers take long for a build."""
    cases = (*CASES[signs], "in parts")
    results = [made(case, *signs, device=device) for case in cases]
    for result in results:
        assert f"dot_4x8packed_{SIGNS[signs]}(" in show(result, stage="source")
    minigrad.realize(*results)
    for case, result in zip(cases, results, strict=True):
        np.testing.assert_array_equal(result.numpy(), made(case, *signs, device="NUMPY").numpy())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_quantised_products_are_executed(device: str, kind: str) -> None:
    weights = rng.standard_normal((37, 96)).astype(np.float32)
    for rows in (1, 3, 20):
        x = rng.standard_normal((rows, 96)).astype(np.float32)
        found, twin = (QuantizedTensor.quantize(weights, kind, on).linear(Tensor(x, device=on),
                                                                          quantize_activations=True)
                       for on in (device, "NUMPY"))
        assert "dot_4x8packed_us_int(" in show(found, stage="source")
        np.testing.assert_allclose(found.numpy(), twin.numpy(), rtol=1e-5, atol=3e-5)
