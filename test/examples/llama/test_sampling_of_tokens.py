"""The choice of tokens: every option and mixtures of them beside a plain reference, and strings that end an answer."""
from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from examples.llama.sampling import Sampler, StopStrings


def reference(logits: list[float], recent: list[int], options: dict[str, Any]) -> dict[int, float]:
    """Tokens and their probabilities, one step after another in llama.cpp's order, over dictionaries."""
    scores = dict(enumerate(logits))
    last = options.get("repeat_last", 64)
    for token in set(recent if last < 0 else recent[len(recent) - min(last, len(recent)):]):
        times = (recent if last < 0 else recent[len(recent) - min(last, len(recent)):]).count(token)
        penalty = options.get("repeat_penalty", 1.0)
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        scores[token] -= times * options.get("frequency_penalty", 0) + options.get("presence_penalty", 0)
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if options["temperature"] == 0:
        return {ranked[0]: 1.0}
    if options.get("top_k", 0) > 0:
        ranked = ranked[:options["top_k"]]

    def probabilities(temperature: float) -> list[float]:
        weights = [math.exp((scores[token] - scores[ranked[0]]) / temperature) for token in ranked]
        return [weight / sum(weights) for weight in weights]

    if options.get("top_p", 1) < 1:
        total, kept = 0.0, 0
        for share in probabilities(1):
            total, kept = total + share, kept + 1
            if total >= options["top_p"]:
                break
        ranked = ranked[:kept]
    if options.get("min_p", 0) > 0:
        shares = probabilities(1)
        ranked = [token for token, share in zip(ranked, shares, strict=True) if share >= options["min_p"] * shares[0]]
    return dict(zip(ranked, probabilities(options["temperature"]), strict=True))


RANGES: dict[str, list[Any]] = {
    "temperature": [0, 0.3, 1.0, 2.0], "top_k": [0, 1, 5, 1000], "top_p": [0.0, 0.1, 0.75, 0.999, 1.0],
    "min_p": [0.0, 0.01, 0.3, 1.0], "repeat_penalty": [1.0, 1.3, 0.8], "presence_penalty": [0.0, 1.5, -0.5],
    "frequency_penalty": [0.0, 0.7], "repeat_last": [64, 0, -1, 3]}


@pytest.mark.parametrize("seed", range(60))
def test_every_mixture_of_options(seed: int) -> None:
    rng = random.Random(seed)
    options = {name: rng.choice(values) for name, values in RANGES.items()}
    count = rng.choice([1, 2, 7, 60, 3000])
    logits = np.random.default_rng(seed).normal(0, rng.choice([0.1, 3, 30]), count).astype(np.float32)
    recent = [rng.randrange(count) for _ in range(rng.randrange(100))]
    tokens, shares = Sampler(**options).probabilities(logits, recent)
    expected = reference([float(x) for x in logits], recent, options)
    assert sorted(expected) == tokens.tolist()
    np.testing.assert_allclose(shares, [expected[token] for token in tokens.tolist()], rtol=1e-9, atol=1e-300)


def test_only_what_is_allowed() -> None:
    logits, allowed = np.arange(10, dtype=np.float32), np.arange(10) % 3 == 0
    assert Sampler().choose(logits, allowed=allowed) == 9
    sampler = Sampler(temperature=5.0, top_k=3, top_p=0.999, seed=0)
    assert {sampler.choose(logits, allowed=allowed) for _ in range(300)} == {3, 6, 9}


def test_choices_have_their_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert Sampler().choose(logits) == 0

    def shares(**options: Any) -> np.ndarray:
        sampler = Sampler(temperature=options.pop("temperature", 1.0), seed=1, **options)
        return np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000

    np.testing.assert_allclose(shares(), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(shares(top_k=2), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.81), [0.526, 0.316, 0.158, 0], atol=0.03)
    np.testing.assert_allclose(shares(min_p=0.4), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.0), [1, 0, 0, 0])
    np.testing.assert_allclose(shares(temperature=0.5)[0], 0.25 / 0.365, atol=0.03)
    first, second = Sampler(1.0, seed=7), Sampler(1.0, seed=7)
    assert [first.choose(logits) for _ in range(20)] == [second.choose(logits) for _ in range(20)]
    assert Sampler(1e-9, seed=0).choose(logits) == 0  # no overflow


@pytest.mark.parametrize("seed", range(40))
def test_stop_strings_in_pieces(seed: int) -> None:
    """The text up to the first stop string, however it is cut into pieces."""
    rng = random.Random(seed)
    text = "".join([rng.choice("aab") for _ in range(40)])
    stops = ["".join([rng.choice("aab") for _ in range(rng.randrange(0, 6))]) for _ in range(rng.randrange(3))]
    places = [at for at in (text.find(stop) for stop in stops if stop) if at >= 0]
    stream, shown, at = StopStrings(stops), "", 0
    while at < len(text):
        step = rng.randrange(1, 5)
        shown += stream.add(text[at:at + step])
        assert text.startswith(shown)
        at += step
    shown += stream.finish()
    first = min(places, default=len(text))
    # Two stop strings may come in one piece, or one inside another: whichever is complete first ends the text.
    assert shown == text[:first] or (len(stops) > 1 and shown == text[:len(shown)] and len(shown) in places)
    assert stream.found == bool(places) and (not stream.found or stream.add("more") == "")
