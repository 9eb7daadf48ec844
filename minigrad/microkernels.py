"""Inner kernels as values: what there is, adding one's own, and checking an implementation against its meaning.

    from minigrad import microkernels

    tile = microkernels.Tile("f32", rows=4, columns=24)
    mine = microkernels.Microkernel("my_4x24", tile.meaning("my_4x24"), frozenset({"avx2", "fma"}), llvm_ir)
    assert not microkernels.check(mine)
    microkernels.register(mine)

docs/microkernels.md has the whole example. `Microkernel` says what the fields are, `Tile` which meanings the packed
policy asks for.
"""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import BufferParam, Call, Function, ScalarParam
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.verify import verify_meaning
from minigrad.codegen.microkernels import registry
from minigrad.codegen.microkernels.microkernel import LANGUAGES, Microkernel
from minigrad.codegen.microkernels.tile import Tile
from minigrad.codegen.passes import forget_stages, render
from minigrad.codegen.plan.microkernel_choice import tile_meant
from minigrad.engine.compiled import forget_plans
from minigrad.errors import MicrokernelError, quantity
from minigrad.expr import Var, bounds, evaluate
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.runtime.registry import get_device
from minigrad.value import local

__all__ = ["Microkernel", "Tile", "check", "features", "register", "registered", "unregister"]

ROOM = 16
"""Elements around each buffer that an implementation must not change."""

SPAN = 40
"""Random dims are at most so far above their lower bound."""


def register(kernel: Microkernel) -> None:
    """Adds a microkernel. From now on plans use it wherever it fits the target and its meaning is what they ask for.

    One that was added later comes first; ours come last. Captures that `jit` has made keep what they were made with.
    Raises MicrokernelError for a name that is taken or a language that we do not know, FormatError or InternalError for
    a meaning that does not parse or breaks the rules of loop IR.
    """
    if kernel.language not in LANGUAGES:
        raise MicrokernelError(f"[register] expected a language among {', '.join(LANGUAGES)}, got {kernel.language!r}")
    known = registry.find(kernel.name)
    if known is not None and known != kernel:
        raise MicrokernelError(f"[register] expected a name of its own, got another microkernel's: {kernel.name!r}")
    verify_meaning(kernel)
    registry.add(kernel)
    _forget()


def unregister(name: str) -> None:
    """Takes a microkernel out again. Raises MicrokernelError where none of that name was added."""
    if name not in [kernel.name for kernel in registry.added()]:
        raise MicrokernelError(f"[unregister] expected the name of a microkernel that was added, got {name!r}")
    registry.remove(name)
    _forget()


def registered() -> tuple[Microkernel, ...]:
    """Those that were added, in order."""
    return registry.added()


def features(device: str = "CPU") -> frozenset[str]:
    """The names that `requires` may have on a device: 'avx2', 'fma', 'avx512f', 'neon'..."""
    return get_device(device).target.features


def _forget() -> None:
    forget_stages()
    forget_plans()


def check(kernel: Microkernel, trials: int = 8, seed: int = 0, device: str = "") -> list[str]:
    """Runs implementation and meaning on random inputs; one line per difference, none if they agree. It runs on the
    device, by default the CPU, and the first OpenCL device for a text in OpenCL C.

    Dims are drawn from the lower part of their ranges, their lower bounds first; integers from all of their type's.
    Floats may differ as roundings do: by 32 ulp of the largest result. What the meaning does not write must stay as it
    was, around the buffers too. Raises MicrokernelError where the device has another language or lacks what it
    requires, CompileError where the implementation does not compile.
    """
    opened = get_device(device or ("CL" if kernel.language == "opencl" else "CPU"))
    if not kernel.fits(opened.target):
        lacks = sorted(kernel.requires - opened.target.features)
        raise MicrokernelError(f"[check] expected {kernel.name} in {kernel.language} to be for {opened.name}, which "
                               f"runs {opened.target.language}: it lacks {lacks}")
    verify_meaning(kernel)
    rng = np.random.default_rng(seed)
    found: list[str] = []
    for trial in range(trials):
        dims = {d.name: _draw(d, trial, rng) for d in meaning_of(kernel).dims}
        found += _differences(kernel, dims, opened, rng)
    return found


