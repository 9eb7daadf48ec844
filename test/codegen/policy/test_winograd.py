# mypy: disable-error-code="arg-type"
"""Convolutions by Winograd's algorithm: the nests against the one that they replace, and numbers beside float64."""
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.packed import AVX512, flat_kernel, tensor

from minigrad import Tensor, config
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param, Store
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.passes import forget_stages, stages_of
from minigrad.codegen.patterns.recognise_convolution import piece
from minigrad.codegen.policy import winograd as policy
from minigrad.codegen.policy.winograd import suited
from minigrad.codegen.policy.winograd_nests import form, winograd
from minigrad.engine.compiled import forget_plans
from minigrad.nn import functional as F
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import WINOGRAD

Make = Callable[[], Tensor]


def conv(*shape: int, kernels: int = 9, size: tuple[int, ...] = (3, 3), groups: int = 1, **options: int) -> Tensor:
    return tensor(*shape).conv2d(tensor(kernels, shape[1] // groups, *size), groups=groups, **options)


def gradient(of: str, *shape: int, kernels: int = 9, groups: int = 1, padding: int = 1) -> Tensor:
    x, w = tensor(*shape), tensor(kernels, shape[1] // groups, 3, 3)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w, padding=padding, groups=groups)
    return (y * tensor(*y.shape)).sum().gradient(x if of == "data" else w)[0]


CASES: dict[str, Make] = {
    "padded": lambda: conv(2, 8, 9, 10, padding=1),
    "plain": lambda: conv(1, 8, 7, 9),
    "whole tiles": lambda: conv(1, 8, 8, 12, padding=1),
    "wide padding": lambda: conv(1, 8, 5, 6, padding=3),
    "smaller than a tile": lambda: conv(3, 8, 2, 3, padding=1),
    "groups": lambda: conv(2, 18, 6, 7, kernels=16, groups=2, padding=1),
    "epilogue": lambda: (conv(1, 8, 9, 6, padding=1) + tensor(9, 1, 1)).relu() * tensor(9, 9, 6),
    "prologue": lambda: (tensor(1, 8, 9, 6) * tensor(8, 1, 1)).relu().conv2d(tensor(9, 8, 3, 3), padding=1),
    "row": lambda: conv(2, 8, 6, 9, size=(1, 3)),
    "column": lambda: conv(2, 8, 9, 6, size=(3, 1), padding=(1, 0)),
    "one axis of two": lambda: conv(1, 8, 9, 8, size=(5, 3), padding=1),
    "strided columns only": lambda: conv(1, 8, 9, 11, padding=1, stride=(1, 2)),
    "one dimension": lambda: F.conv1d(tensor(2, 8, 30), tensor(9, 8, 3), padding=1),
    "three dimensions": lambda: F.conv3d(tensor(1, 8, 4, 5, 6), tensor(9, 8, 3, 3, 3), padding=1),
    "data gradient": lambda: gradient("data", 2, 8, 9, 7),
    "data gradient of groups": lambda: gradient("data", 1, 16, 6, 7, kernels=18, groups=2),
    "data gradient without padding": lambda: gradient("data", 1, 8, 9, 9, padding=0),
    "weight gradient": lambda: gradient("weights", 2, 8, 9, 7),
    "weight gradient of groups": lambda: gradient("weights", 1, 16, 6, 7, kernels=18, groups=2),
    "weight gradient without padding": lambda: gradient("weights", 3, 9, 8, 12, padding=0),
    "transposed": lambda: tensor(1, 8, 6, 7).conv_transpose2d(tensor(8, 9, 3, 3), padding=1),
}


def convolutions(kernel: Kernel) -> list[Nest]:
    return [nest for nest in kernel.nests if suited(nest)]


def ran(kernel: Kernel, nests: list[Nest], scratch: list[Param], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The first output after some nests, one after another; memory between them is NaN at first."""
    arrays = {name: a.copy() for name, a in arrays.items()}
    arrays |= {p.name: np.full(int(p.shape[0]), np.nan, np.float32) for p in scratch}
    written = set[str]()
    for nest in nests:
        params = [replace(p, mode="in" if p.name in written else "out") for p in scratch]
        own = {s.param for s in nest.body if isinstance(s, Store)}
        params = [p for p in params if p.name in written | own]
        whole = replace(kernel, params=(*kernel.params, *params)).with_nests((nest,))
        interpret_kernel(whole, {p.name: arrays[p.name] for p in whole.params})
        written |= own
    return arrays[kernel.params[0].name]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("outputs", WINOGRAD)
@pytest.mark.parametrize("case", CASES)
def test_nests_compute_what_the_kernel_does(case: str, outputs: int, channels_last: bool) -> None:
    kernel = flat_kernel(CASES[case](), AVX512)
    rng = np.random.default_rng(3)
    arrays = {p.name: rng.standard_normal(int(p.shape[0])).astype(np.float32) for p in kernel.params}
    found = convolutions(kernel)
    assert found
    for nest in found:
        scratch: list[Param] = []
        c = suited(nest)
        assert c is not None
        nests = winograd([c], form(outputs), channels_last, scratch)
        before, after = ran(kernel, [nest], [], arrays), ran(kernel, nests, scratch, arrays)
        np.testing.assert_allclose(after, before, atol=4e-6 * np.abs(before).max(), rtol=0)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case, along", [("padded", "examples"), ("whole tiles", "places"), ("epilogue", "places"),
                                        ("data gradient", "examples"), ("weight gradient", "examples"),
                                        ("weight gradient of groups", "places"), ("one dimension", "places")])
def test_pieces(case: str, along: str, channels_last: bool) -> None:
    kernel = flat_kernel(CASES[case](), AVX512)
    rng = np.random.default_rng(3)
    arrays = {p.name: rng.standard_normal(int(p.shape[0])).astype(np.float32) for p in kernel.params}
    nest, = convolutions(kernel)
    c = suited(nest)
    assert c is not None
    v, step = (c.examples[0], 1) if along == "examples" else (c.axes[0].place, 4)
    pieces = [piece(c, v, k, min(step, extent(v) - k)) for k in range(0, extent(v), step)]
    scratch: list[Param] = []
    nests = winograd(pieces, form(4), channels_last, scratch)
    before, after = ran(kernel, [nest], [], arrays), ran(kernel, nests, scratch, arrays)
    assert len(pieces) > 1
    np.testing.assert_allclose(after, before, atol=4e-6 * np.abs(before).max(), rtol=0)


@pytest.mark.parametrize("make, axes", [(CASES["padded"], 2), (CASES["row"], 1), (CASES["column"], 1),
                                        (CASES["one axis of two"], 1), (CASES["three dimensions"], 2)])
def test_along_which_axes(make: Make, axes: int) -> None:
    nest, = convolutions(flat_kernel(make(), AVX512))
    c = suited(nest)
    assert c is not None and len(c.axes) == axes and not any(a.backwards for a in c.axes)


@pytest.mark.parametrize("make", [
    lambda: conv(1, 8, 9, 9, size=(2, 2)), lambda: conv(1, 8, 12, 12, size=(5, 5)),
    lambda: conv(1, 8, 9, 9, padding=1, stride=2), lambda: conv(1, 8, 12, 11, padding=2, dilation=2),
    lambda: conv(1, 2, 9, 9, padding=1),
    lambda: conv(1, 8, 9, 9, padding=1, kernels=2), lambda: tensor(33, 9) @ tensor(9, 40),
    lambda: conv(1, 16, 9, 9, groups=16, kernels=16, padding=1)],
    ids=["2x2", "5x5", "strided", "dilated", "few channels", "few kernels", "product", "depthwise"])
def test_what_is_none(make: Make) -> None:
    assert not convolutions(flat_kernel(make(), AVX512))


def test_a_form_multiplies_polynomials() -> None:
    """y = A ((G g) * (B d)) for any taps and neighbours."""
    rng = np.random.default_rng(5)
    for outputs in WINOGRAD:
        f = form(outputs)
        image, taps, results = np.array(f.image), np.array(f.taps), np.array(f.results)
        assert image.shape == (outputs + 2, outputs + 2) and results.shape == (outputs, outputs + 2)
        d, g = rng.standard_normal(outputs + 2), rng.standard_normal(3)
        np.testing.assert_allclose(results @ ((taps @ g) * (image @ d)), np.correlate(d, g, "valid"), atol=1e-12)


def test_before_and_after() -> None:
    """The products are of matrices, and the image is 0 as far as tiles reach."""
    kernel = flat_kernel(conv(1, 8, 4, 6, size=(1, 3)), AVX512)
    scratch: list[Param] = []
    c = suited(kernel.nests[0])
    assert c is not None
    texts = [print_kernel(kernel.with_nests((n,))).split("\n", 1)[1] for n in winograd([c], form(2), False, scratch)]
    assert texts[1] == ("  for r0<8, i1<4, i2<6:\n"
                        "    w1[6*i1+i2+24*r0] = p0[6*i1+i2+24*r0]\n")
    assert texts[0] == ("  for i0<9, r0<8:\n    d0 = p1[24*i0+3*r0]\n    d1 = p1[24*i0+3*r0+1]\n"
                        "    d2 = p1[24*i0+3*r0+2]\n    w0[8*i0+r0] = d0\n"
                        "    w0[8*i0+r0+80] = fma(d2, 0.5, fma(d1, 0.5, d0 * 0.5))\n"
                        "    w0[8*i0+r0+160] = fma(d1, -0.5, fma(d2, 0.5, d0 * 0.5))\n"
                        "    w0[8*i0+r0+240] = d2\n")
    assert "sum(r0<8: " in texts[3] and "i0<4, i2<9, i3<8" in texts[3]


@pytest.mark.parametrize("setting, most", [(0, 7e-7), (2, 7e-7), (4, 3e-6)])
@pytest.mark.parametrize("shape, kernels", [((1, 64, 56, 56), 64), ((2, 96, 17, 30), 48), ((1, 256, 20, 28), 128)])
def test_errors_beside_float64(shape: tuple[int, ...], kernels: int, setting: int, most: float) -> None:
    """Of the largest result; direct sums and the smaller form have errors of one kind."""
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal(shape), rng.standard_normal((kernels, shape[1], 3, 3))
    with config(winograd=setting):
        made = Tensor(x.astype(np.float32)).conv2d(Tensor(w.astype(np.float32)), padding=1).numpy()
    with config(device="NUMPY"):
        exact = Tensor(x.astype(np.float32)).double().conv2d(Tensor(w.astype(np.float32)).double(), padding=1).numpy()
    assert np.abs(made - exact).max() <= most * np.abs(exact).max()


@pytest.mark.parametrize("of", ["results", "data", "weights"])
@pytest.mark.parametrize("shape, kernels", [((3, 32, 20, 24), 40), ((1, 40, 50, 33), 32), ((2, 24, 9, 70), 24)])
def test_stages_of_pieces(shape: tuple[int, ...], kernels: int, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces share memory and programs: their numbers are those of one piece."""
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal(shape).astype(np.float32), rng.standard_normal((kernels, shape[1], 3, 3))
    g = rng.standard_normal((shape[0], kernels, *shape[2:])).astype(np.float32)

    def made() -> tuple[np.ndarray, int]:
        forget_stages()
        forget_plans()
        a, b = [Tensor(v.astype(np.float32), requires_grad=True, device="CPU") for v in (x, w)]
        y = a.conv2d(b, padding=1)
        value = y.relu() if of == "results" else (y * Tensor(g)).sum().gradient(a if of == "data" else b)[0]
        kernel = schedule(build_graph([value.node]), frozenset(), get_device("CPU").target).steps[-1].kernel
        stages = stages_of(kernel, get_device("CPU").target).stages
        with config(disk_cache=False):
            return value.numpy(), len(stages)

    monkeypatch.setattr(policy, "cycles", lambda nest, target: 1.0 if suited(nest) is None else 1e12)
    whole, few = made()
    monkeypatch.setattr(policy, "ROOM", 0.25)
    pieces, many = made()
    forget_stages()
    forget_plans()
    assert many > few > 3
    np.testing.assert_allclose(pieces, whole, atol=4e-6 * np.abs(whole).max(), rtol=0)


def test_the_setting_is_part_of_what_is_planned() -> None:
    """Memory for taps: of 16 places of a tile by the smaller form, of 36 by the larger one."""
    kernel = flat_kernel(conv(1, 64, 56, 56, kernels=64, padding=1), AVX512)
    for features, places in ((frozenset[str](), 0), (frozenset({WINOGRAD[2]}), 16), (frozenset(WINOGRAD.values()), 36)):
        made = stages_of(kernel, replace(AVX512, features=AVX512.features | features))
        assert (len(made.stages) > 4) is (places > 0)
        assert {size for _, size in made.scratch}.isdisjoint({places * (64 * 64 + 16)}) is (places == 0)
