"""`minigrad.export`: a program gives the bits that minigrad gives, from C and from Python without minigrad."""
from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

from minigrad import Tensor, Variable, dtypes, export, jit, nn
from minigrad.aot.exporting import LINKERS
from minigrad.errors import ConfigError, MinigradError

needs_linker = pytest.mark.skipif(not any(map(shutil.which, LINKERS)), reason="no linker: nothing can be loaded")
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
RNG = np.random.default_rng


def loaded(folder: Path, name: str = "program") -> Any:
    """The program in a folder, by its Python loader."""
    spec = importlib.util.spec_from_file_location(f"exported_{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Program()


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape and got.tobytes() == want.tobytes()


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return RNG(seed).standard_normal(shape).astype(np.float32)


@needs_linker
def test_a_network(tmp_path: Path) -> None:
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = first(x).silu().mean((2, 3))
        return second(hidden).softmax(), hidden

    made = export(f, Tensor(floats(2, 3, 9, 7)), folder=tmp_path, outputs=["shares", "hidden"])
    assert made.linked and made.weights_bytes >= 4 * (8 * 3 * 9 + 8 + 8 * 5 + 5)
    program = loaded(tmp_path)
    for seed in range(2):
        x = floats(2, 3, 9, 7, seed=seed)
        found, want = program(x), f(Tensor(x))
        same(found["shares"], want[0].numpy())
        same(found["hidden"], want[1].numpy())
    with pytest.raises(ValueError, match=r"x: expected shape \[2, 3, 9, 7\], got \[1, 3, 9, 7\]"):
        program(x[:1])
    with pytest.raises(TypeError, match="expected x, got"):
        program(x, 3)


@needs_linker
def test_results_that_are_inputs_constants_or_each_other(tmp_path: Path) -> None:
    constant = Tensor(floats(3)).realize()

    def f(x: Tensor) -> list[Tensor]:
        y = x * 2
        return [x, constant, y, y.detach(), (constant * 3).exp(), Tensor.arange(3)]

    export(f, Tensor(floats(4)), folder=tmp_path)
    x = floats(4, seed=1)
    for got, want in zip(loaded(tmp_path)(x).values(), f(Tensor(x)), strict=True):
        same(got, want.numpy())


@needs_linker
def test_state_stays_inside_and_can_be_reset(tmp_path: Path) -> None:
    a, b = (Tensor(np.full(3, v, np.float32)).realize() for v in (1, 2))
    cache = Tensor.zeros(8, 3).contiguous()
    twin = Tensor.zeros(8, 3).contiguous()  # shares the buffer of the cache, until one of them changes
    at = Variable("at", 0, 7)

    @jit
    def f(x: Tensor, position: Any) -> Tensor:
        cache[position:position + 1] = (x + a).reshape(1, 3)
        old = a.detach()
        a.assign(b)
        b.assign(old + twin[0])
        return (cache[:position + 1].sum(0) + a).realize()

    export(f, Tensor(floats(3)), at.bind(3), folder=tmp_path)
    assert cache.numpy().sum() == 0 and a.numpy().tolist() == [1] * 3
    program = loaded(tmp_path)
    runs = [program(floats(3, seed=k), at=k)["output"] for k in range(4)]
    for k, got in enumerate(runs):
        same(got, f(Tensor(floats(3, seed=k)), at.bind(k)).numpy())
    program.reset()
    same(program(floats(3, seed=0), at=0)["output"], runs[0])
    with pytest.raises(ValueError, match="at: expected 0 to 7, got 8"):
        program(floats(3), at=8)


@needs_linker
def test_an_argument_that_is_changed(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        x.assign(x * 2)
        return x + 1

    given = Tensor(floats(5)).realize()
    export(f, given, folder=tmp_path)
    same(given.numpy(), floats(5))
    x = floats(5)
    same(loaded(tmp_path)(x)["output"], floats(5) * 2 + 1)
    same(x, floats(5) * 2)
    assert "float *x, float *output" in (tmp_path / "program.h").read_text()


@needs_linker
def test_random_numbers_go_on(tmp_path: Path) -> None:
    Tensor.manual_seed(7)

    def f(x: Tensor) -> Tensor:
        return x + Tensor.rand(4) * Tensor.randn(4)

    export(f, Tensor(np.zeros(4, np.float32)), folder=tmp_path)
    program = loaded(tmp_path)
    found = [program(np.zeros(4, np.float32))["output"] for _ in range(3)]
    for got in found:
        same(got, f(Tensor(np.zeros(4, np.float32))).numpy())
    assert found[0].tobytes() != found[1].tobytes()


@needs_linker
def test_a_step_of_training(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        return loss

    export(step, Tensor(floats(8, 4)), Tensor(floats(8, 2)), folder=tmp_path)
    program = loaded(tmp_path)
    for _ in range(3):
        same(program(floats(8, 4), floats(8, 2))["output"], step(Tensor(floats(8, 4)), Tensor(floats(8, 2))).numpy())


@needs_linker
def test_open_sizes_and_types(tmp_path: Path) -> None:
    size = Variable("size", 0, 16)
    padded = Tensor(floats(16, 3)).realize()

    def f(x: Tensor) -> list[Tensor]:
        return [x.half().exp(), (x > 0), x.cast(dtypes.uint8), x.sum(0), (x @ x.transpose()).reshape(-1)]

    export(f, padded[:size.bind(5)], folder=tmp_path)
    program = loaded(tmp_path)
    for n in (1, 7, 16):
        x = np.abs(floats(n, 3))
        for got, want in zip(program(x).values(), f(Tensor(x)), strict=True):
            np.testing.assert_allclose(got.view(np.float16) if got.dtype == np.uint16 else got, want.numpy(), rtol=1e-6)


@needs_linker
def test_constants_are_packed_when_it_is_prepared(tmp_path: Path) -> None:
    weight = Tensor(floats(512, 512)).realize()

    def f(x: Tensor) -> Tensor:
        return x @ weight + (weight * 2).sum()

    made = export(f, Tensor(floats(256, 512)), folder=tmp_path)
    captured = jit(f)
    for seed in range(3):
        want = captured(Tensor(floats(256, 512, seed=seed))).numpy()
    same(loaded(tmp_path)(floats(256, 512, seed=2))["output"], want)
    assert made.calls < made.kernels  # the sum is made once


def test_another_processor(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2 + 1).exp().sum()

    if platform.machine() != "x86_64":
        pytest.skip("the levels are those of x86-64")
    levels = "x86-64-v2", "x86-64-v3"
    folders = [export(f, Tensor(floats(999)), folder=tmp_path / level, target=level).folder for level in levels]
    code = {level: (folder / "program.o").read_bytes() for level, folder in zip(levels, folders, strict=True)}
    assert code["x86-64-v2"] != code["x86-64-v3"]
    assert "x86-64-v2" in (tmp_path / "x86-64-v2" / "program.h").read_text()
    with pytest.raises(ConfigError, match=r"expected a target of native, x86-64-v2, .*, got 'pentium'"):
        export(f, Tensor(floats(999)), folder=tmp_path, target="pentium")


@pytest.mark.parametrize("call, message", [
    (lambda x: x + x.sum().item(), "expected no value on the host"),
    (lambda x: None, "expected a function that returns Tensors, got none"),
    (lambda x: x.to("NUMPY") + 1, "expected Tensors on the CPU, got one on NUMPY")])
def test_refusals(tmp_path: Path, call: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(MinigradError, match=message):
        export(call, Tensor(floats(3)), folder=tmp_path)
    with pytest.raises(MinigradError, match="expected a name that is an identifier, got 'a b'"):
        export(lambda x: x + 1, Tensor(floats(3)), folder=tmp_path, name="a b")


# From C


def compiled(folder: Path, source: Path, name: str, *options: str) -> Path:
    """The program of a C file and an exported object."""
    path = folder / "main"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-error=cast-qual", "-O1", "-o", path, source,
                    folder / f"{name}.o", "-I", folder, "-lm", *options], check=True)
    return path


WINDOWS = """
#include <stdlib.h>
static int taken;
static void *_aligned_malloc(size_t bytes, size_t alignment) { taken++; return aligned_alloc(alignment, bytes); }
static void _aligned_free(void *memory) { taken -= memory != NULL; free(memory); }
"""
OPENS = """
#include "program.h"
int main(void) {
    program one;
    if (program_open(&one, "absent") != 1 || taken) return 1;
    if (program_open(&one, "program.weights") || taken != 2) return 2;
    program_close(&one);
    return taken;
}
"""


@needs_cc
def test_memory_on_windows_is_taken_and_given_back_by_its_own_functions(tmp_path: Path) -> None:
    w = Tensor(floats(5))
    export(lambda x: x * w, Tensor(floats(5)), folder=tmp_path)
    (tmp_path / "windows.h").write_text(WINDOWS)
    (tmp_path / "main.c").write_text(OPENS)
    main = compiled(tmp_path, tmp_path / "main.c", "program", "-D_WIN32", "-include", str(tmp_path / "windows.h"))
    assert subprocess.run([main], cwd=tmp_path, check=False).returncode == 0


@needs_cc
def test_efficientnet_in_c(tmp_path: Path) -> None:
    from examples.efficientnet.model import EfficientNet

    model, rng = EfficientNet(0), RNG(0)
    for name, tensor in nn.state.get_state_dict(model).items():  # so that activations do not vanish
        if name.endswith("norm.weight"):
            tensor.assign(Tensor(rng.uniform(1, 2.5, tensor.numpy().shape).astype(np.float32)))
    nn.state.get_state_dict(model)["classifier.bias"].assign(Tensor(np.zeros(1000, np.float32)))
    image = floats(1, 3, 64, 64)
    with Tensor.train(False):
        export(model, Tensor(image), folder=tmp_path, name="efficientnet", names=["image"], outputs=["logits"])
        want = model(Tensor(image)).numpy()
    image.tofile(tmp_path / "image")
    main = compiled(tmp_path, ROOT / "examples" / "export" / "efficientnet.c", "efficientnet")
    done = subprocess.run([main, "efficientnet.weights", "image", "logits"], cwd=tmp_path, check=True,
                          capture_output=True, text=True)
    same(np.fromfile(tmp_path / "logits", np.float32).reshape(1, -1), want)
    assert f"class {want.argmax()}" in done.stdout


@needs_cc
def test_llama_in_c(tmp_path: Path, data_dir: Path) -> None:
    from examples.llama.generate import Session
    from examples.llama.model import Llama
    from examples.llama.weights import load_checkpoint

    checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
    llama = Llama(checkpoint.config, checkpoint.tensors, 64)
    export(lambda tokens, position: llama(tokens, position), Tensor(np.array([1], np.int32)), llama.position.bind(0),
           folder=tmp_path, name="llama", outputs=["logits"])
    main = compiled(tmp_path, ROOT / "examples" / "export" / "llama.c", "llama")
    done = subprocess.run([main, "llama.weights", "1", "12"], cwd=tmp_path, check=True, capture_output=True, text=True)
    session, tokens = Session(llama), [1]
    for _ in range(12):
        want = session.feed(tokens[-1:])
        tokens.append(int(want.argmax()))
    assert done.stdout.split() == [str(t) for t in tokens[1:]]
    program = loaded(tmp_path, "llama")
    session = Session(llama)
    for position, token in enumerate(tokens[:4]):
        same(program([token], position)["logits"], session.feed([token]))
