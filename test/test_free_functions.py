"""`import minigrad as torch`: the methods of Tensor are functions of the package, with PyTorch's arguments."""
# Wrong types are passed on purpose, and methods take no `out`.
# mypy: disable-error-code="call-arg,type-var"
from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support import free_functions
from support.paths import ROOT

import minigrad
from minigrad import Tensor, functions, special, unbound
from minigrad.errors import DeviceError, DTypeError, FormatError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


A = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
OPERANDS = {"x": A, "y": A[::-1].copy() + 2, "p": np.abs(A) / 4, "v": A[0], "w": A[1], "s": A[:, :3] @ A[:, :3].T,
            "images": np.resize(A, (2, 4, 6, 6)), "i": np.array([2, 0, 1]), "mask": A > 0,
            "kernel": np.resize(A, (2, 4, 3, 3)),
            "n": np.array([[4, 7], [6, 1]], np.int32)}
EXPRESSIONS = [
    # Joined, cut and turned
    "cat([x, y], 1)", "cat((x, y), dim=-1)", "cat(tensors=[x, y])", "concat([x, y])", "concatenate([x, y], 1)",
    "stack([x, y], 1)", "stack((x, y), dim=-1)", "hstack([x, y])", "vstack((x, y))", "row_stack([x, y])",
    "dstack([x, y])", "column_stack([v, w])", "split(x, 2, 1)", "split(x, [1, 2])", "chunk(x, 2, dim=1)",
    "tensor_split(x, 2)", "unbind(x, 1)", "transpose(x, 0, 1)", "permute(x, (1, 0))", "t(x)", "flip(x, (0,))",
    "roll(x, 1, 0)", "rot90(x)", "flatten(images, 1)", "reshape(x, (4, 3))", "squeeze(x[:1], 0)", "unsqueeze(x, -1)",
    "movedim(images, 1, -1)", "swapaxes(x, 0, 1)", "broadcast_to(v, (3, 4))", "broadcast_tensors(x, v)",
    "meshgrid(v, w, indexing='ij')", "block_diag(x, y)", "cartesian_prod(v, w)", "tile(x, (2, 1))",
    "repeat_interleave(x, 2, dim=0)", "narrow(x, 1, 1, 2)", "select(x, 1, 2)", "diagonal(x)", "diag(v)",
    "diag_embed(x)", "tril(x, -1)", "triu(x)", "atleast_2d(v)", "unflatten(images, 1, (2, 2))",
    # Chosen
    "gather(x, 0, i[None, :])", "index_select(x, 0, i)", "take(x, i)", "where(mask, x, y)", "where(mask, x, 0.0)",
    "where(mask)", "masked_select(x, mask)", "nonzero(mask)", "masked_fill(x, mask, 0.0)",
    "scatter(x, 0, i[None, :], y)", "index_fill(x, 0, i, 1.5)", "searchsorted(torch.sort(v).values, w)",
    "bucketize(x, torch.sort(v).values)", "unique(n)", "isin(n, i)",
    # Elementwise
    "abs(x)", "add(x, y)", "add(x, y, alpha=2)", "sub(x, 1)", "mul(x, 2)", "div(x, y)",
    "div(x, y, rounding_mode='floor')", "pow(x, 2)", "pow(2, x)", "remainder(n, 3)", "fmod(x, 2)",
    "floor_divide(x, y)", "exp(input=x)", "log(p)", "sqrt(p)", "rsqrt(p)", "sigmoid(x)", "tanh(x)", "relu(x)",
    "erf(x)", "sin(x)", "atan2(x, y)", "clamp(x, 0, 1)", "clamp(x, min=0.5)", "clip(x, -1, 1)", "round(x)",
    "round(x, decimals=1)", "floor(x)", "sign(x)", "maximum(x, y)", "minimum(x, y)", "lerp(x, y, 0.3)",
    "lerp(x, y, p)", "addcmul(x, y, p, value=2)", "hypot(x, y)", "logical_not(mask)", "logical_and(mask, x > 1)",
    "isnan(x)", "eq(x, y)", "gt(x, 0)", "isclose(x, x)", "allclose(x, y)", "equal(x, x)", "nan_to_num(x)", "square(x)",
    "reciprocal(y)", "polygamma(1, p)", "softmax(x, 1)", "softmax(x, dim=-1)", "log_softmax(x, dim=0)",
    "logaddexp(x, y)",
    # Reduced
    "sum(x)", "sum(x, 1)", "sum(x, dim=0, keepdim=True)", "mean(x, (0, 1))", "prod(x, 1)", "std(x)", "var(x, 1)",
    "max(x)", "max(x, 1)", "max(x, 1, True)", "max(x, y)", "min(x, dim=0)", "min(x, other=y)", "median(x)",
    "median(x, 1)", "amax(x, 1)", "argmax(x)", "argmax(x, 1)", "argmin(x, dim=0, keepdim=True)", "argsort(x, 1)",
    "sort(x, 1, True)", "topk(x, 2)", "topk(x, 2, 0)", "topk(x, 2, 0, False)", "kthvalue(x, 2)", "logsumexp(x, 1)",
    "norm(x)", "norm(x, dim=1)", "any(mask)", "all(mask, 1)", "cumsum(x, 1)", "cumprod(x, dim=0)", "cummax(x, 1)",
    "count_nonzero(mask)", "trace(s)", "numel(x)", "quantile(x, 0.5)", "aminmax(x)", "std_mean(x)", "diff(v)",
    "bincount(i)", "histc(x, 4, -2, 2)",
    # Products
    "matmul(x, y.T)", "mm(x, y.T)", "bmm(images[0], images[1])", "mv(x, v)", "dot(v, w)", "outer(v, w)",
    "einsum('ij,kj->ik', x, y)", "einsum('ij,ij', [x, y])", "tensordot(x, y, ([1], [1]))", "addmm(s, x, y.T)",
    "baddbmm(images[0], images[0], images[1])", "kron(x, y)", "cross(x[:, :3], y[:, :3], dim=1)", "inverse(s)",
    "det(s)", "cdist(x, y)", "cov(x)", "cosine_similarity(x, y)",
    # Layers
    "conv2d(images, kernel)", "conv2d(images, kernel, None, 2, 1)", "conv2d(images, kernel, stride=2, padding=1)",
    "max_pool2d(images, 2)", "max_pool2d(images, 2, 1, 1)", "layer_norm(x, (4,))", "group_norm(images, 2)",
    "dropout(x, 0.5, False)", "pixel_shuffle(images, 2)", "threshold(x, 0.5, 2.0)", "selu(x)", "celu(x)",
    "prelu(x, v[:1])", "avg_pool1d(x, 2)",
    # Made
    "zeros(2, 3)", "zeros((2, 3))", "ones(2)", "full((2, 2), 1.5)", "eye(3)", "arange(1.0, 2.0, 0.25)",
    "arange(0.0, 3.0)", "linspace(0, 1, 5)", "logspace(0, 1, 5)", "zeros_like(x)", "ones_like(x)", "full_like(x, 2)",
    "tensor([1.0, 2.0])", "tensor([[True, False]])", "as_tensor(x)", "scalar_tensor(2.5)", "tril_indices(3, 3)",
    "hann_window(5)", "empty(2, 0)", "zeros(2, dtype=torch.float64)", "tensor([1, 2], dtype=torch.float)",
    "tensor(3.5)", "from_numpy(x.numpy())",
    # Facts
    "is_tensor(x)", "is_tensor(1)", "broadcast_shapes((3, 1), (4,))", "finfo(torch.float32).max",
    "finfo(torch.bfloat16).min", "finfo(torch.bfloat16).max", "finfo(torch.float16).eps", "finfo(torch.float32).tiny",
    "iinfo(torch.int32).max", "iinfo(torch.uint8).min", "can_cast(torch.float32, torch.int32)",
    "can_cast(torch.int32, torch.float16)", "can_cast(torch.int8, torch.uint8)", "can_cast(torch.uint8, torch.int8)",
    "cuda.is_available()", "device('cpu').type", "is_floating_point(x)", "backends.mps.is_available()",
    "cuda.device_count()",
    # Namespaces
    "special.expit(x)", "special.logit(p)", "special.gammaln(p)", "special.polygamma(1, p)", "special.softmax(x, 1)",
    "special.psi(p)", "special.round(x)", "fft.fftfreq(5)", "fft.fftfreq(4, 0.5)", "fft.rfftfreq(5)",
    "fft.fftshift(x)", "fft.ifftshift(x)", "fft.fftshift(x, dim=1)", "nn.functional.relu(x)"]


