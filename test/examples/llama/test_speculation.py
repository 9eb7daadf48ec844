"""Guessed tokens change the time that answers take, never the answers."""
from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

from examples.llama.draft import DraftModel
from examples.llama.generate import Session
from examples.llama.model import Llama
from examples.llama.sampling import Sampler
from examples.llama.speculation import GAIN, SIZES, PromptLookup, Speculation
from examples.llama.weights import load_checkpoint
from minigrad.config import config


class Always(Speculation):
    """Verifies every guess, in calls of each size in turn."""

    def _best_size(self, most: int) -> int:
        size = SIZES[self.proposed // SIZES[0] % len(SIZES)]
        return size if size <= most else 0


class Told:
    """Knows the text, but for a token now and then."""

    cheap = True

    def __init__(self, text: list[int], wrong: float):
        self.text, self.wrong, self.random = text, wrong, random.Random(0)

    def restart(self) -> None:
        pass

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        found = self.text[len(tokens):len(tokens) + count]
        return [3 if self.random.random() < self.wrong else token for token in found]


@pytest.fixture
def model(data_dir: Path) -> Llama:
    checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
    return Llama(checkpoint.config, checkpoint.tensors, 300)


PROMPT = [1, 403, 407, 261, 378, 403, 407, 261]
SAMPLERS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 1.0, "seed": 3}, "penalties": {
    "temperature": 0.8, "seed": 4, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.3, "frequency_penalty": 0.1}}


@pytest.mark.parametrize("device", [name for name in devices() if name in ("CPU", "CL:pocl")])
@pytest.mark.parametrize("name", SAMPLERS)
@one_in(2, CPU_DRIVERS)
def test_the_answer_is_the_same_token_for_token(model: Llama, data_dir: Path, name: str, device: str) -> None:
    """Whoever guesses, however often it is right, and to the last place of the cache."""
    with config(device=device):
        checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
        session = Session(Llama(checkpoint.config, checkpoint.tensors, 128))

        def answer(speculation: Speculation | None, count: int = 500) -> list[int]:
            session.position = 0
            return list(session.generate(PROMPT, Sampler(**SAMPLERS[name]), count, frozenset([2]), speculation))

        plain = answer(None)
        assert len(plain) + len(PROMPT) == 129 or 2 not in plain
        known = [*session.tokens]
        for wrong in (0.0, 0.2, 1.0):
            speculation = Always(Told(PROMPT + plain, wrong))
            assert answer(speculation) == plain and session.tokens == known
            assert speculation.proposed > 0 and (speculation.accepted == 0) == (wrong == 1)
        assert answer(Always(PromptLookup())) == plain and session.tokens == known
        assert answer(Speculation(PromptLookup()), 50) == plain[:50]


def test_the_cache_is_right_wherever_an_answer_stops(model: Llama) -> None:
    """After each token, with guesses after it in the cache that are nothing."""
    session = Session(model)
    plain = list(session.generate(PROMPT, Sampler(), 60, frozenset()))
    for stop in (1, 2, 5, 17, 40):
        session.position = 0
        answer = session.generate(PROMPT, Sampler(), 60, frozenset(), Always(Told(PROMPT + plain, 0.3)))
        said = [next(answer) for _ in range(stop)]
        answer.close()
        assert said == plain[:stop] and session.tokens == PROMPT + plain[:stop - 1]
        assert list(session.generate([said[-1]], Sampler(), 10, frozenset())) == plain[stop:stop + 10]


def test_samples_have_their_distribution(model: Llama) -> None:
    """The first three tokens of many answers, with guesses and without: the same for the same seed, so also in the
    mean.
    """
    session = Session(model)
    for seed in range(25):
        found = []
        for speculation in (None, Always(Told(PROMPT + [261] * 40, 0.0))):
            session.position = 0
            found.append(list(session.generate(PROMPT, Sampler(1.5, seed=seed), 4, frozenset(), speculation)))
        assert found[0] == found[1]


def test_a_draft_model_guesses(model: Llama, data_dir: Path) -> None:
    """The model itself is always right; its cache follows also where the conversation turns."""
    draft = DraftModel(Session(model))
    checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "stories260K.bin")
    session = Session(Llama(checkpoint.config, checkpoint.tensors, 300))
    plain = list(session.generate(PROMPT, Sampler(), 60, frozenset()))
    for prompt in (PROMPT, PROMPT[:5], PROMPT):
        session.position = 0
        speculation = Always(draft)
        said = list(session.generate(prompt, Sampler(), 60, frozenset(), speculation))
        assert speculation.accepted > 0.9 * (speculation.proposed - max(SIZES))
        assert prompt != PROMPT or said == plain
    assert draft.propose([1] * 299, 3) == []


@pytest.mark.parametrize("seed", range(20))
def test_lookup_is_the_last_place_with_the_same_tokens(seed: int) -> None:
    rng = random.Random(seed)
    tokens: list[int] = []
    lookup = PromptLookup()
    for _ in range(60):
        tokens += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
        expected: list[int] = []
        for length in PromptLookup.LENGTHS:
            places = [end for end in range(length, len(tokens)) if tokens[end - length:end] == tokens[-length:]]
            if length <= len(tokens) and places:
                text = list(tokens)
                while len(text) < len(tokens) + 9:  # what followed, which may run into what is guessed
                    text.append(text[places[-1] + len(text) - len(tokens)])
                expected = text[len(tokens):]
                break
        assert lookup.propose(tokens, 9) == expected
    lookup.restart()
    assert lookup.propose([1, 2], 3) == [] and lookup.propose([5, 5, 5], 3) == [5, 5, 5]


@pytest.mark.parametrize("hits, row_cost, pays", [
    (0.0, 0.1, False), (0.3, 0.4, False), (0.97, 0.4, True), (0.97, 1.0, False), (0.6, 0.1, True), (0.5, 0.02, True)])
def test_guesses_are_verified_where_they_pay(hits: float, row_cost: float, pays: bool) -> None:
    """By simulated times: at most a twentieth is lost where guesses are wrong, and time is won where they are right."""
    rng = random.Random(1)
    text = [rng.randrange(1000) for _ in range(4000)]
    speculation = Speculation(Told(text, 1 - hits))
    at, seconds = 10, 0.0
    while at < len(text) - 20:
        guessed = speculation.propose(text[:at], 20)
        accepted = 0
        while accepted < len(guessed) and guessed[accepted] == text[at + accepted]:
            accepted += 1
        cost = 1e-3 * (1 + row_cost * len(guessed))
        seconds += cost
        speculation.report(len(guessed), accepted, cost)
        at += 1 + accepted
    speed = (at - 10) * 1e-3 / seconds
    assert speed > (GAIN if pays else 0.95), speed


def test_a_guess_that_takes_long_is_not_asked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Told):
        cheap = False
        asked = 0

        def propose(self, tokens: Sequence[int], count: int) -> list[int]:
            self.asked += 1
            return super().propose(tokens, count)

    text = np.random.default_rng(0).integers(0, 1000, 1000).tolist()
    slow = Slow(text, 1.0)
    speculation = Speculation(slow)
    for at in range(1, 900):
        assert at < 60 or not speculation.propose(text[:at], 20)
        speculation.report(0, 0, 1e-3)
    assert slow.asked < 80
