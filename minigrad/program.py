"""Rendered source, which code generation hands to a device. It lies below both, so that neither knows the other."""
from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256


class NotStored(Exception):
    """A program that is known by the digest of its source alone, and that no cache has.

    No error: whoever asks makes it anew.
    """


@dataclass(frozen=True, slots=True)
class Link:
    """Code that programs call, compiled by itself once: `source` in `language` defines `name`, linked as `symbol`.

    language: 'llvm' (IR), 'asm' (of the target's processor) or 'c'. Equal symbols have equal sources.
    """

    symbol: str
    name: str
    source: str
    language: str = "llvm"


GROUP = 64
"""Work-items of a work-group on a GPU, where a program leaves that to the device."""


@dataclass(frozen=True, slots=True)
class Program:
    """Rendered source of one stage: pure data, what the caches store.

    `arguments` names the type of each argument in order: 'buffer:<bytes per element>' ('buffer:4' for f32), or a scalar
    type's short name ('f32', 'i64' for an index dim...). CPU programs have the ABI `void name(const u64 *args, i64
    begin, i64 end, u8 *scratch)`, where args hold addresses and the bit patterns of scalars (floats in their low bits);
    OpenCL kernels take, for each buffer, `__global T *p, long p_offset` (in elements), then the scalars, then `long
    extent`. An OpenCL source is a list of paragraphs separated by blank lines (pragmas, helper functions, the kernel):
    programs compiled together keep equal paragraphs once, so helpers of one name have one text.

    `scratch` is the number of bytes of memory of a worker's own that it uses. With `group`, work-groups have exactly so
    many work-items and the launch's extent counts work-groups; with 0 it counts work-items, and the device chooses the
    size of work-groups. `links` is the code that the source calls besides. `digest` tells which source it is where that
    itself is not at hand: `source` is then empty, and only a cache can have the code.
    """

    name: str
    language: str
    source: str
    arguments: tuple[str, ...]
    scratch: int = 0
    group: int = 0
    links: tuple[Link, ...] = ()
    digest: str = ""

    def identity(self) -> str:
        """The digest of the source."""
        return self.digest or digest_of(self.source)


def digest_of(source: str) -> str:
    """The sha256 of a source, in hexadecimal."""
    return sha256(source.encode()).hexdigest()
