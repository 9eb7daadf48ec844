"""The facts of a device that code generation may use: a frozen value, part of every plan key."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MARGINS, MARGIN = "margins", 256
"""The feature of targets whose programs leave room between their own arrays, and the bytes of it (`Config.poison`)."""

SIGNS_LOST, SUMS_REORDERED = "signs lost", "sums reordered"
"""Features of targets whose drivers must be kept from what `runtime/opencl_quirks.py` says."""

BYTE_PRODUCTS = {(True, True): "dot-ss", (False, True): "dot-us", (True, False): "dot-us", (False, False): "dot-uu"}
"""The features of targets with integer dot products of words of four bytes, by whether these are signed."""

SUB_GROUPS, SIZED_SUB_GROUPS = "sub-groups", "sized sub-groups"
"""Features of targets that have sub-groups, and of those where a kernel says how large they are."""

WINOGRAD = {2: "winograd-2", 4: "winograd-4"}
"""Features of targets on which convolutions may be computed by Winograd's algorithm, by the outputs of a form."""

MIN_LOCAL_MEMORY, MIN_GROUP = 16 * 1024, 64


@dataclass(frozen=True, slots=True)
class Tuned:
    """Plans that a search has found (`engine/search.py`), by the names of what they are for (`codegen/plan/given.py`):
    the texts of the kernel, of the plan that it is faster than ('' for any) and of the plan. Two with one digest are
    equal."""

    digest: str
    rows: Mapping[str, tuple[str, str, str]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """Facts about one device. Bytes, counts and element counts; never a handle.

    `language` is 'llvm', 'opencl', 'amdgpu' or 'nvptx'; `vector_bytes` the width of a vector register (4 = scalar
    work-items, a GPU); `registers` the number of those; `units` the number of a processor's cores or a GPU's compute
    units; caches in bytes per core; `features` such as 'fp64', 'fp16', 'avx2', 'avx512f', 'fma'; `cpu` the LLVM CPU
    name or the driver's device name, `host` that of the processor, where it is another than programs are made for;
    `codegen/cost` has further numbers by these names. After `max_iterations` of all its loops together (0: never) a
    work-item's loops end, wherever they are. `gflops`, `gb_s` and `launch_us` are measured: float32 operations in 1e9
    per second, bytes copied in 1e9 per second, microseconds per launch; 0.0 if they were not. `sub_group` is how many
    neighbouring work-items make a sub-group, 0 where that is not one number. `plans` are texts of users' plans by the
    names of kernels, no fact but as much part of every key; so are those that a search has `tuned`, which give way to
    them. Nor is `widest` a fact, the bits of a kernel's widest type where all its vectors are to fit a register.
    """

    name: str
    language: str
    cpu: str
    vector_bytes: int
    registers: int
    units: int
    l1: int = 32 * 1024
    l2: int = 512 * 1024
    local_memory: int = 0
    max_group: int = 1
    features: frozenset[str] = frozenset()
    max_iterations: int = 0
    gflops: float = 0.0
    gb_s: float = 0.0
    launch_us: float = 0.0
    sub_group: int = 0
    host: str = ""
    plans: tuple[tuple[str, str], ...] = ()
    widest: int = 1
    tuned: Tuned | None = None

    @property
    def is_gpu(self) -> bool:
        """True where a work-item is one scalar lane and vectors are not worth writing out."""
        return self.vector_bytes <= 4

    @property
    def has_groups(self) -> bool:
        """True where work-items share local memory and are worth joining by barriers."""
        return self.is_gpu and self.local_memory >= MIN_LOCAL_MEMORY and self.max_group >= MIN_GROUP

    def lanes(self, bits: int) -> int:
        """The number of elements of `bits` bits that fit one vector register, at least 1."""
        return max(1, self.vector_bytes * 8 // max(bits, self.widest))
