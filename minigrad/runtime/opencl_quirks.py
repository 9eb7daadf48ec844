"""Deviations of OpenCL drivers: one table, a row per driver and deviation, each with its reason.

Everything that a driver can be asked is asked (`opencl_devices`); only what it answers wrongly or cannot say is here.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from minigrad.target import SIGNS_LOST, SUMS_REORDERED

WALL_TIME = "wall time"
FINISH_SKIPS_FLUSHED = "finish skips flushed"
OWN_CACHE = "own cache"
SOFTWARE = "software"
INTERPRETER = "interpreter"
SUPERSEDED = "superseded"
TRY_COMPILING = "try compiling"
LOOP_BUDGET = "loop budget"
GROUPS_GO_ON = "groups go on"
UNITS_UNKNOWN = "units unknown"
COMPILES_LATE = "compiles late"
NARROW_CODE = "narrow code"
PRODUCTS_EMULATED = "products emulated"
OF_TEXTS = frozenset({SIGNS_LOST, SUMS_REORDERED})
"""Deviations that the texts of kernels answer: features of the target."""

LOOP_ITERATIONS = 65535
"""The iterations of all loops of a work-item together after which drivers with LOOP_BUDGET end them."""

CORES = 2
"""Compute units to plan for with UNITS_UNKNOWN. It is no count: plans must not depend on the machine's cores."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """`what` holds for drivers whose platform name, device name and device version match the expressions."""

    what: str
    platform: str
    device: str
    version: str
    reason: str


QUIRKS = (
    Quirk(WALL_TIME, "rusticl", "", "", "event profiling returns equal start and end times"),
    Quirk(FINISH_SKIPS_FLUSHED, "rusticl", "", "",
          "clFinish waits for what it flushes itself, not for what an earlier clFlush handed over (Mesa 22.3)"),
    Quirk(SOFTWARE, "", "llvmpipe|softpipe|swrast", "", "a rasteriser on the CPU: right, but slower than a CPU driver"),
    Quirk(INTERPRETER, "oclgrind", "", "", "looks at each access of a kernel, a thousand times slower than it runs; "
          "two builds at once end the process (21.10)"),
    Quirk(LOOP_BUDGET, "", "llvmpipe", "",
          "ends every loop once those of a work-item have run 65535 iterations together, and goes on after them"),
    Quirk(UNITS_UNKNOWN, "", "llvmpipe", "",
          "says 8 compute units on every machine (a constant in Mesa 22.3), its threads are the machine's cores"),
    Quirk(SUPERSEDED, "clover", "", "", "unmaintained; rusticl drives the same hardware"),
    Quirk(OWN_CACHE, "portable computing language", "", "",
          "keeps each kernel on disk by source and local size; asking for the binary compiles every kernel once more"),
    Quirk(COMPILES_LATE, "portable computing language", "", "",
          "compiles a kernel when it is first launched, one at a time in a process, and finds what others compiled"),
    Quirk(GROUPS_GO_ON, "portable computing language", "^pthread", "",
          "runs a work-group to its end on a thread of the operating system, so that one may wait for another"),
    Quirk(GROUPS_GO_ON, r"^intel\(r\) opencl$", "", "", "likewise, on threads of TBB (2026.22)"),
    Quirk(SIGNS_LOST, r"^intel\(r\) opencl$", "", "",
          "takes a float's negation for the same in all work-items: one that lives across a barrier is that of the "
          "last ones (2026.22)"),
    Quirk(SUMS_REORDERED, r"^intel\(r\) opencl$", "", "",
          "vectorises a work-item's loop that adds floats, and so adds them in another order (2026.22)"),
    Quirk(PRODUCTS_EMULATED, r"^intel\(r\) opencl$", "", "",
          "says that integer dot products are accelerated, and compiles them to shifts and products of 32 bits: int8 "
          "products take 1.4 times as long as without (2026.22)"),
    Quirk(TRY_COMPILING, "portable computing language", "", "-generic$",
          "the LLVM inside does not know the processor; builds of pocl-binary-distribution then refuse every program"),
    Quirk(NARROW_CODE, "portable computing language", "^pthread", r"-(znver[1-3]|haswell|broadwell|skylake)$",
          "asks the processor for the width of its vectors, but an LLVM older than the processor compiles for one "
          "without AVX-512: wider conversions of integers end the process (PoCL 3.1 with LLVM 14 on a Zen 4)"),
)

CACHE_VARIABLES = ("POCL_CACHE_DIR", "MESA_SHADER_CACHE_DIR", "CUDA_CACHE_PATH", "AMD_COMGR_CACHE_DIR", "NEO_CACHE_DIR")
"""Variables by which drivers are told the folder of their caches, where a start without any is to be measured."""

SHORT_NAMES = {"portable computing language": "pocl"}
"""Words for platforms whose names do not begin with one."""


def short_name(platform: str) -> str:
    """The word for a platform in names of devices: 'rusticl', 'nvidia', 'intel', 'pocl'."""
    text = platform.lower()
    return SHORT_NAMES.get(text) or next(iter(re.findall("[a-z0-9]+", text)), "")


NARROW_BYTES = 32
"""Bytes of a vector register of the code that NARROW_CODE makes."""


def quirks_of(platform: str, device: str, version: str) -> frozenset[str]:
    """The `what` of every row that matches a driver."""
    def matches(pattern: str, text: str) -> bool:
        return re.search(pattern, text, re.IGNORECASE) is not None

    return frozenset(q.what for q in QUIRKS
                     if matches(q.platform, platform) and matches(q.device, device) and matches(q.version, version))
