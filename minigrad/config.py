"""Settings: one frozen `Config`, and the only reader of the environment.

    MINIGRAD_DEVICE         where tensors live by default: CPU, NUMPY, CL, CL:<index or part of a name>;   (CPU)
                            SIM:<card> predicts times and computes nothing
    MINIGRAD_THREADS        worker threads of the CPU device     (all cores; of a process under mpirun, its share)
    MINIGRAD_CPU            processor to compile for: native, or x86-64-v2, -v3 (AVX2), -v4 (AVX-512) as an older one
                            would get it; of the whole process                                             (native)
    MINIGRAD_CACHE          folder of compiled programs, fetched models and what machines were measured to do
                                                                        ($XDG_CACHE_HOME or ~/.cache, /minigrad)
                            it is code: not used where others than this user and root may write (runtime/own_files.py)
    MINIGRAD_DISK_CACHE     1: keep compiled programs on disk                                              (1)
    MINIGRAD_CACHE_MB       size limit of the compiled programs on disk                                    (512)
    MINIGRAD_WEIGHTS_MB     size limit of repacked weights on disk, 0: none are kept                       (8192)
    MINIGRAD_TUNED          0: plans that searches have found (`python -m minigrad tune`) are not used     (1)
    MINIGRAD_VERIFY         1: verify kernels and loops after every pass; refuse plans that do not fit     (0)
    MINIGRAD_OPENCL_PLANS   cpu or gpu: plan for OpenCL devices as for a processor or a GPU; auto: by kind (auto)
    MINIGRAD_ALLOW_TF32     1: float32 products may round their operands to 10 bits of mantissa, where a GPU's matrix
                            units do it: faster, and no longer exact. As torch.backends.cuda.matmul.allow_tf32  (0)
    MINIGRAD_SUB_GROUPS     1: reductions of GPUs join by sub-groups where the device has them: fewer barriers, sums in
                            an order of the device's own                                                   (0)
    MINIGRAD_WINOGRAD       4: convolutions of three taps may be computed by Winograd's algorithm, with errors of up to
                            5e-6 of the largest result where sums of products have 5e-7; 2: by its smaller form, which
                            has as little as these; 0: never                                               (4)
    MINIGRAD_JIT            0: functions under `jit` run eagerly                                           (1)
    MINIGRAD_PACKED_MB      memory for what `jit` packs or computes of constants once, 0: none           (256)
    MINIGRAD_LAZY_MB        what values that nobody has read may keep in memory, before they are computed; 0: any (512)
    MINIGRAD_SHARED_MEMORY  0: processes of one machine (minigrad.distributed) send messages instead       (1)
    MINIGRAD_JIT_CHECK      1: compare each replay with an eager run                                       (0)
    MINIGRAD_CHECK_INDICES  1: read index tensors and refuse what is out of range; nothing is captured then (0)
    MINIGRAD_POISON         1: memory is NaN before it is written, and has margins of NaN; a launch that writes there is
                            an error. Slow: for finding kernels that touch what is not theirs              (0)
    MINIGRAD_DEBUG          0 silent, 1 one line per realize, 2 kernels, 3 loops, 4 source                 (0)
    MINIGRAD_TEST_DATA      data folder of the test suite                                       (../shared/data)
    MINIGRAD_TEST_DEVICES   comma separated devices that the test suite may use                            (all found)

`with config(device="CPU", threads=1): ...` overrides fields in this thread (and in tasks started from it). `plans` and
`memory` have no variable: `with minigrad.plans({...})` sets one, `jit(step, memory="2GB")` the other, which is the
bytes that a plan may take (0: any number).
"""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from minigrad.errors import ConfigError
from minigrad.platforms import usable_cores

