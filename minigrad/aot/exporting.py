"""`export`: a call as a program that runs without minigrad."""
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.aot.driver import driver_text
from minigrad.aot.files import header, loader
from minigrad.aot.layout import Layout, layout_of
from minigrad.capture.graphs import graph_of_call
from minigrad.config import current
from minigrad.engine.collector import collector_paused
from minigrad.errors import MinigradError, quantity
from minigrad.runtime.object_code import ObjectCode
from minigrad.runtime.registry import get_device

LINKERS = "cc", "gcc", "clang", "ld", "ld.lld"


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of `export`, which wrote into `folder`: bytes of the weights and of the program's own memory, its
    kernels and how often a run calls one, and whether there is a shared library, which a linker has to make."""

    folder: Path
    name: str
    weights_bytes: int
    memory_bytes: int
    kernels: int
    calls: int
    linked: bool

    def __str__(self) -> str:
        library = f"lib{self.name}.so" if self.linked else f"no lib{self.name}.so: none of {', '.join(LINKERS)} is here"
        return (f"{self.folder}: {quantity(self.kernels, 'kernel')}, {quantity(self.calls, 'call')} of them in a run, "
                f"{self.weights_bytes} bytes of weights, {self.memory_bytes} of memory, {library}")


def export(f: Callable[..., Any], *inputs: Any, folder: str | Path, name: str = "program", names: Iterable[str] = (),
           outputs: Iterable[str] = (), target: str | None = None) -> Exported:
    """Writes `f(*inputs)` as a program for the CPU that needs neither minigrad nor Python.

    Tensors among the inputs become its inputs, bound Variables its sizes, Tensors that f assigns its state, and all
    others that f reads its weights. `names` and `outputs` name inputs and results. Into `folder` go `name`.o,
    lib`name`.so (where a linker is found), `name`.weights, `name`.h and `name`.py, a loader that needs numpy alone.
    `target` is the processor, as MINIGRAD_CPU names it: "native" (as here), or a level such as "x86-64-v3".

    Nothing of f is computed, and Tensors stay as they are. The program runs on one thread. Raises MinigradError where f
    reads a value, or for Tensors that are not on the CPU.
    """
    if not name.isidentifier() or not name.isascii():
        raise MinigradError(f"[export] expected a name that is an identifier, got {name!r}")
    level = target or current().cpu
    device = ObjectCode(level, get_device("CPU").target.units)
    with collector_paused():
        layout = layout_of(graph_of_call(f, inputs, names, outputs), device)
    entries = [f"{name}_{part}" for part in ("prepare", "reset", "run")]
    code = device.compile(layout.programs, driver_text(name, layout), entries)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{name}.o").write_bytes(code)
    (path / f"{name}.h").write_text(header(name, layout, level, device.triple), encoding="utf-8")
    (path / f"{name}.py").write_text(loader(name, layout), encoding="utf-8")
    _write_weights(path / f"{name}.weights", layout)
    return Exported(path, name, layout.weights_bytes, layout.memory_bytes, len(layout.programs), layout.calls(),
                    _linked(path, name))


def _write_weights(path: Path, layout: Layout) -> None:
    with path.open("wb") as file:
        for offset, buffer in layout.weights:
            data = np.empty(buffer.nbytes, np.uint8)
            if data.nbytes:
                buffer.device.copy_out(buffer, data)
            file.seek(offset)
            file.write(data.data)
        file.truncate(layout.weights_bytes)


def _linked(folder: Path, name: str) -> bool:
    """Makes the shared library, where there is a linker; False where there is none. Raises MinigradError with its
    words."""
    (folder / f"lib{name}.so").unlink(missing_ok=True)
    linker = next(filter(None, map(shutil.which, LINKERS)), None)
    if linker is None:
        return False
    done = subprocess.run([linker, "-shared", "-o", str(folder / f"lib{name}.so"), str(folder / f"{name}.o")],
                          capture_output=True, text=True)
    if done.returncode:
        raise MinigradError(f"[export] {linker} says {' '.join(done.stderr.split())}")
    return True
