"""Python's garbage collector, kept from looking into what planning makes."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = [False]
"""True once somebody was found to have frozen what there was, which `unfreeze` would undo; asking walks over all such
objects."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: planning makes many small objects, none of them in cycles, and a third of its
    time would go into looking for some. Those that stay join the old ones unseen, for the next full collection."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _frozen[0] = _frozen[0] or gc.get_freeze_count() > 0
            if not _frozen[0]:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
