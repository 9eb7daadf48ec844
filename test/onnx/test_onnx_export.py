"""`onnx.export`: what a call gives, onnxruntime and OnnxModel give too, from the model that was written of it."""
from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.random_graphs import TOLERANCE, Graph

from minigrad import Tensor, Variable, dtypes, jit, nn, scan
from minigrad.errors import MinigradError

onnx = pytest.importorskip("onnx")

from minigrad.onnx import OnnxModel, Unsupported, export  # noqa: E402

ort = pytest.importorskip("onnxruntime")
ort.set_default_logger_severity(3)
RNG = np.random.default_rng


def by_onnxruntime(model: Any, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = {name: v.numpy() if isinstance(v, Tensor) else np.asarray(v) for name, v in feeds.items()}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, arrays), strict=True))


def close(got: np.ndarray, want: np.ndarray, tolerance: float, name: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, (name, got.shape, want.shape, got.dtype, want.dtype)
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=1) if want.dtype.kind == "f" else 1
    np.testing.assert_allclose(got, want, tolerance, tolerance * largest, err_msg=name)


def check(f: Callable[..., Any], *inputs: Tensor, tolerance: float = 1e-5, ours: bool = True) -> Counter[str]:
    """Compares a function with its model by onnxruntime and by OnnxModel; returns the counts of ONNX operators."""
    model = export(f, *inputs)
    feeds = {v.name: t for v, t in zip(model.graph.input, inputs, strict=True)}
    results = f(*inputs)
    want = [t.numpy() for t in (results if isinstance(results, (list, tuple)) else [results])]
    for k, (got, expected) in enumerate(zip(by_onnxruntime(model, feeds).values(), want, strict=True)):
        close(got, expected, tolerance, f"output {k} by onnxruntime")
    if ours:
        for k, (found, expected) in enumerate(zip(OnnxModel(model)(feeds).values(), want, strict=True)):
            close(found.numpy(), expected, tolerance, f"output {k} by OnnxModel")
    return Counter(n.op_type for n in model.graph.node)


# Operations

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-3, -1.5, 2.5, 0.5, -0.5]


