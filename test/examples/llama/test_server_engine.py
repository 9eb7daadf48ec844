"""The engine: answers that are those given alone, whatever else it does meanwhile; its queue, its cache and its end."""
from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.llama.constraint import JsonForm
from examples.llama.generate import ContextFull, Session
from examples.llama.model import Llama
from examples.llama.sampling import Sampler
from examples.llama.schema import compile_schema
from examples.llama.server.batch import Batch
from examples.llama.server.cache_file import load_cache, save_cache
from examples.llama.server.engine import BatchEngine
from examples.llama.server.paged import PAGE
from examples.llama.server.pages import PageTable
from examples.llama.server.requests import Answer, Busy, Request
from examples.llama.server.snapshots import Snapshots
from examples.llama.server.start import start_engine
from examples.llama.tokenizer_files import load_tokenizer
from examples.llama.weights import load_checkpoint
from minigrad.errors import FormatError, MinigradError

MODELS = Path(__file__).resolve().parents[2] / "models"
VOCABULARY, CONTEXT = 96, 64
ENDS = frozenset([2])


def engine_of(name: str, pages: int = 8, slots: int = 4, **more: Any) -> BatchEngine:
    checkpoint = load_checkpoint(MODELS / name)
    return BatchEngine(Batch(checkpoint.config, checkpoint.tensors, CONTEXT, pages, slots, 12), **more)


@pytest.fixture(scope="module", params=["llama", "lfm2"])
def engine(request: pytest.FixtureRequest) -> Iterator[BatchEngine]:
    """One of attention alone, and one with recurrent states; with pages for all its conversations."""
    made = engine_of(request.param, piece=8, queue=200)
    yield made
    made.close(0)


def request(prompt: list[int], count: int = 12, **more: Any) -> Request:
    sampling = {key: more.pop(key) for key in ("temperature", "seed", "repeat_penalty") if key in more}
    return Request(tuple(prompt), count, Sampler(**sampling), ENDS, **more)


def told(answer: Answer) -> tuple[list[int], str | None]:
    return [step.token for step in answer], answer.finish


