"""The microkernels by name: those that users add, and ours, generated when they are asked for."""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.microkernels.block_product import block_microkernel
from minigrad.codegen.microkernels.generate import generated_by_name
from minigrad.codegen.microkernels.matrix import matrix_microkernel
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.sub_group import sub_group_microkernel
from minigrad.codegen.microkernels.tile import Tile, tile_of

_added: dict[str, Microkernel] = {}


def added() -> tuple[Microkernel, ...]:
    """Those that users added, in order. The choice of microkernels depends on them: part of the key of every stored
    plan."""
    return tuple(_added.values())


def add(kernel: Microkernel) -> None:
    _added[kernel.name] = kernel
    find.cache_clear()


def remove(name: str) -> None:
    del _added[name]
    find.cache_clear()


def plain(tile: Tile) -> Microkernel:
    """A tile without an implementation of its own: its meaning is compiled."""
    return Microkernel(tile.name, tile.meaning())


@lru_cache(maxsize=1024)
def find(name: str) -> Microkernel | None:
    """The microkernel of that name: one that was added, or one of ours."""
    tile = tile_of(name)
    return (_added.get(name) or generated_by_name(name) or matrix_microkernel(name)
            or block_microkernel(name) or sub_group_microkernel(name) or (plain(tile) if tile is not None else None))
