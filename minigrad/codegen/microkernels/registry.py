"""Which microkernels there are: ours, generated for a target, and those that users add."""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.microkernels.generate import forms_of, generated, generated_by_name
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.tile import Tile, tile_of
from minigrad.target import Target

_added: dict[str, Microkernel] = {}


def added() -> tuple[Microkernel, ...]:
    """Those that users added, in order. What is chosen depends on them: part of the key of every stored plan."""
    return tuple(_added.values())


def add(kernel: Microkernel) -> None:
    _added[kernel.name] = kernel
    _choices_changed()


def remove(name: str) -> None:
    del _added[name]
    _choices_changed()


def _choices_changed() -> None:
    microkernel_of.cache_clear()
    find.cache_clear()


@lru_cache(maxsize=1024)
def microkernel_of(tile: Tile, target: Target) -> Microkernel:
    """What runs a tile on a target: the one that was added last for it, else ours, else its meaning."""
    for kernel in reversed(_added.values()):
        if kernel.fits(target) and kernel.meaning == tile.meaning(kernel.name):
            return kernel
    form = next(iter(forms_of(tile, target)), None)
    return generated(tile, form) if form is not None else plain(tile)


def plain(tile: Tile) -> Microkernel:
    """A tile without an implementation of its own: its meaning is compiled."""
    return Microkernel(tile.name, tile.meaning())


@lru_cache(maxsize=1024)
def find(name: str) -> Microkernel | None:
    """The microkernel of that name: one that was added, or one of ours."""
    tile = tile_of(name)
    return _added.get(name) or generated_by_name(name) or (plain(tile) if tile is not None else None)