def floats(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Tensor:
    array = RNG(seed).standard_normal(shape) * 3
    array.flat[:min(array.size, len(SPECIAL))] = SPECIAL[:array.size]
    return Tensor(array.astype(dtype)).realize()


def elementwise(x: Tensor, y: Tensor) -> list[Tensor]:
    unary: list[Callable[[Tensor], Tensor]] = [
             Tensor.neg, Tensor.abs, Tensor.exp, Tensor.sin, Tensor.cos, Tensor.tanh, Tensor.sigmoid, Tensor.erf,
             Tensor.floor, Tensor.ceil, Tensor.trunc, Tensor.round, Tensor.relu, Tensor.silu, Tensor.softplus,
             lambda x: x.abs().sqrt(), lambda x: (x.abs() + 1).log(), Tensor.log1p, Tensor.sign, Tensor.isnan]
    binary = [x + y, x - y, x * y, x / y, x.maximum(y), x.minimum(y), x < y, x <= y, x == y, x != y,
              x.abs() ** y.clip(-3, 3), (x < y).where(x, y), (x < y) & (y < 1), (x < y) | (y < 1), (x < y) ^ (y < 1),
              (x < y).where(y < 0, x < 0), x + 1, 2 - x, x * y[:1], (x < y).logical_not()]
    return [*[f(x) for f in unary], *binary]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_elementwise_of_floats(dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        check(elementwise, floats(5, 7, dtype=dtype), floats(5, 7, dtype=dtype, seed=1).flip(1).realize(),
              tolerance=1e-5 if dtype is np.float32 else 4e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_divisions_of_floats_are_exact(dtype: Any) -> None:
    """//, % and fmod beside fractions, quotients from far below 1 to beyond the type's digits, and special numbers."""
    rng, kind = RNG(3), np.finfo(dtype)
    least, most = (-3, 3) if dtype is np.float16 else (-6, 8)
    x, y = ((10 ** rng.uniform(least, most, 400) * rng.choice([-1, 1], 400)).astype(dtype) for _ in range(2))
    x[:40], y[:40] = np.arange(1, 41), 0.1
    x[40:80], y[40:80] = np.arange(-40, 0), 0.3
    quotients = [Fraction(float(a)) / Fraction(float(b)) for a, b in zip(x, y, strict=True)]
    keep = np.array([abs(q) < min(2**50, float(kind.max)) for q in quotients])
    x, y, quotients = x[keep], y[keep], [q for q, k in zip(quotients, keep, strict=True) if k]
    floors, rests = [floor(q) for q in quotients], [Fraction(float(a)) - floor(q) * Fraction(float(b)) for a, b, q in
                                                    zip(x, y, quotients, strict=True)]

    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x // y, x % y, x.fmod(y)]

    def exported(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        model = export(f, Tensor(x).realize(), Tensor(y).realize())
        return list(by_onnxruntime(model, {v.name: a for v, a in zip(model.graph.input, (x, y), strict=True)}).values())

    whole, rest, cut = exported(x, y)
    np.testing.assert_array_equal(whole, np.array(floors, np.float64).astype(dtype))
    np.testing.assert_array_equal(rest, np.array([float(r) for r in rests]).astype(dtype))
    np.testing.assert_array_equal(cut, np.fmod(x, y))
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 2, -3], dtype)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        for got, want in zip(exported(x, y), (np.floor_divide(x, y), np.remainder(x, y), np.fmod(x, y)), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["int8", "int32", "int64", "uint32"])
def test_elementwise_of_integers(name: str) -> None:
    """What is reduced is small: onnxruntime reduces int64 as float64, and compares 32 bits of it."""
    def f(x: Tensor, y: Tensor, n: Tensor) -> list[Tensor]:
        return [x + y, x - y, x * y, x // y, x % y, x.maximum(y), x.minimum(y), x < y, x <= y, x == y, x != y, x & y,
                x | y, x ^ y, ~x, x.abs(), -x, x << 1, x >> 1, x << n, x >> n, (x & 63).max(1), (x & 63).min(0),
                (x & 63).sum(1), (x & 3).prod(1), x.float(), x.cast("int64"), x.cast("uint8"), x.cast("int16"),
                x.bool(), x // 3, x % 5]

    least, most = int(dtypes.BY_NAME[name].min), int(dtypes.BY_NAME[name].max)
    arrays = [RNG(k).integers(least, most, (4, 6), name, endpoint=True) for k in range(2)]
    arrays[1][0] = [0, 1, 2, 3, most, least]
    counts = RNG(2).integers(0, 40, (4, 6)).astype(name)
    check(f, *[Tensor(a, dtype=name).realize() for a in (*arrays, counts)], ours=name in ("int32", "int64"))


def test_casts_saturate() -> None:
    numbers = [np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, -1e20, 300.7, -1.5, 2.0**63, 0.0]
    x = Tensor(np.array(numbers, np.float32)).realize()
    names = "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool", "float64", "float16"

    def f(x: Tensor) -> list[Tensor]:
        return [*[x.cast(name) for name in names], x.cast("bfloat16").float()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        check(f, x, ours=False)


def shapes(x: Tensor, i: Tensor) -> list[Tensor]:
    picked = x[:, i]
    return [x.permute(2, 0, 1), x.reshape(4, -1), x.flip(0, 2), x[1:, ::2, 3:5],
            x.pad(((1, 2), (0, 0), (0, 1)), value=3), (x > 0).pad(((1, 0), (0, 0), (0, 0))),
            x.unsqueeze(1).expand(4, 2, 3, 6), picked, x.cat(x + 1, dim=1),
            x.sum((0, 2)), x.max(1, keepdim=True), x.min((0, 1)), x.prod(1), x.mean(), x.std(1), x.argmax(1),
            x.cumsum(1), x.softmax(1), x.log_softmax(-1), x.layernorm(-1), x.layernorm((1, 2)), x.rms_norm(),
            x.logsumexp(1), x.gather(1, (i * 0 + 1).reshape(1, 2, 1)), x.scatter(1, i.reshape(1, 2, 1), x[:1, :2, :1]),
            x.triu(), x.unfold(2, 3, 2), Tensor.arange(5) * 2, x.avg_pool2d((2, 2)), x.max_pool2d((2, 3), 1, padding=1)]


def test_movement_and_reductions() -> None:
    x = Tensor(RNG(0).standard_normal((4, 3, 6)).astype(np.float32)).realize()
    check(shapes, x, Tensor(np.array([2, 0], np.int32)).realize())


def test_nothing_is_reduced_and_moved() -> None:
    check(lambda x: [x.sum(1), x.sum(0), x.reshape(4, 0, 2), x.pad(((0, 0), (1, 1))), x + 1, x.cat(x)],
          Tensor(np.zeros((0, 8), np.float32)).realize())


def test_assignment() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[1:3, ::2] = y
        z[:, -1] = 5
        z[0] = z[1] * 2
        return z

    check(f, floats(4, 6), Tensor(np.ones((2, 3), np.float32)).realize())


def ordered(x: Tensor) -> list[Tensor]:
    bounds = x.sort(1)[0]
    found = [*x.sort(1), *x.sort(0, descending=True), x.argsort(-1), *x.topk(3, 1), *x.topk(2, 0, largest=False),
             x.median(), *x.median(dim=1), *x.kthvalue(2, 1), *x.mode(1), x.msort(), bounds.searchsorted(x),
             bounds.searchsorted(x, right=True), x.bucketize(bounds[0])]
    return [*found, x.nanmedian(), x.quantile(0.3, 1)] if x.dtype.is_float else found


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("kind", "float32 float16 float64 int32 int64 uint8 uint32 uint64 bool".split())
def test_orders(kind: str) -> None:
    """With ties, in which the first comes first, NaN of both signs, infinities and both zeros."""
    dtype, odd = np.dtype(kind), [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e-7]
    if dtype.kind == "f":
        numbers = np.array(odd)
    else:
        limits = np.iinfo(dtype) if kind != "bool" else None
        numbers = np.array([0, 1] if limits is None else [limits.min, limits.max, 0, 1, 2, 3, limits.max - 1], dtype)
    x = Tensor(RNG(0).choice(numbers, (5, 9)).astype(dtype), dtype=kind).realize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = check(ordered, x, tolerance=1e-6 if kind != "float16" else 4e-3, ours=kind not in ("uint64", "uint32"))
    assert found["TopK"] and "ScatterElements" not in found
    if kind == "float32":  # any number of rows, and rows longer than blocks are put in order
        many, rows = Tensor(RNG(1).choice(numbers, (8, 700)).astype(np.float32)).realize(), Variable("rows", 1, 8)
        written = export(lambda x: list(x.topk(40, 1)), many[:rows.bind(3)])
        for count in (2, 7):
            got = by_onnxruntime(written, {"x": many.numpy()[:count]})
            for a, b in zip(got.values(), many[:count].topk(40, 1), strict=True):
                np.testing.assert_array_equal(a, b.numpy())


# Layers

def test_layers_are_single_nodes() -> None:
    rng = RNG(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.Conv2d(8, 8, 3, groups=8, dilation=2, padding=2, bias=False)]
    linear = nn.Linear(32, 5)

    def f(x: Tensor) -> Tensor:
        x = layers[1](layers[0](x).relu()).max_pool2d(2)
        return linear(x.avg_pool2d(2).flatten(1)).softmax(-1)

    found = check(f, Tensor(rng.standard_normal((2, 3, 17, 16)).astype(np.float32)).realize())
    assert {k: found[k] for k in ("Conv", "Relu", "MaxPool", "AveragePool", "MatMul", "Softmax")} == {
        "Conv": 2, "Relu": 1, "MaxPool": 1, "AveragePool": 1, "MatMul": 1, "Softmax": 1}
    assert not set(found) & {"Gather", "ReduceSum", "ReduceMax", "Einsum", "Expand"}


def test_transposed_convolutions_and_gradients() -> None:
    rng = RNG(0)
    w, v = (Tensor(rng.standard_normal(s).astype(np.float32)).realize() for s in ((4, 3, 3, 2), (6, 2, 3, 3)))

    def f(x: Tensor) -> list[Tensor]:
        up = x.conv_transpose2d(w, stride=2, padding=1, output_padding=1)
        source = x.detach()
        source.requires_grad_(True)
        made = source.conv2d(v, groups=2, stride=2, padding=1)
        return [up, (made * made).sum().gradient(source)[0]]

    found = check(f, Tensor(rng.standard_normal((2, 4, 7, 5)).astype(np.float32)).realize())
    assert found["ConvTranspose"] == 2 and "ScatterND" not in found


@pytest.mark.parametrize("causal, masked, sinks", [(False, False, False), (True, False, False), (False, True, False),
                                                   (True, False, True)])
def test_attention(causal: bool, masked: bool, sinks: bool) -> None:
    rng = RNG(0)
    mask = rng.random((5, 7)) < 0.5
    mask[2] = False

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, attn_mask=Tensor(mask) if masked else None, is_causal=causal,
                                              sinks=Tensor(np.zeros(2, np.float32)) if sinks else None)

    arrays = [rng.standard_normal((3, 2, n, 8)).astype(np.float32) for n in (5, 7, 7)]
    found = check(f, *[Tensor(a).realize() for a in arrays])
    assert found["MatMul"] == 2 and found["Softmax"] == (not masked and not sinks)


def test_scan_is_unrolled() -> None:
    def f(x: Tensor) -> Tensor:
        return scan(lambda state, row: (state * 0.5 + row, state.tanh()), Tensor.zeros(2), x)[1]

    check(f, Tensor(RNG(0).standard_normal((5, 2)).astype(np.float32)).realize())


def test_random_graphs_come_back_the_same() -> None:
    """Written, and read again by minigrad; onnxruntime where it has the types."""
    kinds: Counter[str] = Counter()
    for seed in range(12):
        leaves = list(Graph(seed, "CPU").values)
        tolerance = [0.0]

        def f(*given: Tensor, seed: int = seed, tolerance: list[float] = tolerance) -> list[Tensor]:
            graph = Graph(seed, "CPU")
            graph.values = list(given)
            made = graph.grow(int(graph.rng.integers(3, 14)))
            tolerance[0] = max([TOLERANCE.get(v.dtype, 0.0) for v in made])
            return list({id(v): v for v in (made[-1], made[len(made) // 2])}.values())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            model = export(f, *leaves)
            want = [t.numpy() for t in f(*leaves)]
            feeds = dict(zip([v.name for v in model.graph.input], leaves, strict=True))
            for got, expected in zip(OnnxModel(model)(feeds).values(), want, strict=True):
                close(got.numpy(), expected, tolerance[0], f"OnnxModel, seed {seed}")
            kinds.update(n.op_type for n in model.graph.node)
            types = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
            if onnx.TensorProto.BFLOAT16 not in types:  # which numpy has no type for
                for got, expected in zip(by_onnxruntime(model, feeds).values(), want, strict=True):
                    close(got, expected, tolerance[0], f"onnxruntime, seed {seed}")
    assert len(kinds) > 20


# Models


def test_efficientnet(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.efficientnet.model import EfficientNet

    model = EfficientNet(0)
    rng = RNG(0)
    for name, tensor in nn.state.get_state_dict(model).items():  # so that activations neither vanish nor grow
        if name.endswith("norm.weight"):
            tensor.assign(Tensor(rng.uniform(1, 2.5, tensor.numpy().shape).astype(np.float32)))
        elif name.endswith("running_mean"):
            tensor.assign(Tensor(rng.uniform(-0.2, 0.2, tensor.numpy().shape).astype(np.float32)))
    nn.state.get_state_dict(model)["classifier.bias"].assign(Tensor(np.zeros(1000, np.float32)))
    image = Tensor(rng.standard_normal((1, 3, 64, 64)).astype(np.float32)).realize()
    with Tensor.train(False):
        written = export(model, image, outputs=["logits"])
        want = model(image).numpy()
    got = by_onnxruntime(written, {"x": image})["logits"]
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    assert Counter(n.op_type for n in written.graph.node)["Conv"] == 81
    assert "blocks.3.project.conv.weight" in {t.name for t in written.graph.initializer}


def test_llama_decodes_with_caches_as_inputs_and_outputs(data_dir: Path) -> None:
    from examples.llama.generate import Session
    from examples.llama.model import Llama
    from examples.llama.weights import load_checkpoint

    checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
    llama = Llama(checkpoint.config, checkpoint.tensors, 64)
    written = export(lambda tokens, position: llama(tokens, position), Tensor(np.array([1], np.int32)),
                     llama.position.bind(0), outputs=["logits"])
    run = ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in run.get_outputs()]
    session, token, state = Session(llama), 1, dict[str, np.ndarray]()
    for position in range(8):
        want = session.feed([token])
        found = dict(zip(names, run.run(None, {"tokens": np.array([token], np.int32), "position": np.array(position),
                                               **state}), strict=True))
        assert np.abs(found["logits"] - want).max() < 1e-4 * np.abs(want).max()
        state = {name.removesuffix("_next"): array for name, array in found.items() if name.endswith("_next")}
        token = int(want.argmax())
    assert len(state) == 2 * checkpoint.config.layers


# The rest


def test_open_sizes_have_names() -> None:
    batch = Variable("batch", 1, 64)
    linear = nn.Linear(3, 2)
    padded = Tensor(RNG(0).standard_normal((64, 3)).astype(np.float32)).realize()
    written = export(lambda x: linear(x).reshape(-1).softmax(), padded[:batch.bind(5)])
    assert [d.dim_param for d in written.graph.input[0].type.tensor_type.shape.dim] == ["batch", ""]
    assert [d.dim_param for d in written.graph.output[0].type.tensor_type.shape.dim] == ["batch*2"] or \
        [d.dim_param for d in written.graph.output[0].type.tensor_type.shape.dim] == ["2*batch"]
    for size in (1, 9):
        x = padded.numpy()[:size]
        got = by_onnxruntime(written, {"x": x})["output"]
        close(got, linear(Tensor(x)).reshape(-1).softmax().numpy(), 1e-5, f"{size} rows")


def test_nothing_is_computed_and_nothing_changes(tmp_path: Path) -> None:
    counter = Tensor(np.zeros(300, np.float32)).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        counter.assign(counter + x)
        return (counter * 2).realize()

    written = export(f, Tensor(np.ones(300, np.float32)), path=tmp_path / "model.onnx", external=True)
    assert counter.numpy().sum() == 0
    assert [v.name for v in written.graph.output] == ["output", "counter_next"]
    assert (tmp_path / "model.onnx.data").exists()
    assert OnnxModel(tmp_path / "model.onnx")({"x": np.ones(300, np.float32)})["counter_next"].numpy().sum() == 300


@pytest.mark.parametrize("call, kind, message", [
    (lambda x: x + Tensor.rand(3), Unsupported, "random numbers are not supported; draw them outside"),
    (lambda x: x.bitcast("int32"), Unsupported, "operation bitcast is not supported; abs, add, .* are"),
    (lambda x: x + x.sum().item(), MinigradError, "expected no value on the host"),
    (lambda x: 3, MinigradError, "expected a function that returns Tensors, got none")])
def test_refusals(call: Callable[[Tensor], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        export(call, floats(3))


def test_names_and_opsets() -> None:
    written = export(lambda a: a + 1, floats(3), names=["x"], outputs=["y"], opset=18)
    assert [v.name for v in (*written.graph.input, *written.graph.output)] == ["x", "y"]
    assert written.opset_import[0].version == 18
    with pytest.raises(MinigradError, match="expected 1 different identifier as inputs, got"):
        export(lambda a: a + 1, floats(3), names=["x", "z"])
    with pytest.raises(Unsupported, match="opset 12 is not supported; 18 to 21 are"):
        export(lambda a: a + 1, floats(3), opset=12)
