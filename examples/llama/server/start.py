"""An engine for a model, within a number of bytes for its cache."""
from __future__ import annotations

from collections.abc import Callable

from examples.llama.model import Llama
from examples.llama.server.batch import Batch, pages_for
from examples.llama.server.engine import PIECE, BatchEngine

RUNNING, QUEUE = 16, 64
"""Requests that run at once, and that wait."""
CACHE_BYTES = 1 << 30
"""The most bytes of keys and values, and of copies of recurrent states, of all conversations."""
STATES = 4
"""The part of these that copies of recurrent states have, where there are such states: one of so many."""


def start_engine(model: Llama, cache_bytes: int = CACHE_BYTES, running: int = RUNNING, queue: int = QUEUE,
                 piece: int = PIECE, done: Callable[[], object] = lambda: None) -> BatchEngine:
    """Compiles the programs of a model and begins its engine; `done` is called after each program. What the model keeps
    of a conversation of its own is never made. Raises MinigradError where the cache does not hold one conversation.
    """
    stateful = any([model.config.kind(layer).mixer != "attention" for layer in range(model.config.layers)])
    states = cache_bytes // STATES if stateful else 0
    pages = pages_for(model.config, cache_bytes - states, model.capacity, running)
    batch = Batch(model.config, model.tensors, model.capacity, pages, running, running - 1 + piece)
    batch.warm_up(done)
    return BatchEngine(batch, queue, piece, states)
