"""An engine for a model, within a number of bytes for its cache."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from examples.llama.model import Llama
from examples.llama.server.batch import Batch, pages_for
from examples.llama.server.engine import PIECE, BatchEngine
from minigrad.state import QuantizedTensor

RUNNING, QUEUE = 16, 64
"""Requests that run at once, and that wait."""
CACHE_BYTES = 1 << 30
"""The most bytes of keys and values, and of copies of recurrent states, of all conversations."""
STATES = 4
"""The part of these that copies of recurrent states have, where there are such states: one of so many."""
FLOAT_ROWS = 8
"""Rows of a step whose products are of floats: their plan for more takes as long for one row as for 16."""


def start_engine(model: Llama, cache_bytes: int = CACHE_BYTES, running: int = RUNNING, queue: int = QUEUE,
                 piece: int = PIECE, exact: bool = False, done: Callable[[], object] = lambda: None) -> BatchEngine:
    """Compiles the programs of a model and begins its engine; `done` is called after each program. What the model keeps
    of a conversation of its own is never made. Raises MinigradError where the cache does not hold one conversation.

    Quantised matrices are multiplied in integers (`quantize_activations`), unless `exact`: these sums are the same for
    one row and for many, so that one client alone has the program of the chat. Products of floats are not. Whoever is
    alone then has the program of many as well, and a step has at most `FLOAT_ROWS` rows, which is as many requests.
    """
    config = model.config
    integers = not exact and any([isinstance(weight, QuantizedTensor) for weight in model.read])
    config = replace(config, quantize_activations=integers or config.quantize_activations)
    rows = running - 1 + piece
    if not config.quantize_activations:
        rows, running = FLOAT_ROWS, min(running, FLOAT_ROWS)
    stateful = any([config.kind(layer).mixer != "attention" for layer in range(config.layers)])
    states = cache_bytes // STATES if stateful else 0
    pages = pages_for(config, cache_bytes - states, model.capacity, running)
    batch = Batch(config, model.tensors, model.capacity, pages, running, rows)
    batch.warm_up(done)
    return BatchEngine(batch, queue, piece, states)
