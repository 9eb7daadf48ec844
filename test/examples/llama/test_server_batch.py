"""The step of many conversations: logits that neither company nor the size of pieces changes, of every family."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.llama.checkpoint import Weight
from examples.llama.config import Config
from examples.llama.server.batch import Batch, Piece, pages_for
from examples.llama.server.paged import PAGE
from examples.llama.weights import load_checkpoint
from minigrad import Tensor
from minigrad.errors import MinigradError
from minigrad.state import QuantizedTensor

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = ("gemma2", "gpt-oss", "mamba2", "qwen3next")
"""A window and caps; sinks and experts; states alone; states, a gate and attention."""
TOLERANCE = 1e-3


def batch_of(name: str, cache: str = "float32") -> Batch:
    checkpoint = load_checkpoint(MODELS / name)
    return Batch(replace(checkpoint.config, cache=cache), checkpoint.tensors, 64, pages=8, slots=4, rows=16)


class Drive:
    """Feeds one conversation in pieces of a size, then token by token, while another one does what it likes."""

    def __init__(self, batch: Batch, pages: list[int], slot: int):
        self.batch, self.pages, self.slot = batch, pages, slot

    def __call__(self, tokens: list[int], start: int, size: int, company: int = 0) -> np.ndarray:
        random, found, fed, other = np.random.default_rng(company), [], 0, 0
        while fed < len(tokens):
            given = fed < start
            count = min(size, start - fed) if given else 1
            pieces = [Piece(tokens[fed:fed + count], fed, self.pages, self.slot, fed + count >= start, given)]
            if company and not (self.batch.stateful and given):  # whose prompts are calls of their own
                more = 1 if self.batch.stateful else int(random.integers(1, 5))
                beside = tokens[::-1][other:other + more]
                if beside:
                    wanted = bool(random.integers(2))
                    pieces.insert(int(random.integers(2)), Piece(beside, other, [3, 7], 0, wanted, False))
                    other += len(beside)
            logits = iter(self.batch.run(pieces))
            found += [row for piece, row in zip([p for p in pieces if p.wanted], logits, strict=True)
                      if piece.slot == self.slot]
            fed += count
        return np.array(found)


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_company(name: str) -> None:
    """Logits are those of transformers, and the same bits whatever else is in a step, in whatever pages and slot, and
    however a prompt is cut."""
    with np.load(MODELS / name / "logits.npz") as golden:
        tokens, steps = golden["tokens"].tolist(), golden["steps"]
    start, batch = len(tokens) - len(steps) + 1, batch_of(name)
    alone = Drive(batch, [0, 1], 2)(tokens, start, 16)
    np.testing.assert_allclose(alone, steps, atol=TOLERANCE)
    np.testing.assert_array_equal(Drive(batch, [5, 2], 3)(tokens, start, 7, company=1), alone)
    np.testing.assert_array_equal(Drive(batch, [6, 4], 1)(tokens, start, 3, company=2), alone)
    np.testing.assert_array_equal(Drive(batch, [0, 1], 2)(tokens, start, 1), alone)


def random_tensors(config: Config) -> dict[str, Weight]:
    """Weights of a LLaMA in blocks, from a seed."""
    random, keys = np.random.default_rng(0), config.kv_heads * config.head_size
    shapes = {"query": (config.width, config.width), "key": (keys, config.width), "value": (keys, config.width),
              "attention_out": (config.width, config.width), "gate": (config.hidden, config.width),
              "up": (config.hidden, config.width), "down": (config.width, config.hidden)}

    def matrix(shape: tuple[int, int]) -> Weight:
        values = random.standard_normal(shape, np.float32) * 2 * shape[1] ** -0.5
        return QuantizedTensor.quantize(values, "Q4_1")

    tensors = {"embedding": matrix((config.vocabulary, config.width)), "norm": Tensor.ones(config.width)}
    for layer in range(config.layers):
        tensors |= {f"layers.{layer}.{name}": matrix(shape) for name, shape in shapes.items()}
        tensors |= {f"layers.{layer}.{name}_norm": Tensor.ones(config.width) for name in ("attention", "feed")}
    return tensors


def test_a_row_that_is_known_to_be_alone_has_the_same_bits() -> None:
    """With quantised activations its own program is used, which changes the time alone."""
    config = Config(width=64, hidden=96, layers=2, heads=4, kv_heads=2, vocabulary=80, context=64, head_size=16,
                    cache="int8", quantize_activations=True)
    batch = Batch(config, random_tensors(config), 64, pages=8, slots=4, rows=16)
    tokens = np.random.default_rng(0).integers(0, 80, 60).tolist()
    drive = Drive(batch, [5, 1], 2)
    many = drive(tokens, 20, 12, company=1)
    batch.warm_up()
    assert batch.single and np.abs(many[1:] - many[:-1]).max() > 0.1
    np.testing.assert_array_equal(drive(tokens, 20, 16), many)


def test_rows_do_not_depend_on_longer_ones() -> None:
    """Sums over the pages of a row are those of the row alone, however many pages another one has."""
    config = Config(width=64, hidden=96, layers=1, heads=8, kv_heads=4, vocabulary=80, context=512, head_size=8)
    batch = Batch(config, random_tensors(config), 512, pages=26, slots=2, rows=8)
    random = np.random.default_rng(0)
    pages, other, longer = list(range(10)), list(range(10, 26)), random.integers(0, 80, 8).tolist()
    for start in range(0, 500, 8):
        tokens = random.integers(0, 80, 8).tolist()
        found = [batch.run([Piece(tokens[:3], start, pages, 0, True)])] if start < 300 else []
        batch.run([Piece(longer, start, other, 1, True)])
        if found:
            beside = batch.run([Piece(tokens[:3], start, pages, 0, True), Piece([1], 480, other, 1, True)])
            np.testing.assert_array_equal(beside[0], found[0][0], err_msg=str(start))


def test_programs_serve_all_sizes() -> None:
    """Nothing is captured again when the number of rows or lengths change."""
    batch = batch_of("llama")
    Drive(batch, [0, 1], 2)(list(range(40)), 10, 4, company=1)
    assert all([step.captures == 1 for step in batch.captured.values()])
    Drive(batch, [4, 6], 1)(list(range(40)), 30, 9, company=2)
    assert len(batch.captured) == 1 and all([step.captures == 1 for step in batch.captured.values()])


def test_states_are_saved_and_put_back() -> None:
    batch = batch_of("qwen3next")
    tokens = list(range(1, 41))
    first = batch.run([Piece(tokens[:15], 0, [0, 1], 1, True)])
    state = batch.save_slot(1)
    then = batch.run([Piece(tokens[15:30], 15, [0, 1], 1, True)])
    batch.load_slot(2, state)
    np.testing.assert_array_equal(batch.run([Piece(tokens[15:30], 15, [0, 1], 2, True)]), then)
    assert not np.array_equal(first, then)


def test_bytes_of_pages() -> None:
    for cache in ("float32", "float16", "int8"):
        batch = batch_of("llama", cache)
        size = batch.page_bytes()
        config = batch.model.config
        assert pages_for(config, 5 * size, 64, 4) == 5 and pages_for(config, 6 * size - 1, 64, 4) == 5
        assert pages_for(config, 1 << 40, 64, 4) == 4 * 64 // PAGE
        with pytest.raises(MinigradError, match="does not hold one conversation of 64 tokens, which takes"):
            pages_for(config, size, 64, 4)
    assert pages_for(batch_of("mamba2").model.config, 1, 64, 4) == 8
