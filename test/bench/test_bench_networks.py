"""The random networks of `bench networks`, the scripts of `bench scripts`, and what finds a wrong result in them."""
# mypy: ignore-errors
from __future__ import annotations

import argparse

import numpy as np
import pytest
from conftest import needs_torch

from bench import networks
from bench.__main__ import main, measure
from bench.cliffs import cliffs
from bench.descriptions import Network, layer
from bench.drawn import KINDS, after, kind_of, network
from bench.frameworks import Ours, torch_framework
from bench.report import OURS, Report, Work
from bench.scripts import SCRIPTS
from bench.timing import Side
from bench.training import distribution, first_step
from minigrad import Tensor

SEEDS = range(60)


@pytest.fixture(autouse=True)
def _threads_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.set_threads", lambda count: None)


def test_a_seed_is_a_network_and_says_its_kind() -> None:
    drawn = [network(seed) for seed in SEEDS]
    assert drawn[:5] == [network(seed) for seed in range(5)]
    assert {kind_of(seed) for seed in SEEDS} == set(KINDS)
    assert all(net.name == f"network {seed} {kind_of(seed)}" for seed, net in zip(SEEDS, drawn, strict=True))
    assert len(set(map(str, drawn))) == len(drawn)


def test_networks_have_the_shapes_that_they_say() -> None:
    """The shape that the loss gets is that of the targets, as minigrad infers it; nothing is computed."""
    for net in [*map(network, SEEDS), *cliffs()]:
        shape = net.shape
        if net.vocabulary:
            shape = (*shape, net.layers[0].args[1])
        for part in net.layers[1:] if net.vocabulary else net.layers:
            shape = after(part, shape)
        assert shape == net.out_shape, net


def test_layers_of_many_kinds_are_drawn() -> None:
    words = " ".join(str(network(seed)) for seed in SEEDS)
    for name in ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "reflect", "circular", "Upsample", "MaxPool",
                 "AvgPool", "Adaptive", "LSTM", "GRU", "SelfAttention", "TransformerEncoderLayer", "Embedding",
                 "BatchNorm", "GroupNorm", "LayerNorm", "Residual"):
        assert name in words, name


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
def test_torch_builds_the_same_network(kind: str) -> None:
    import torch

    seed = next(seed for seed in SEEDS if kind_of(seed) == kind)
    theirs, ours = (network(seed).build(m).modules[0] for m in (torch_framework(torch), Ours))
    shapes = [{name: tuple(value.shape) for name, value in model.state_dict().items()} for model in (theirs, ours)]
    assert shapes[0] == shapes[1]


@needs_torch
def test_scripts_have_the_same_weights_in_torch() -> None:
    import torch

    for name, build in SCRIPTS.items():
        names = [[sorted(module.state_dict()) for module in build(m).modules] for m in (torch_framework(torch), Ours)]
        assert names[0] == names[1], name


def test_the_first_step_of_a_program_is_timed() -> None:
    assert first_step(networks.QUICK.build) > 0


@needs_torch
@pytest.mark.parametrize("wrong, message", [
    (lambda x: x * 2, "losses of jit are"), (lambda x: x.detach() * 0.5 + x * 0.5, "gradient of 0.0.weight: differs"),
    (lambda x: x.no_such_method(), "AttributeError")])
def test_wrong_results_are_found(wrong: object, message: str, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    """An activation of ours that is not torch's, one whose gradient is not, and one that raises."""
    net = Network("network wrong", (3, 4), (layer("Linear", 4, 5), layer("Softsign"), layer("Linear", 5, 2)), (3, 2),
                  True)
    monkeypatch.setattr(networks, "QUICK", net)
    plain = Tensor.softsign
    monkeypatch.setattr(Tensor, "softsign", lambda x: wrong(plain(x)))
    assert main(["networks", "--quick", "--threads", "1"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG network wrong: ")]
    assert any(message in line for line in lines), lines
    assert len(lines) == 2 * len(set(lines)), "each is said when it is found, and before the summary"


@needs_torch
def test_right_results_are_no_failure() -> None:
    assert measure("networks", ["--quick", "--threads", "1", "--cpu-time"]).failures == []


def test_seeds_are_chosen(capsys: object) -> None:
    parser = argparse.ArgumentParser()
    networks.add_options(parser)
    rows = [seed for seed in SEEDS if kind_of(seed) == "rows"]
    for words, expected in (("--seed 7 3", [7, 3]), ("--count 3 --first 5", [5, 6, 7]),
                            ("--count 2 --kinds rows", rows[:2])):
        assert networks._seeds(parser.parse_args(words.split())) == expected
    assert measure("networks", ["--quick", "--budget", "-1", "--against", "none"]).rows == []
    assert "the time is spent: 0 networks were measured" in capsys.readouterr().out


def test_a_distribution_in_words() -> None:
    report = Report(1)
    for k, seconds in enumerate((1.0, 2.0, 4.0)):
        report.add(Work(f"network {k}", "networks"), [
            Side(OURS, "jit", lambda: None, seconds=[seconds], first_s=seconds),
            Side(OURS, "eager", lambda: None, seconds=[8.0]), Side("torch", "eager", lambda: None, seconds=[2.0])])
    lines = distribution(report, "networks", lambda name: f"<{name}>")
    assert lines[0].startswith("jit: 3 of networks, geometric mean 1.00x torch, 5th percentile 0.55, least 0.50; "
                               "0.0% under 0.4, 0.0% under 0.5, 33.3% under 0.8, 33.3% under 1.0")
    assert lines[1].split() == ["0.50x", "4000.000", "ms,", "torch", "2000.000", "ms", "<network", "2>"]
    assert any(line.startswith("eager: 3 of networks, geometric mean 0.25x") for line in lines)
    assert lines[-1].startswith("first captured steps: median 2.00 s") and "4.00 s network 2" in lines[-1]
    assert np.isclose(report.rows[0]["ratio_best"], 2.0)