def _draw(dim: Var, trial: int, rng: np.random.Generator) -> int:
    lo, hi = bounds(dim)
    return int(lo if trial == 0 else rng.integers(lo, min(hi, lo + SPAN), endpoint=True))


def _differences(kernel: Microkernel, dims: Mapping[str, int], device: Device, rng: np.random.Generator) -> list[str]:
    meaning = meaning_of(kernel)
    given: dict[str, np.ndarray] = {}
    for b in meaning.buffers:
        size = int(evaluate(b.size, {d: dims[d.name] for d in meaning.dims})) + 2 * ROOM
        given[b.name] = _random(b, size, kernel, rng)
    scalars = {s.name: float(rng.integers(1, 9)) for s in meaning.scalars}
    expected = {name: array.copy() for name, array in given.items()}
    inside = {name: array[ROOM:len(array) - ROOM] for name, array in expected.items()}
    interpret_function(meaning, inside, scalars, dims)
    got = _run(kernel, given, scalars, dims, device)
    found = []
    for b in meaning.buffers:
        x, y = expected[b.name], got[b.name]
        near = 0.0
        if b.mode != "in" and x.dtype.kind == "f":
            near = 32 * float(np.finfo(x.dtype).eps) * float(np.abs(x).max(initial=0))
        wrong = np.flatnonzero(~((x == y) | (np.abs(x - y) <= near) if near else x == y))
        if len(wrong):
            first = int(wrong[0])
            found.append(f"{kernel.name}({', '.join(f'{n}={v}' for n, v in dims.items())}): "
                         f"{quantity(len(wrong), 'element')} of {b.name} differ, first {b.name}[{first - ROOM}]: "
                         f"expected {x[first]}, got {y[first]}")
    return found


def _random(b: BufferParam, size: int, kernel: Microkernel, rng: np.random.Generator) -> np.ndarray:
    """Normally distributed floats, or any integers; two such bfloat16 to a word where a panel's words hold K
    interleaved by two."""
    if np.dtype(b.dtype.np).kind == "f":
        return rng.standard_normal(size).astype(b.dtype.np)
    tile = tile_meant(kernel)
    if tile is not None and tile.kind == "bf16x2":
        low, high = rng.standard_normal((2, size)).astype(np.float32).view(np.uint32)
        return low >> 16 | high & 0xFFFF0000
    return np.frombuffer(rng.bytes(size * b.dtype.itemsize), b.dtype.np).copy()


def _run(kernel: Microkernel, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float],
         dims: Mapping[str, int], device: Device) -> dict[str, np.ndarray]:
    """The arrays as a program leaves them that only calls the microkernel, by name."""
    meaning = meaning_of(kernel)
    params = tuple(BufferParam(b.name, b.dtype, len(arrays[b.name]), b.mode) for b in meaning.buffers)
    call = Call(kernel, tuple((b.name, ROOM) for b in params), tuple(local(s.name, s.dtype) for s in meaning.scalars),
                tuple(dims[d.name] for d in meaning.dims))
    own = tuple(ScalarParam(s.name, s.dtype) for s in meaning.scalars)
    program = render(Function(f"check_{kernel.name}", params, own, (), (call,)), device.target)
    buffers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        device.copy_in(buffers[name], array)
    arguments: tuple[Buffer | float, ...] = (*buffers.values(), *(scalars[s.name] for s in own))
    device.launch([Launch(device.load([program])[0], arguments, 1)])
    device.synchronize()
    got = {name: np.empty_like(array) for name, array in arrays.items()}
    for name, array in got.items():
        device.copy_out(buffers[name], array)
        device.free(buffers[name])
    return got
