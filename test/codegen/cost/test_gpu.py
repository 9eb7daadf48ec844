"""The time of a launch on a GPU: bounds and directions that hold whatever the weights are."""
from dataclasses import fields, replace

import numpy as np
import pytest

from minigrad.codegen.cost.gpu import TERMS, Counts, between, costs_of, declared, predict, resident
from minigrad.codegen.machines.gpus import cards, gpu

CARDS = [gpu(name) for name in cards()]
AMOUNTS = {"fma": 1e6, "other": 1e5, "loads": 1e5, "passes": 1e5, "copies": 1e5, "cached": 1e7, "memory": 1e9,
           "waits": 1e3}


def launches(seed: int, count: int = 200) -> Counts:
    """Launches of any size, of which some do nothing of a kind."""
    random = np.random.default_rng(seed)
    drawn = {name: 10 ** random.uniform(0, np.log10(top), count) * (random.random(count) < 0.8)
             for name, top in AMOUNTS.items()}
    return Counts(groups=np.ceil(10 ** random.uniform(0, 6, count)), items=2.0 ** random.integers(0, 11, count),
                  registers=np.ceil(random.uniform(8, 400, count)), local=np.ceil(random.uniform(0, 65536, count)),
                  **drawn)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_no_launch_is_faster_than_the_card(card):
    c = launches(0)
    lanes = c.fma * c.items * c.groups / (card.units * card.lanes_per_unit * card.clock_mhz * 1e6)
    least = np.maximum(lanes, c.memory / (card.dram_gbs * 1e9))
    assert (predict(c, card).seconds >= least * (1 - 1e-9)).all()


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
@pytest.mark.parametrize("fact", ["dram_gbs", "units", "clock_mhz", "lanes_per_unit", "local_bytes_per_cycle_unit"])
def test_a_slower_card_is_not_faster(card, fact):
    c, before = launches(1), 0.0
    for share in (2.0, 1.0, 0.7, 0.5, 0.3):
        slower = replace(card, **{fact: max(1, int(getattr(card, fact) * share))})
        found = predict(c, slower).seconds
        assert (found >= before * (1 - 1e-9)).all()
        before = found


@pytest.mark.parametrize("term", [*AMOUNTS, "groups"])
def test_less_work_is_not_slower(term):
    c = launches(2)
    less = replace(c, **{term: np.floor(getattr(c, term) / 2) if term != "groups" else np.ceil(c.groups / 2)})
    for card in CARDS[::4]:
        assert (predict(less, card).seconds <= predict(c, card).seconds * (1 + 1e-9)).all()


def test_terms_say_what_a_launch_is_bound_by():
    card = gpu("rtx3060")
    kinds = {"fma": "arithmetic", "passes": "local memory and cache", "waits": "waiting", "cached": "last cache",
             "memory": "memory"}
    for name, term in kinds.items():
        found = predict(Counts(groups=1e4, items=256, **{name: 1e9 if name == "memory" else 1e6}), card)
        assert tuple(found.terms) == TERMS
        if name != "fma":
            assert found.bound == term
        assert found.seconds >= found.terms[term] * (1 - 1e-9) or term == "waiting"
    assert predict(Counts(groups=1, items=32), card, launch=1.0).bound == "launch"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_multiply_adds_take_their_time_once(card):
    """Lanes and schedulers are busy with the same ones; what else there is to begin, or passes, take longer."""
    c = Counts(groups=1e5, items=256, fma=1e6)
    alone = predict(c, card)
    assert alone.seconds == pytest.approx(alone.terms["arithmetic"], rel=1e-3)
    assert predict(replace(c, passes=1e5), card).seconds > 1.001 * alone.seconds
    assert predict(replace(c, other=2e6), card).seconds > 1.001 * alone.seconds


def test_what_was_measured_changes_no_choice():
    card, c = gpu("rtx3060"), launches(4)
    other = replace(card, dram_share_measured=0.5, clock_share_measured=0.7, launch_us_measured=50.0)
    assert (predict(c, declared(card)).seconds == predict(c, declared(other)).seconds).all()


def test_arrays_are_candidates():
    c, card = launches(3, 20), gpu("rx6700xt")
    many = predict(c, card)
    for i in range(20):
        one = predict(Counts(**{f.name: float(np.broadcast_to(getattr(c, f.name), 20)[i]) for f in fields(c)}), card)
        assert one.seconds == pytest.approx(many.seconds[i]) and one.resident == many.resident[i]


@pytest.mark.parametrize("registers,local,groups", [(32, 0, 6), (128, 0, 2), (32, 49152, 2), (255, 0, 1)])
def test_groups_that_a_unit_holds(registers, local, groups):
    assert resident(Counts(groups=1, items=256, registers=registers, local=local), gpu("rtx3060")) == groups


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_has_weights_and_ranges(card):
    assert all(value >= 0 for value in costs_of(card).values()) and len(costs_of(card)) <= 12
    for pattern in ("product", "convolution", "stream", "window", "new"):
        low, high = between(1.0, pattern, card)
        assert 0 < low < 1 < high < 4
