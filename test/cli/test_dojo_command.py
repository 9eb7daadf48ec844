"""The command `dojo`: a small model on cards, one card, what it explains and compares, JSON, wrong words."""
import json
import re
from pathlib import Path

import pytest

import minigrad
from minigrad import config
from minigrad.cli.command_line import main
from minigrad.codegen.machines import gpus, measured
from minigrad.report import dojo
from minigrad.report.words import size_text

MODEL = """
from minigrad import Tensor, nn, optim

def step():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    x = Tensor.randn(2, 3, 16, 16)
    return lambda: model(x).softmax(-1)

def step_in_half():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).half()
    x = Tensor.randn(2, 3, 16, 16).half()
    return lambda: model(x).softmax(-1)

def trains():
    model = nn.Linear(64, 32)
    optimizer, x = optim.Adam(model.parameters()), Tensor.randn(8, 64)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean().backward()
        optimizer.step()
        return loss

    return step

def plain():
    return Tensor.randn(32, 32) @ Tensor.randn(32, 32)

def reads():
    return lambda: Tensor.randn(3).sum().item()

number = 3
"""


@pytest.fixture
def model(tmp_path: Path):
    """The model's file, with a cache folder of its own."""
    path = tmp_path / "small.py"
    path.write_text(MODEL)
    with config(cache_dir=tmp_path / "cache", verify=False, debug=0):
        yield str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["dojo", *words]) == status
    out = capsys.readouterr()
    return out.err if status else out.out


def test_cards_stand_fastest_first(model, capsys):
    lines = said(capsys, f"{model}:step", "--device", "rx6600,rtx4090").splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["GeForce RTX 4090", "Radeon RX 6600"]
    assert re.match(r"GeForce RTX 4090 +[\d.]+ us +[\d.]+ us to [\d.]+ us +\d+ +\d+% +launch +[\d.]+ KiB", lines[1])
    assert lines[-1].startswith("predicted, nothing ran")


@pytest.mark.parametrize("card", ["a770", "rx6700xt"])
def test_a_card_has_a_line_for_each_program(model, capsys, card):
    lines = said(capsys, f"{model}:step", "--device", card).splitlines()
    assert lines[0].startswith(gpus.gpu(card).name) and " facts: " in lines[0]
    assert lines[1].split() == "launch x groups waves regs local moved at rate predicted bound by".split()
    total = re.search(r"^(\d+) launches, (\d+) programs: .* predicted \(.* to .*\), .* of it launches; .* peak$",
                      "\n".join(lines), re.MULTILINE)
    assert total and int(total[2]) == lines.index(total[0]) - 2 and int(total[1]) >= int(total[2])
    registers = {line.split()[4] for line in lines[2:2 + int(total[2])]}
    assert all(x.endswith("~") for x in registers) == (card == "a770")  # Intel's compiler is not here


def test_json_has_all_of_it(model, capsys):
    found = json.loads(said(capsys, f"{model}:step", "--device", "rtx3060,m1", "--json"))
    assert [x["card"] for x in found] == ["rtx3060", "m1"]
    for card in found:
        assert card["kind"] == "predicted" and not card["f16"] and card["least"] < card["seconds"] < card["most"]
        assert card["seconds"] == pytest.approx(sum(p["seconds"] for p in card["programs"]))
        assert card["launches"] == sum(p["count"] for p in card["programs"])
        for p in card["programs"]:
            assert p["bound"] in p["terms"] and p["least"] < p["seconds"] < p["most"]


def test_a_model_in_half_is_that_which_is_written_so(model, capsys):
    whole, half, by_hand = (json.loads(said(capsys, f"{model}:{name}", "--device", "rtx3060,rx6600", "--json", *more))
                            for name, more in (("step", ()), ("step", ("--f16",)), ("step_in_half", ())))
    assert [x["f16"] for x in (*whole, *half, *by_hand)] == [False, False, True, True, False, False]
    assert [x | {"f16": False} for x in half] == by_hand
    assert all(a["peak_bytes"] < 0.6 * b["peak_bytes"] and a["seconds"] < b["seconds"]
               for a, b in zip(half, whole, strict=True))


def test_a_model_in_half_is_shown_in_every_way(model, capsys, tmp_path):
    words = f"{model}:trains", "--device", "rtx3060"
    card, = json.loads(said(capsys, *words, "--f16", "--json"))
    first = card["programs"][0]
    size = max(m["all"] for m in first["buffers"].values())
    assert 2 * 32 * 64 <= size < 4 * 32 * 64
    assert size_text(int(size)) in said(capsys, *words, "--f16", "--explain", first["name"])
    assert f", {len(card['programs'])} programs: " in said(capsys, *words, "--f16")
    file = tmp_path / "whole.json"
    file.write_text(said(capsys, *words, "--json"))
    last = said(capsys, *words, "--f16", "--against", str(file)).splitlines()[-1]
    assert last.startswith("all ") and 0 < float(last.split()[-1]) < 1.2


def test_a_program_is_explained(model, capsys):
    card, = json.loads(said(capsys, f"{model}:step", "--device", "rtx3060", "--json"))
    name = card["programs"][0]["name"]
    text = said(capsys, f"{model}:step", "--device", "rtx3060", "--explain", name)
    assert text.startswith(f"{name} on GeForce RTX 3060, x ")
    for term, seconds in card["programs"][0]["terms"].items():
        assert re.search(rf"^  {term} +{re.escape(f'{seconds * 1e6:.3g}')} us", text, re.MULTILINE)
    assert card["programs"][0]["how"].splitlines()[0] in text
    err = said(capsys, f"{model}:step", "--device", "rtx3060", "--explain", "nothing", status=1)
    assert err.startswith(f"minigrad: [dojo] expected one of {name}, ")