DEVICE_NAME = re.compile(r"CPU|NUMPY|CL(:.+)?|(AMD|NV):\w+|SIM:[\w-]+", re.IGNORECASE)
added_devices: set[str] = set()
"""Names of the devices that users add (minigrad.devices), which settings may name besides."""
CPU_LEVELS = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Config:
    """One set of settings, described at the top of this file; making one validates it. Raises ConfigError."""

    device: str = "CPU"
    threads: int = 1
    cpu: str = "native"
    cache_dir: Path = Path(".cache/minigrad")
    disk_cache: bool = True
    cache_limit_mb: int = 512
    weights_mb: int = 8192
    tuned: bool = True
    verify: bool = False
    opencl_plans: str = "auto"
    allow_tf32: bool = False
    sub_groups: bool = False
    winograd: int = 4
    jit: bool = True
    shared_memory: bool = True
    jit_check: bool = False
    check_indices: bool = False
    poison: bool = False
    packed_mb: int = 256
    lazy_mb: int = 512
    memory: int = 0
    debug: int = 0
    plans: tuple[tuple[str, str], ...] = ()
    test_data: Path = Path("../shared/data")
    test_devices: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[bool, ...]:
        """The settings that decide which features of a device programs may use: (allow_tf32, sub_groups, poison,
        winograd by the smaller form, by the larger one)."""
        return self.allow_tf32, self.sub_groups, self.poison, self.winograd >= 2, self.winograd >= 4

    @property
    def planning(self) -> tuple[bool | int | tuple[tuple[str, str], ...], ...]:
        """The settings that decide what kernels there are and how they run: part of the keys of plans and captures."""
        return *self.units, self.tuned, self.plans, self.memory

    def __post_init__(self) -> None:
        for name in (self.device, *self.test_devices):
            if not isinstance(name, str) or (not DEVICE_NAME.fullmatch(name) and name not in added_devices):
                expected = "a device CPU, NUMPY, CL or CL:<index or part of a name>"
                raise ConfigError(f"[config] expected {expected}, got {name!r}")
        limits = (("threads", 1, 1024), ("cache_limit_mb", 0, 1 << 20), ("weights_mb", 0, 1 << 20),
                  ("packed_mb", 0, 1 << 20), ("lazy_mb", 0, 1 << 20), ("debug", 0, 4), ("memory", 0, 1 << 50))
        for field, lo, hi in limits:
            value = getattr(self, field)
            if type(value) is not int or not lo <= value <= hi:
                raise ConfigError(f"[config] expected {field} to be an integer in {lo}..{hi}, got {value!r}")
        for field in ("disk_cache", "tuned", "verify", "allow_tf32", "sub_groups", "jit", "shared_memory", "jit_check",
                      "check_indices", "poison"):
            value = getattr(self, field)
            if type(value) is not bool:
                raise ConfigError(f"[config] expected {field} to be True or False, got {value!r}")
        if type(self.plans) is not tuple or any(tuple(map(type, pair)) != (str, str) for pair in self.plans):
            raise ConfigError(f"[config] expected plans to be pairs of a kernel's name and a text, got {self.plans!r}")
        if self.opencl_plans not in ("auto", "cpu", "gpu"):
            raise ConfigError(f"[config] expected opencl_plans to be auto, cpu or gpu, got {self.opencl_plans!r}")
        if type(self.winograd) is not int or self.winograd not in (0, 2, 4):
            raise ConfigError(f"[config] expected winograd to be 0, 2 or 4, got {self.winograd!r}")
        if self.cpu not in CPU_LEVELS:
            raise ConfigError(f"[config] expected cpu to be one of {', '.join(CPU_LEVELS)}, got {self.cpu!r}")
        for field in ("cache_dir", "test_data"):
            if not isinstance(getattr(self, field), Path):
                raise ConfigError(f"[config] expected {field} to be a pathlib.Path, got {getattr(self, field)!r}")