def values(found: Any) -> list[Any]:
    """Arrays and plain values in a result, in order."""
    if isinstance(found, (tuple, list)):
        return [v for part in found for v in values(part)]
    return [np.asarray(found.numpy()) if hasattr(found, "numpy") else found]


@needs_torch
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_same_expression_gives_the_same(expression: str) -> None:
    import torch

    theirs = eval(f"torch.{expression}", {"torch": torch, **{k: torch.tensor(v) for k, v in OPERANDS.items()}})
    ours = eval(f"torch.{expression}", {"torch": minigrad, **{k: Tensor(v) for k, v in OPERANDS.items()}})
    expected, found = values(theirs), values(ours)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, np.ndarray):
            assert a.shape == b.shape and (a.dtype.kind == b.dtype.kind)
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
        else:
            assert a == b


@needs_torch
def test_every_function_of_torch_that_names_a_method_is_here() -> None:
    import torch

    named = {n for n in dir(torch) if not n.startswith("_") and callable(getattr(torch, n))
             and callable(getattr(Tensor, n, None))}
    assert len(named) > 400
    assert {n for n in named if not callable(getattr(minigrad, n, None))} == set()


@needs_torch
def test_special_has_every_function_of_torchs_that_is_here() -> None:
    import torch

    theirs = {n for n in dir(torch.special) if not n.startswith("_")}
    here = {*unbound.unbound(), *functions.__all__}
    assert theirs & here <= {*special.__all__} <= theirs
    for name in special.__all__:
        assert callable(getattr(special, name)) and getattr(minigrad, name, None) in (None, getattr(special, name))


