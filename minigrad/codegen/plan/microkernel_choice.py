"""The choice of the microkernel that runs a tile: users' before ours, ours in the best form, else the meaning."""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.ir.text import meaning_of, parse_function
from minigrad.codegen.microkernels import registry
from minigrad.codegen.microkernels.amx import SIDE, takes
from minigrad.codegen.microkernels.generate import FORMS, forms_of, generated, most_rows
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.codegen.microkernels.tile import KINDS, Tile, shape_in
from minigrad.target import Target


def microkernel_of(tile: Tile, target: Target) -> Microkernel:
    """The microkernel that runs a tile on a target: the one that was added last for it, else ours, else its meaning."""
    return _microkernel_of(tile, target, registry.added())


@lru_cache(maxsize=1024)
def _microkernel_of(tile: Tile, target: Target, added: tuple[Microkernel, ...]) -> Microkernel:
    for kernel in reversed(added):
        if kernel.fits(target) and tile_meant(kernel) == tile:
            return kernel
    form = next(iter(forms_of(tile, target)), None)
    return generated(tile, form) if form is not None else registry.plain(tile)


@lru_cache(maxsize=1024)
def tile_meant(kernel: Microkernel) -> Tile | None:
    """The tile that a microkernel's meaning is, under whatever name; None if its meaning is no tile's."""
    shape = shape_in(kernel.meaning)
    tiles = [Tile(kind, *shape, along) for kind in KINDS for along in "km"] if shape is not None else []
    as_written = next((t for t in tiles if t.meaning(kernel.name) == kernel.meaning), None)
    if as_written is not None or [p.name for p in meaning_of(kernel).buffers] != ["a", "b", "c"]:
        return as_written
    return next((t for t in tiles if parse_function(t.meaning(kernel.name)) == meaning_of(kernel)), None)


def shapes(kind: str, along: str, width: int, vectors: int, target: Target) -> list[int]:
    """Rows of the tiles of `vectors` vectors of `width` lanes to choose from, those of added microkernels last."""
    if in_matrix_registers(kind, target):
        tiles = [Tile(kind, rows, vectors * width, along) for rows in (SIDE, 2 * SIDE, 4 * SIDE)]
        rows = [tile.rows for tile in tiles if takes(tile)]
    else:
        rows = list(range(1, most_rows(vectors, target) + 1))
    for kernel in registry.added():
        tile = tile_meant(kernel)
        if tile is not None and (tile.kind, tile.a_along, tile.columns) == (kind, along, vectors * width) \
                and kernel.fits(target):
            rows.append(tile.rows)
    return rows


def in_matrix_registers(kind: str, target: Target) -> bool:
    """True where tiles of that kind are in matrix registers."""
    return any(form.name.startswith("amx") and kind in form.kinds and form.requires <= target.features
               for form in FORMS)