class Processes(NamedTuple):
    """The processes that a launcher of MPI has started: the number of this one, how many there are, and both of those
    on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


_LAUNCHERS = (("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
              ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"))
"""The variables of MPICH's and of Open MPI's mpirun, in the order of `Processes`."""


def processes(env: Mapping[str, str] = os.environ) -> Processes:
    """This process among others, as mpirun has told it; one process alone where none did."""
    for names in _LAUNCHERS:
        if all([env.get(name, "").isdigit() for name in names[:2]]):
            values = [int(found) if (found := env.get(name, "")).isdigit() else default
                      for name, default in zip(names, Processes(), strict=True)]
            return Processes(*values)
    return Processes()


def from_environment(env: Mapping[str, str]) -> Config:
    """The Config that these variables ask for. Raises ConfigError that names the variable and what is allowed."""
    cores = min(usable_cores(), max(1, (os.cpu_count() or 1) // processes(env).local_size))
    values: dict[str, Any] = {"threads": min(cores, 1024)}
    if not env.get("MINIGRAD_CACHE", "").strip():
        values["cache_dir"] = Path(env.get("XDG_CACHE_HOME") or _home(env) / ".cache") / "minigrad"
    for variable, (field, read) in _VARIABLES.items():
        text = env.get(variable, "").strip()
        if text:
            values[field] = read(variable, text)
    try:
        return Config(**values)
    except ConfigError as error:
        named = {field: variable for variable, (field, _) in _VARIABLES.items()}
        culprit = next((f"{v}={env[v]} " for f, v in named.items() if v in env and f in str(error)), "")
        raise ConfigError(f"{error} ({culprit}from the environment)") from None


def _home(env: Mapping[str, str]) -> Path:
    try:
        return Path(env.get("HOME") or Path.home())
    except RuntimeError:
        raise ConfigError("[config] expected HOME, XDG_CACHE_HOME or MINIGRAD_CACHE to name a folder, got none of them "
                          "and a user without a home") from None


def _boolean(variable: str, text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"[config] expected {variable} to be one of {', '.join(_TRUE + _FALSE)}, got {text!r}")
    return text.lower() in _TRUE


def _integer(variable: str, text: str) -> int:
    if not re.fullmatch(r"-?\d+", text):
        raise ConfigError(f"[config] expected {variable} to be an integer, got {text!r}")
    return int(text)


def _path(variable: str, text: str) -> Path:
    if text.lower() in _TRUE + _FALSE:
        hint = "; MINIGRAD_DISK_CACHE=0 keeps nothing on disk" if variable == "MINIGRAD_CACHE" else ""
        raise ConfigError(f"[config] expected {variable} to be a folder, got {text!r}{hint}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"[config] expected {variable} to be a folder, got {text!r}, where "
                          f"{Path(text).parts[0]} has no home on this system") from None


_UNITS = {"": 1, **{f"{p}B": 1000**k for k, p in enumerate(("", "K", "M", "G", "T"))},
          **{f"{p}IB": 1024**k for k, p in enumerate(("K", "M", "G", "T"), 1)}}


def bytes_of(name: str, amount: int | str) -> int:
    """A number of bytes, or a text such as '2GB', '1.5 GiB' or '500MB'. Raises ConfigError."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", amount) if isinstance(amount, str) else None
    if isinstance(amount, int) and amount > 0:
        return amount
    if found is None or found[2].upper() not in _UNITS or not float(found[1]) > 0:
        raise ConfigError(f"[{name}] expected an amount of memory such as '2GB', '500MiB' or 1000000, got {amount!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "MINIGRAD_DEVICE": ("device", lambda _, text: text),
    "MINIGRAD_THREADS": ("threads", _integer),
    "MINIGRAD_CPU": ("cpu", lambda _, text: text.lower()),
    "MINIGRAD_CACHE": ("cache_dir", _path),
    "MINIGRAD_DISK_CACHE": ("disk_cache", _boolean),
    "MINIGRAD_CACHE_MB": ("cache_limit_mb", _integer),
    "MINIGRAD_WEIGHTS_MB": ("weights_mb", _integer),
    "MINIGRAD_TUNED": ("tuned", _boolean),
    "MINIGRAD_VERIFY": ("verify", _boolean),
    "MINIGRAD_OPENCL_PLANS": ("opencl_plans", lambda _, text: text.lower()),
    "MINIGRAD_ALLOW_TF32": ("allow_tf32", _boolean),
    "MINIGRAD_SUB_GROUPS": ("sub_groups", _boolean),
    "MINIGRAD_WINOGRAD": ("winograd", _integer),
    "MINIGRAD_JIT": ("jit", _boolean),
    "MINIGRAD_SHARED_MEMORY": ("shared_memory", _boolean),
    "MINIGRAD_JIT_CHECK": ("jit_check", _boolean),
    "MINIGRAD_CHECK_INDICES": ("check_indices", _boolean),
    "MINIGRAD_POISON": ("poison", _boolean),
    "MINIGRAD_PACKED_MB": ("packed_mb", _integer),
    "MINIGRAD_LAZY_MB": ("lazy_mb", _integer),
    "MINIGRAD_DEBUG": ("debug", _integer),
    "MINIGRAD_TEST_DATA": ("test_data", _path),
    "MINIGRAD_TEST_DEVICES": ("test_devices", _names),
}

_override: ContextVar[Config | None] = ContextVar("minigrad_config", default=None)
override: Callable[[], Config | None] = _override.get
"""The Config of the innermost `with config(...)`, None outside of any. `current` gives one answer for as long as this
gives one object."""


@cache
def _base() -> Config:
    return from_environment(os.environ)


def current() -> Config:
    """The settings in force here: the innermost `with config(...)`, else the environment as it was at first use."""
    return _override.get() or _base()


class config:  # noqa: N801  (used like a function)
    """`with config(device="CPU", threads=1): ...` overrides fields of the current Config. Raises ConfigError."""

    __slots__ = ("_config", "_tokens")
    current = staticmethod(current)

    def __init__(self, **changes: Any):
        known = [f.name for f in fields(Config)]
        for name in changes:
            if name not in known:
                raise ConfigError(f"[config] expected one of {', '.join(known)}, got {name!r}")
        if changes.get("cpu", current().cpu) != current().cpu:
            raise ConfigError("[config] expected cpu to be set for the whole process, as MINIGRAD_CPU, "
                              f"got {changes['cpu']!r} where it is {current().cpu!r}")
        for name in ("cache_dir", "test_data"):
            if isinstance(changes.get(name), str):
                changes[name] = Path(changes[name])
        self._config = replace(current(), **changes)
        self._tokens: list[Token[Config | None]] = []

    def __enter__(self) -> Config:
        self._tokens.append(_override.set(self._config))
        return self._config

    def __exit__(self, *_: object) -> None:
        _override.reset(self._tokens.pop())
