"""Records of GPUs: complete, short, with a source on each fact; found by compilers' and drivers' names; files alone."""
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from minigrad.codegen.machines import gpus
from minigrad.codegen.machines.gpus import FOLDER, Gpu, cards, gpu, gpu_of, of_driver, of_isa, records
from minigrad.codegen.machines.sources import stated
from minigrad.errors import ConfigError

SOURCE = re.compile(r"(NVIDIA|AMD|Intel|Apple|Arm|Qualcomm): \w|measured|derived|assumed|unsourced|fitted \d{4}-\d{2}|"
                    r"metal-benchmarks|Jia et al\.")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the records that may be changed."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(gpus, "FOLDER", tmp_path)
    gpus.forget()
    yield tmp_path
    gpus.forget()


@pytest.mark.parametrize("name", records())
def test_a_record_is_complete_short_and_says_where_each_fact_is_from(name: str) -> None:
    made = gpu(name)
    assert made.units > 0 and made.f32_tflops >= made.f32_tflops_single > 0 and made.line_bytes >= made.sector_bytes
    assert made.local_bytes_per_group <= made.local_bytes_per_unit * made.units_together
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 120
    for line in lines:
        if re.match(r"\w+ = [^\"\[]", line):
            assert SOURCE.match(line.partition("#")[2].strip()), line
    if like := gpus.record(name).get("like"):
        below = {fact.name: fact for fact in stated(like)}
        repeated = [fact.name for fact in stated(name) if fact.file == name and fact.name in below
                    and fact.value == below[fact.name].value and below[fact.name].kind != "assumed"]
        assert not repeated


def test_cards_round_trip() -> None:
    """A Gpu's own facts say the same Gpu."""
    assert len(cards()) >= 21
    for name in cards():
        made = gpu(name)
        facts = {f.name: getattr(made, f.name) for f in fields(Gpu) if f.name not in ("isa", "names")}
        again = gpu_of(facts | {"isa": made.isa[0], "f32_tflops": made.f32_tflops})
        assert all(getattr(again, f) == pytest.approx(x) for f, x in facts.items() if isinstance(x, int | float)), name


@pytest.mark.parametrize("said, name", [
    ("NVIDIA GeForce RTX 3060", "rtx3060"), ("NVIDIA GeForce RTX 3060 Laptop GPU", "ampere"),
    ("AMD Radeon RX 6700 XT (radeonsi, navi22, LLVM 17.0.6)", "rx6700xt"), ("gfx1031", "gfx1031"),
    ("gfx90a:sramecc+:xnack-", "cdna2"), ("AMD Radeon RX 5700 XT", "rdna1"), ("Intel(R) Arc(TM) A770 Graphics", "a770"),
    ("Intel(R) UHD Graphics 770", "uhd770"), ("Apple M1", "m1"), ("Apple M1 Max", "apple7"), ("Tesla T4", "t4"),
    ("NVIDIA A100-SXM4-40GB", "a100"), ("Mali-G610 r0p0", "valhall"), ("something new", "generic-gpu"),
    ("", "generic-gpu"),
])
def test_a_driver_s_name_finds_the_card_or_else_its_family(said: str, name: str) -> None:
    assert of_driver(said) == name


def test_a_compiler_s_name_finds_a_chip_or_family() -> None:
    assert [of_isa(x) for x in ("gfx1031", "sm_86", "sm_80", "gfx906", "sm_1")] == [
        "gfx1031", "ampere", "ampere_server", "vega20", None]
    assert gpu("rx6700xt").isa == ("gfx1031",)
    assert all(of_isa(x) for name in records() for x in gpu(name).isa)


def test_facts_that_are_missing_come_from_the_family() -> None:
    made = gpu_of({"isa": "sm_86", "units": 30, "f32_tflops": 10.94, "dram_gbs": 336, "f32_issue": "text"})
    assert (made.units, made.dram_gbs, made.warps_per_unit) == (30, 336, 48)
    assert made.clock_mhz == pytest.approx(10.94e6 / 2 / 128 / 30) and made.f32_tflops == pytest.approx(10.94)
    assert gpu_of({"name": "GeForce RTX 3070", "f32_tflops": 20.31}).units == pytest.approx(46, abs=1)
    assert gpu_of({}) == gpu("generic-gpu")


def test_a_new_card_is_a_file(folder: Path) -> None:
    (folder / "rx9999.toml").write_text('like = "gfx1031"\nname = "RX 9999"\nnames = ["Radeon RX 9999"]\n\n[declared]\n'
                                        "units = 50  # AMD: specification of the card\n")
    assert "rx9999" in cards() and gpu("rx9999").units == 50 and of_driver("AMD Radeon RX 9999") == "rx9999"
    assert gpu("rx9999").register_granule == 16
    (folder / "rx9999-oc.toml").write_text('like = "rx9999"\n[declared]\nclock_mhz = 3000\n')
    gpus.forget()
    assert {"rx9999", "rx9999-oc"} <= {*cards()} and gpu("rx9999-oc").units == 50


@pytest.mark.parametrize("text, message", [
    ('like = "ampere"\nname = "x"\n[declared]\nunit = 3', "expected facts of a GPU in [declared] of wrong.toml"),
    ('like = "ampere"\nname = "x"\n[speed]\nunits = 3', "in [speed] of wrong.toml, got ['units']"),
    ('like = "ampere"\nname = "x"\n[speeds]\n', "got ['speeds']"),
    ('name = "x"\nvendor = ""\n[declared]\nunits = 3', "'wave'"),
    ('like = "wrong"', "to be another of"), ('like = "ampre"', "got 'ampre'"), ("like = 3", "got 3"),
    ('like = "ampere"\nnames = "RTX"', "to be a list of texts, got 'RTX'"),
    ('like = "ampere"\nnames = ["RTX("]', "to be regular expressions, got 'RTX('"),
    ('like = "ampere"\n[declared]\nunits = "3"', "number of at least 0, got '3'"),
    ('like = "ampere"\n[costs]\nlaunch = nan', "expected launch in"), ('like = "ampere', "expected TOML"),
])
def test_a_wrong_file_is_refused(text: str, message: str, folder: Path) -> None:
    (folder / "wrong.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        gpu("wrong")


def test_a_wrong_name_is_told_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"\[machine\] expected one of 780m, .*, xe2, got 'rtx306'"):
        gpu("rtx306")
