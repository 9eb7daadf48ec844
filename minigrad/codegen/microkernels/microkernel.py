"""`Microkernel`: an inner kernel as a value. It knows nothing of who calls it.

    meaning         what it computes: the text of a loop IR function without a parallel loop and without scratch
    requires        features of a Target that the implementation needs; without them the meaning runs
    implementation  its source in `language`; None: the meaning is compiled as it stands

The implementation is `void name(buffers..., scalars..., i64 dims...)`: pointers to the first element of each buffer,
then values, in the order of the meaning's parameters. Buffers do not overlap; nothing is known of their alignment but
that of their elements. It may write only what the meaning writes, calls nothing, and keeps no state.

language: 'llvm' (an IR module that defines @name), 'asm' (assembly for LLVM's own assembler), 'c' (needs clang); these
are for the CPU. 'opencl' is for OpenCL devices: a function of OpenCL C, where SPACE_x in the parameters stands for the
address space of buffer x, as in `void name(SPACE_x const float *x, SPACE_y float *y, long n)`.
Those of GPUs stand in an item loop, are in the language of the target, and take local memory and registers: a pointer
to local memory for a buffer, one to each register of those that are written, dims as they are (`matrix.py`).
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

from minigrad.target import Target

FOR_CPU = ("llvm", "asm", "c")
LANGUAGES = (*FOR_CPU, "opencl")


@dataclass(frozen=True, slots=True)
class Microkernel:
    """See the module. Two of equal fields are the same microkernel."""

    name: str
    meaning: str
    requires: frozenset[str] = frozenset()
    implementation: str | None = field(default=None, repr=False)
    language: str = "llvm"

    def fits(self, target: Target) -> bool:
        """True where the implementation runs there."""
        language = "llvm" if self.language in FOR_CPU else self.language
        return self.implementation is not None and target.language == language and self.requires <= target.features


@lru_cache(maxsize=1024)
def symbol_of(name: str, source: str) -> str:
    """The name under which an implementation is linked: of its own for every source."""
    return f"{name}_{sha256(source.encode()).hexdigest()[:16]}"