@needs_torch
def test_the_page_lists_what_is_missing() -> None:
    import torch

    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([\w*]+)`", page.split("Not there are, of PyTorch's")[1].split("\n## ")[0])
    here = set(dir(minigrad))
    missing = [n for n in dir(torch) if not n.startswith("_") and n not in here and inspect.getdoc(getattr(torch, n))
               and callable(getattr(torch, n)) and not isinstance(getattr(torch, n), type)]
    assert [n for n in missing if not any(fnmatchcase(n, pattern) for pattern in listed)] == []


def test_a_function_is_its_method() -> None:
    assert minigrad.bool is minigrad.dtypes.bool_ and minigrad.int is minigrad.int32 and minigrad.long is minigrad.int64
    made, listed = unbound.unbound(), set(dir(minigrad))
    for name, method in vars(Tensor).items():
        if name not in made or name in functions.__all__:
            continue
        found = getattr(minigrad, name)
        if isinstance(method, (classmethod, staticmethod)):
            assert found == getattr(Tensor, name) or found is minigrad.manual_seed
        else:
            assert found.__wrapped__ is method and found.__name__ == method.__name__
            assert next(iter(inspect.signature(found).parameters)) in ("input", "self")
        assert name in listed


def test_the_stub_is_up_to_date() -> None:
    assert free_functions.STUB.read_text(encoding="utf-8") == free_functions.stub()


def test_names_of_modules_are_not_hidden() -> None:
    root = Path(minigrad.__file__).parent
    modules = {p.stem for p in root.iterdir() if p.suffix == ".py" or p.is_dir()} - {"__init__", "__pycache__"}
    assert modules & (set(unbound.unbound()) | set(functions.__all__)) == set()
    assert callable(minigrad.tensor) and not inspect.ismodule(minigrad.tensor)


def test_functions_are_imported_when_they_are_used() -> None:
    code = "import sys, minigrad; assert 'minigrad.methods' not in sys.modules and 'minigrad.nn' not in sys.modules; " \
           "minigrad.zeros; assert 'minigrad.methods' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_out_and_what_is_no_tensor() -> None:
    x, out = Tensor([1.0, 2.0]), Tensor.zeros(2)
    assert minigrad.exp(x, out=out) is out
    np.testing.assert_allclose(out.numpy(), np.exp([1.0, 2.0]), rtol=1e-6)
    with pytest.raises(ShapeError, match=r"\[exp\] expected an out of shape \[2\], got \[3\]"):
        minigrad.exp(x, out=Tensor.zeros(3))
    with pytest.raises(DTypeError, match=r"\[exp\] expected a Tensor first, got float"):
        minigrad.exp(1.0)
    with pytest.raises(DTypeError, match=r"\[max\] expected one Tensor as out|out"):
        minigrad.topk(x, 1, out=out)
    with pytest.raises(AttributeError, match="module 'minigrad' has no attribute 'nothing'"):
        minigrad.nothing  # noqa: B018
    with pytest.raises(DeviceError):
        minigrad.device("cuda")
    assert minigrad.device("cpu") == "CPU" and minigrad.zeros(2, device=minigrad.device("cpu:0")).device == "CPU"


def test_random_functions_take_pytorchs_arguments() -> None:
    minigrad.manual_seed(3)
    drawn = minigrad.randint(3, 7, (1000,)).numpy()
    assert set(drawn) == {3, 4, 5, 6} and set(minigrad.randint(2, (100,)).numpy()) == {0, 1}
    means = minigrad.normal(Tensor([0.0, 100.0]), 1.0).numpy()
    assert abs(means[1] - means[0] - 100) < 10 and minigrad.normal(2.0, 3.0, (4, 5)).shape == (4, 5)
    assert minigrad.bernoulli(Tensor.ones(4), 0.0).numpy().sum() == 0 and minigrad.randperm(5).shape == (5,)
    for wrong in (lambda: minigrad.normal(0.0, 1.0), lambda: minigrad.randint(3)):
        with pytest.raises(ShapeError):
            wrong()


def test_modes() -> None:
    x = minigrad.ones(2, requires_grad=True)

    @minigrad.no_grad
    def plain(t: Tensor) -> Tensor:
        return t * 2

    @minigrad.set_grad_enabled(False)
    def off(t: Tensor) -> Tensor:
        return t * 2

    assert minigrad.is_grad_enabled() and not plain(x).requires_grad and not off(x).requires_grad
    with minigrad.no_grad():
        assert not (x * 2).requires_grad
        with minigrad.enable_grad():
            assert (x * 2).requires_grad
    with minigrad.inference_mode():
        assert not (x * 2).requires_grad
    with minigrad.inference_mode(False), minigrad.set_grad_enabled(True):
        assert (x * 2).requires_grad
    try:
        minigrad.set_grad_enabled(False)
        assert not (x * 2).requires_grad
        with minigrad.set_grad_enabled(True):
            assert (x * 2).requires_grad
        assert not minigrad.is_grad_enabled()
    finally:
        minigrad.set_grad_enabled(True)
    assert (x * 2).requires_grad


@needs_torch
def test_saved_checkpoints_are_pytorchs(tmp_path: Path) -> None:
    import torch

    kinds = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    shared = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    saved: dict[str, Any] = {"model": {k: Tensor([[1, 0], [1, 1]]).cast(k) for k in kinds}, "empty": Tensor.zeros(0, 3),
             "number": Tensor(2.5), "lr": 0.1, "names": ["a", ("b", None, True)], "shared": [shared, shared]}
    minigrad.save(saved, tmp_path / "a.pt")
    theirs: Any = torch.load(tmp_path / "a.pt")
    for k in kinds:
        assert str(theirs["model"][k].dtype) == f"torch.{k}"
        assert theirs["model"][k].tolist() == saved["model"][k].tolist()
    assert theirs["empty"].shape == (0, 3) and theirs["number"].item() == 2.5 and theirs["names"] == saved["names"]
    assert theirs["shared"][0] is theirs["shared"][1] and theirs["shared"][0].requires_grad
    ours = minigrad.load(tmp_path / "a.pt", map_location="cpu")
    assert ours["lr"] == 0.1 and ours["shared"][0].tolist() == shared.tolist() and ours["shared"][0].device == "CPU"
    torch.save(theirs, tmp_path / "b.pt")
    assert minigrad.load(tmp_path / "b.pt")["model"]["int16"].tolist() == [[1, 0], [1, 1]]


@needs_torch
@pytest.mark.parametrize("zipped", [True, False])
def test_open_files_are_saved_to_and_loaded_from(zipped: bool, tmp_path: Path) -> None:
    import torch

    state = {"weight": Tensor([[1.0, 2.0]]), "epoch": 3}
    with io.BytesIO() as memory:
        minigrad.save(state, memory)
        memory.seek(0)
        theirs: Any = torch.load(memory)
        assert theirs["weight"].tolist() == [[1.0, 2.0]]
        memory.seek(0)
        ours = minigrad.load(memory, map_location=lambda storage, location: storage)
        assert ours["weight"].tolist() == [[1.0, 2.0]] and ours["epoch"] == 3
        with pytest.raises(FormatError, match=r"^<BytesIO>: the file is empty, or was read to its end before; seek"):
            minigrad.load(memory)
    with open(tmp_path / "a.pt", "w+b") as file:
        torch.save(theirs, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        loaded = minigrad.load(file, {"cuda:0": "cpu"})
        assert loaded["weight"].tolist() == [[1.0, 2.0]] and loaded["epoch"] == 3
    with pytest.raises(FormatError, match=r"^<BytesIO>: "):
        minigrad.load(io.BytesIO((tmp_path / "a.pt").read_bytes()[:200]))


def test_only_plain_things_are_saved(tmp_path: Path) -> None:
    for wrong in (minigrad.nn.ReLU(), {"a": np.zeros(3)}, {"f": len}):
        with pytest.raises(FormatError, match=r"\[save\] expected"):
            minigrad.save(wrong, tmp_path / "a.pt")
        assert not (tmp_path / "a.pt").exists()


def test_tensors_by_the_names_of_their_types() -> None:
    whole: Any = minigrad.LongTensor
    single: Any = minigrad.FloatTensor
    x = whole([1, 2])
    assert x.dtype is minigrad.int64 and isinstance(x, whole) and not isinstance(x, single)
    assert minigrad.FloatTensor(2, 3).tolist() == [[0, 0, 0], [0, 0, 0]] and minigrad.BoolTensor([[1, 0]]).tolist() == [
        [True, False]]
    assert x.type(minigrad.DoubleTensor).dtype is minigrad.float64
    with pytest.raises(ShapeError, match="expected values as one list, or sizes as integers"):
        minigrad.IntTensor(1.5, 2)


def test_generators_have_sequences_of_their_own() -> None:
    first, again = minigrad.Generator().manual_seed(3), minigrad.Generator("cpu").manual_seed(3)
    parts = [[list(map(int, part.indices)) for part in minigrad.data.random_split(range(10), [7, 3], generator=g)]
             for g in (first, again, first)]
    assert parts[0] == parts[1] != parts[2] and first.initial_seed() == 3
    with pytest.raises(minigrad.errors.MinigradError, match="expected a seed in"):
        first.manual_seed(-1)


def test_switches_that_change_nothing() -> None:
    minigrad.use_deterministic_algorithms(True, warn_only=True)
    minigrad.set_float32_matmul_precision("high")
    with pytest.raises(minigrad.errors.ConfigError, match="expected 'highest', 'high' or 'medium', got 'low'"):
        minigrad.set_float32_matmul_precision("low")