def many(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of which many begin alike."""
    dice = random.Random(seed)
    shared = [dice.randrange(3, VOCABULARY) for _ in range(45)]
    def prompt() -> list[int]:
        return shared[:dice.randrange(45)] + [dice.randrange(3, VOCABULARY) for _ in range(dice.randrange(1, 9))]

    return [{"prompt": prompt(), "count": dice.randrange(1, 12), "temperature": dice.choice([0.0, 1.0]), "seed": k}
            for k in range(count)]


def test_answers_are_those_given_alone(engine: BatchEngine) -> None:
    """Also while others are cancelled, and with what the cache has of the prompt."""
    asked = many(24)
    alone = [told(engine.submit(request(**r))) for r in asked]
    answers = [engine.submit(request(**r)) for r in asked + asked[::-1]]
    for answer in answers[24::3]:
        answer.cancel()
    found = [told(answer) for answer in answers]
    assert found[:24] == alone
    for mine, own in zip(found[24:], alone[::-1], strict=True):
        assert mine == own or (mine[1] == "cancelled" and mine[0] == own[0][:len(mine[0])])
    assert engine.stats()["running"] == engine.stats()["cache_in_use_bytes"] == 0
    assert sorted(engine._slots) == [0, 1, 2, 3] and engine.pages.available == 8


def test_a_greedy_answer_is_that_of_the_chat() -> None:
    """The model is so small that no two scores are as near as rounding is."""
    checkpoint = load_checkpoint(MODELS / "llama")
    session = Session(Llama(checkpoint.config, checkpoint.tensors, CONTEXT))
    engine = start_engine(Llama(checkpoint.config, checkpoint.tensors, CONTEXT), 1 << 22, running=2, piece=8)
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(3, VOCABULARY, 20).tolist()
        session.position = 0
        expected = list(session.generate(prompt, Sampler(), 30, ENDS))
        assert [step.token for step in engine.submit(request(prompt, 30))] == expected
    engine.close(0)


def test_a_prefix_is_not_fed_again(engine: BatchEngine) -> None:
    prompt = np.random.default_rng(7).integers(3, VOCABULARY, 50).tolist()
    first = engine.submit(request(prompt, 5))
    found = told(first)
    again, longer = engine.submit(request(prompt, 5)), engine.submit(request(prompt + found[0] + [9], 3))
    assert told(again) == found and first.cached_tokens == 0
    told(longer)
    assert again.cached_tokens == longer.cached_tokens == PAGE


def test_places_that_are_needed_are_given_up_and_fed_again() -> None:
    """Three conversations of 60 tokens do not fit four pages together."""
    engine = engine_of("llama", pages=4, piece=8)
    asked = [{"prompt": np.random.default_rng(k).integers(3, VOCABULARY, 25).tolist(), "count": 30, "seed": k,
              "temperature": 1.0} for k in range(5)]
    alone = [told(engine.submit(request(**r))) for r in asked]
    answers = [engine.submit(request(**r)) for r in asked]
    assert [told(answer) for answer in answers] == alone
    assert engine.stats()["preempted"] > 0 and engine.pages.available == 4
    engine.close(0)


class Gate(Sampler):
    """Holds the engine's thread at its first token until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = threading.Event(), threading.Event()

    def choose(self, *arguments: Any, **more: Any) -> int:
        self.reached.set()
        assert self.open.wait(60)
        return super().choose(*arguments, **more)


def test_a_full_queue_and_cancelling_and_closing() -> None:
    engine = engine_of("llama", slots=1, queue=2, piece=8)
    gate = Gate()
    running = engine.submit(Request((5, 6), 40, gate, frozenset()))
    assert gate.reached.wait(60)
    waiting = [engine.submit(request([7], 4)) for _ in range(2)]
    with pytest.raises(Busy, match="2 requests wait already") as busy:
        engine.submit(request([7]))
    assert busy.value.retry_after >= 1
    waiting[0].cancel()
    running.cancel()
    gate.open.set()
    tokens, finish = told(running)
    assert len(tokens) == 1 and finish == "cancelled"  # the one that was on its way
    assert told(waiting[0]) == ([], "cancelled") and told(waiting[1])[1] in ("length", "stop")
    engine.close(10)
    with pytest.raises(Busy, match="stopping"):
        engine.submit(request([7]))


def test_closing_finishes_what_runs_and_refuses_what_waits() -> None:
    engine = engine_of("llama", slots=1, piece=8)
    gate = Gate()
    running = engine.submit(Request((5, 6), 6, gate, frozenset()))
    assert gate.reached.wait(60)
    waiting = engine.submit(request([7]))
    closing = threading.Thread(target=engine.close, args=(60,))
    closing.start()
    while engine._deadline is None:
        pass
    gate.open.set()
    closing.join()
    assert len(told(running)[0]) == 6 and running.finish == "length"
    with pytest.raises(MinigradError, match="stopping"):
        told(waiting)
    assert waiting.finish == "error"


def test_what_cannot_be_answered(engine: BatchEngine) -> None:
    for prompt, count, message in (([], 1, "at least one token, got none"), ([96], 1, "tokens from 0 to 95"),
                                   ([1], 0, "at least one token, got 0")):
        with pytest.raises(MinigradError, match=message):
            engine.submit(request(prompt, count))
    with pytest.raises(ContextFull, match="has 65 tokens and the context holds 64"):
        engine.submit(request([1] * 65))
    tokens, finish = told(engine.submit(Request((3,) * 64, 5, Sampler(), frozenset())))
    assert (len(tokens), finish) == (1, "length")  # the last place of the context


def test_an_error_ends_one_answer_alone(engine: BatchEngine) -> None:
    class Broken(Sampler):
        def choose(self, *arguments: Any, **more: Any) -> int:
            raise MinigradError("no choice")

    broken = engine.submit(Request((5, 6), 3, Broken(), ENDS))
    with pytest.raises(MinigradError, match="no choice"):
        told(broken)
    assert broken.finish == "error" and len(told(engine.submit(request([5, 6], 3)))[0]) <= 3


def test_log_probabilities(engine: BatchEngine) -> None:
    steps = list(engine.submit(request([5, 6, 7], 4, top_logprobs=3)))
    for step in steps:  # greedy: the best one
        assert step.best[0] == (step.token, step.logprob) and len(step.best) == 3
        values = [value for _, value in step.best]
        assert values == sorted(values, reverse=True) and np.exp(values).sum() <= 1
    everything = next(iter(engine.submit(request([5, 6, 7], 1, top_logprobs=VOCABULARY)))).best
    assert len(everything) == VOCABULARY and abs(sum(np.exp(value) for _, value in everything) - 1) < 1e-9
    assert next(iter(engine.submit(request([5, 6, 7], 1, top_logprobs=0)))).best == ()


def test_embeddings(engine: BatchEngine) -> None:
    """The same with company, and of length 1; near for prompts that differ little."""
    dice = np.random.default_rng(3)
    prompt = dice.integers(3, VOCABULARY, 40).tolist()
    alone = engine.embed(prompt)
    answers = [engine.submit(request(**r)) for r in many(6, seed=5)]
    np.testing.assert_array_equal(engine.embed(prompt), alone)
    for answer in answers:
        told(answer)
    other = engine.embed(dice.integers(3, VOCABULARY, 40).tolist())
    assert alone.dtype == np.float32 and abs(np.linalg.norm(alone) - 1) < 1e-6
    assert alone @ engine.embed([*prompt[:-1], 5]) > alone @ other


def test_subscribers_are_told(engine: BatchEngine) -> None:
    answer, told_of = engine.submit(request([5, 6], 4)), threading.Semaphore(0)
    answer.subscribe(told_of.release)
    found = []
    while not answer.done:
        assert told_of.acquire(timeout=60)
        found += answer.take()
    found += answer.take()
    assert [step.token for step in found] == told(engine.submit(request([5, 6], 4)))[0]


def test_a_cache_outlives_its_engine(tmp_path: Path) -> None:
    first, second = engine_of("llama", piece=8), engine_of("llama", piece=8)
    prompt = np.random.default_rng(9).integers(3, VOCABULARY, 50).tolist()
    expected = told(first.submit(request(prompt, 8)))
    assert save_cache(first, tmp_path / "cache") == 1 and load_cache(second, tmp_path / "cache") == 1
    again = second.submit(request(prompt, 8))
    assert told(again) == expected and again.cached_tokens == PAGE
    other = engine_of("gemma3")
    with pytest.raises(FormatError, match="is of another model or another --cache-type"):
        load_cache(other, tmp_path / "cache")
    with pytest.raises(MinigradError):
        load_cache(other, MODELS / "llama" / "config.json")
    for engine in (first, second, other):
        engine.close(0)


def test_pages_are_shared_and_forgotten_in_order() -> None:
    table, tokens = PageTable(3), list(range(3 * PAGE))
    first = [table.take(), table.take()]
    assert None not in first
    pages = [page for page in first if page is not None]
    assert table.know(pages[0], None, tokens[:PAGE]) == pages[0]
    assert table.know(pages[1], pages[0], tokens[PAGE:2 * PAGE]) == pages[1]
    table.give_back(pages)
    assert table.find(tokens, 9) == pages and table.find(tokens, 1) == pages[:1] and table.find(tokens[1:], 9) == []
    assert table.available == 3 and table.held == 2
    twin = table.take()
    assert twin is not None and table.know(twin, None, tokens[:PAGE]) == pages[0] and table.in_use == 1
    taken = [table.take(), table.take()]  # the free one, then the last page of the conversation
    assert None not in taken and table.find(tokens, 9) == pages[:1] and table.take() is None
    table.give_back([pages[0]])
    assert table.take() == pages[0] and table.find(tokens, 9) == []


def test_snapshots_are_bounded() -> None:
    kept = Snapshots(100)
    for serial in (1, 2):
        kept.put(serial, [np.zeros(40, np.int8)])
    kept.get(1)
    kept.put(3, [np.zeros(40, np.int8)])
    assert kept.has(1) and not kept.has(2) and kept.has(3) and kept.nbytes == 80
    kept.put(4, [np.zeros(101, np.int8)])
    assert not kept.has(4) and kept.nbytes == 80


def test_a_constraint_is_kept(data_dir: Path) -> None:
    checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
    tokenizer = load_tokenizer(data_dir / "llm" / "stories260K")
    form = JsonForm(compile_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                                "additionalProperties": False}), tokenizer, checkpoint.config.vocabulary)
    engine = start_engine(Llama(checkpoint.config, checkpoint.tensors, 128), 1 << 24, running=2, piece=8)
    answers = [engine.submit(request([1, 5 + k], 30, constraint=form.begin(30), temperature=1.0, seed=k))
               for k in range(4)]
    for answer in answers:
        text = b"".join([tokenizer.token_bytes(step.token) for step in answer]).decode()
        assert set(json.loads(text)) == {"a"}
    engine.close(0)