def test_a_card_stands_beside_another_and_beside_measured_times(model, capsys, tmp_path):
    text = said(capsys, f"{model}:step", "--device", "rtx3060", "--against", "rx6600")
    assert "rtx3060, predicted  rx6600, predicted" in text and text.splitlines()[-1].startswith("all ")
    file = tmp_path / "times.json"
    file.write_text(said(capsys, f"{model}:step", "--device", "rtx3060", "--json"))
    same = said(capsys, f"{model}:step", "--device", "rtx3060", "--against", str(file)).splitlines()
    assert all(line.endswith("1.00") for line in same[1:])
    with config(device="CPU"), minigrad.profile() as p:
        (minigrad.Tensor.randn(8, 8) @ minigrad.Tensor.randn(8, 8)).realize()
    p.save(file)
    assert "in the file" in said(capsys, f"{model}:plain", "--device", "rtx3060", "--against", str(file))
    file.write_text("[]")
    assert "expected what profile.save or" in said(capsys, f"{model}:plain", "--device", "rtx3060", "--against",
                                                   str(file), status=1)


def test_what_was_planned_is_kept(model, capsys, monkeypatch):
    first = said(capsys, f"{model}:step", "--device", "rx6600,rtx4090")
    monkeypatch.setattr(dojo, "make_plan", None)
    assert said(capsys, f"{model}:step", "--device", "rx6600,rtx4090") == first


def test_a_new_card_is_a_file(model, capsys, monkeypatch):
    monkeypatch.setattr(measured, "NAME", "machines")
    folder = measured.folder(of_gpus=True)
    folder.mkdir(parents=True)
    (folder / "rtx3060big.toml").write_text('like = "rtx3060"\nname = "Big"\n\n[declared]\nunits = 56\n'
                                            'dram_gbs = 720\n')
    gpus.forget()
    try:
        lines = said(capsys, f"{model}:step", "--device", "rtx3060,rtx3060big").splitlines()
    finally:
        (folder / "rtx3060big.toml").unlink()
        gpus.forget()
    assert lines[1].startswith("Big ") and lines[2].startswith("GeForce RTX 3060")


def test_a_model_in_onnx_is_planned(tmp_path, capsys):
    pytest.importorskip("onnx")
    from minigrad import Tensor, nn
    from minigrad import onnx as minigrad_onnx

    layer = nn.Linear(64, 32)
    path = tmp_path / "linear.onnx"
    minigrad_onnx.export(lambda x: layer(x).relu(), Tensor.randn(2, 64), path=path)
    with config(cache_dir=tmp_path / "cache", verify=False):
        assert "1 launch, 1 program: " in said(capsys, str(path), "--device", "rtx3060")
        whole, half = (json.loads(said(capsys, str(path), "--device", "rtx3060", "--json", *more))[0]
                       for more in ((), ("--f16",)))
    assert half["f16"] and half["peak_bytes"] < whole["peak_bytes"]


@pytest.mark.parametrize("words, message", [
    ((), "expected a MODEL, or --table without one"),
    (("{}:step", "--table"), "expected a MODEL, or --table without one"),
    (("{}:step", "--device", "voodoo"), "expected SIM:<one of "),
    (("{}:step", "--explain", "x"), "expected --device CARD with --explain"),
    (("{}:none", ), "expected a function of .*small.py, got 'none'"),
    (("{}:number", ), "expected a function of .*small.py, got 'number'"),
    (("nowhere.py:step", ), "expected a file, got 'nowhere.py'"),
    (("model.bin", ), "expected FILE.onnx or FILE.py:FUNCTION, got 'model.bin'"),
    (("{}:reads", ), "has no values to read"),
    (("{}:plain", "--f16"), "expected a function that gives the step, with --f16, got Tensor"),
    (("{}:plain", "--device", "rtx3060", "--against", "nothing"), "expected a card or a file of times, got 'nothing'"),
])
def test_wrong_words_are_told(model, capsys, words, message):
    err = said(capsys, *[word.format(model) for word in words], status=1)
    assert re.search(message, err) and len(err.splitlines()) == 1


def test_the_table_marks_what_is_predicted_and_what_is_quoted(capsys, monkeypatch, tmp_path):
    """With small models in place of its own."""
    from minigrad import Tensor
    from minigrad.cli import dojo as command

    def small():
        a = Tensor.randn(16, 16)
        return lambda: a @ a

    monkeypatch.setattr(command, "zoo", lambda: dict.fromkeys(command.QUOTED, small))
    with config(cache_dir=tmp_path, verify=False):
        lines = said(capsys, "--table").splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["predicted", "predicted", "quoted"] * 2


def test_what_makes_launches_slow_is_told():
    from minigrad import Tensor

    def warned(make) -> str:
        found, = dojo.predict_step(make, ["rtx3060"])
        return " ".join(text for p in found.programs for text in p.warnings)

    def transposed():
        a, b = Tensor.randn(2048, 2048).realize(), Tensor.randn(2048, 2048).realize()
        return lambda: a.T + b

    def straight():
        a = Tensor.randn(1 << 20).realize()
        return lambda: a + 1

    def few_rows():
        a = Tensor.randn(4, 1 << 18).realize()
        return lambda: a.softmax(1)

    assert "gather: reads p0 8192 bytes apart" in warned(transposed)
    assert "few-units: 4 groups for 28 units" in warned(few_rows)
    assert not warned(straight)


def test_times_have_three_digits():
    from minigrad.cli.dojo import time_text

    assert [time_text(x) for x in (9.994e-4, 9.996e-4, 0.9996, 1.5)] == ["999 us", "1 ms", "1 s", "1.5 s"]
