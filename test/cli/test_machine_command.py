"""The command `machine`: records with their sources, what differs, measuring, and that what was measured is used."""
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from conftest import needs_device

from minigrad import config
from minigrad.cli import devices as devices_command
from minigrad.cli import machine_measure
from minigrad.cli.command_line import main
from minigrad.codegen.machines import gpus, measured
from minigrad.codegen.machines.machine import Measured, forget, machine, measured_of, own_name
from minigrad.codegen.machines.sources import counts, processors, stated
from minigrad.engine.plan_store import plan_key
from minigrad.errors import ConfigError
from minigrad.runtime import opencl_devices
from minigrad.runtime.opencl import OpenCL
from minigrad.runtime.registry import get_device


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cache folder of its own, and little memory to read."""
    monkeypatch.setattr(machine_measure, "FAR_BYTES", 4 << 20)
    monkeypatch.setattr(machine_measure, "MOST_BYTES", 4 << 20)
    monkeypatch.setattr(measured, "NAME", "machines")
    with config(cache_dir=tmp_path, verify=False, debug=0):
        gpus.forget()
        forget()
        yield tmp_path
    gpus.forget()
    forget()


def test_a_record_is_printed_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "rx6700xt"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Radeon RX 6700 XT (gfx1031, 40 units, 13.2 TFLOP/s, 384 GB/s)\n"
                          "rx6700xt, like gfx1031, rdna2, rdna1, amd, generic-gpu\n")
    assert re.search(r"^\d+ facts: \d+ AMD's, ", out, re.MULTILINE)
    assert re.search(r"^register_granule +16 +rdna2 +AMD: LLVM", out, re.MULTILINE)
    assert main(["machine", "znver4"]) == 0
    assert re.search(r"^fma_latency +4 +generic +manual", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("name", [*gpus.records(), *processors()])
def test_every_fact_has_its_kind(name: str) -> None:
    """Those that a record lacks would be the others of the file: all are there, each once."""
    facts = stated(name)
    assert len({(fact.section, fact.name) for fact in facts}) == len(facts) > 25
    if name in gpus.records():
        found = gpus.record(name)
        assert {(f.section, f.name): tomllib.loads(f"x = {f.value}")["x"] for f in facts} == {
            (section, fact): value for section in gpus.SECTIONS for fact, value in found[section].items()}
    kinds = dict(re.findall(r"(\d+) ([\w' ]+?)(?:,|$)", counts(facts).partition(": ")[2]))
    assert sum(map(int, kinds)) <= len(facts) and all(fact.source for fact in facts)


def test_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "diff", "rtx3060", "rtx3090"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["section", "fact", "rtx3060", "rtx3090"] and ["declared", "units", "28", "82"] in lines
    assert "wave" not in {line[1] for line in lines}
    assert main(["machine", "diff", "w6600", "w6600"]) == 0
    assert "have the same facts" in capsys.readouterr().out


def test_the_machine_at_hand(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["machine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("CPU ") and line.endswith(" no") for line in lines)
    assert any(line.startswith("cards: ") and "rtx3060" in line for line in lines)


@pytest.mark.parametrize("arguments, message", [
    (["rtx306"], "expected a name of a record, such as 780m, "),
    (["diff", "rtx3060"], "expected nothing, NAME, diff A B"),
    (["diff", "rtx3060", "znver4"], "two GPUs or two processors, got a GPU, rtx3060 and a processor, znver4"),
    (["rtx3060", "--seconds", "3"], "expected --seconds with measure only"),
    (["measure", "--seconds", "0"], "expected --seconds above 0"),
    (["measure", "--device", "NUMPY"], "expected CPU or an OpenCL device to measure, got NUMPY"),
    (["measure", "--device", "AMD:gfx1031"], "expected CPU or an OpenCL device"),
])
def test_wrong_words(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("device", ["CPU", pytest.param("CL:pocl", marks=needs_device("CL:pocl"))])
def test_what_is_measured_is_used(device: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, and for planning: a record names nothing but [speed], so that results stay."""
    opened = get_device(device)
    target = opened.target
    before = machine(target), plan_key((1,), frozenset(), opened)
    assert main(["machine", "measure", "--seconds", "0.05", "--device", device]) == 0
    path = cache / "machines" / f"{own_name(target)}.toml"
    assert f"written to {path}" in capsys.readouterr().out
    found = tomllib.loads(path.read_text())
    assert found.keys() == {"speed"}
    after = machine(target)
    assert after.declared == before[0].declared and after.costs == before[0].costs
    assert {f: getattr(after.speed, f) for f in found["speed"]} == found["speed"] == measured_of(target)
    assert {f.name for f in fields(Measured) if f.name[:3] not in ("f16", "l2_", "l3_")} <= found["speed"].keys()
    assert found["speed"]["l1_latency_ns_measured"] < 100 and 0.5 < found["speed"]["fma_latency_ns_measured"] < 100
    assert plan_key((1,), frozenset(), opened) != before[1]
    for line in path.read_text().splitlines()[1:]:
        assert re.search(r"# measured \d{4}-\d{2}: ", line)
    assert main(["machine"]) == 0
    assert str(path) in capsys.readouterr().out


def test_a_record_is_written_elsewhere_to_be_shared(cache: Path) -> None:
    target, path = get_device("CPU").target, cache / "shared" / "mine.toml"
    assert main(["machine", "measure", "--seconds", "0.05", "--output", str(path)]) == 0
    assert not measured_of(target) and "dram_gbs_measured" in path.read_text()
    (cache / "machines").mkdir()
    path.rename(cache / "machines" / f"{own_name(target)}.toml")
    forget()
    assert machine(target).speed.dram_gbs_measured == measured_of(target)["dram_gbs_measured"]


@needs_device("CL:pocl")
def test_a_gpu_without_a_record_gets_one_by_its_driver(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a processor's driver that is planned for as a GPU: of any kind, with its units."""
    monkeypatch.setattr(machine_measure, "ITEMS", 8)
    opened = get_device("CL:pocl")
    assert isinstance(opened, OpenCL)
    shown = replace(opened.target, vector_bytes=4, cpu="NVIDIA GeForce RTX 3070 (new)")
    monkeypatch.setattr(opened, "target", shown)
    assert main(["machine", "measure", "--seconds", "0.05", "--device", "CL:pocl"]) == 0
    path = cache / "machines" / "gpus" / "nvidia-geforce-rtx-3070-new.toml"
    found = tomllib.loads(path.read_text())
    assert (found["like"], found["declared"]["units"]) == ("ampere", opened.info.units)
    assert "dram_share_measured" not in found["speed"] and found["speed"]["dram_gbs_measured"] > 0
    assert gpus.of_driver(shown.cpu) == path.stem and gpus.gpu(path.stem).warps_per_unit == 48
    assert main(["machine", "measure", "--seconds", "0.05", "--device", "CL:pocl"]) == 0
    assert tomllib.loads(path.read_text())["like"] == "ampere"
    monkeypatch.setattr(opened, "target", replace(shown, cpu="NVIDIA GeForce RTX 3060"))
    assert main(["machine", "measure", "--seconds", "0.05", "--device", "CL:pocl"]) == 0
    found = tomllib.loads((path.parent / "rtx3060.toml").read_text())
    assert found.keys() == {"speed"} and gpus.gpu("rtx3060").units == 28
    assert gpus.gpu("rtx3060").dram_share_measured == found["speed"]["dram_share_measured"]


@pytest.mark.parametrize("text, message", [
    ("speed = 3", r"expected \[speed\] to be a table of facts in .*, got 3"),
    ("[speed]\ndram_gbs_measured = ", "expected TOML in"),
    ("[speed]\ndram_gbs_measured = -1", r"expected dram_gbs_measured in .* to be a number above 0, got -1"),
    ("[speed]\ndram_gbs_measured = 'fast'", "got 'fast'"),
    ("[speed]\ndram_gbs_measured = nan", "got nan"), ("\xff", "expected TOML"),
])
def test_a_file_that_is_no_record_is_told(text: str, message: str, cache: Path) -> None:
    target = get_device("CPU").target
    (cache / "machines").mkdir()
    (cache / "machines" / f"{own_name(target)}.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        machine(target)


def test_facts_of_other_versions_and_sections_are_passed_over(cache: Path) -> None:
    """And [declared] and [costs] of a user's file: they decide how sums are grouped."""
    target = get_device("CPU").target
    (cache / "machines").mkdir()
    (cache / "machines" / f"{own_name(target)}.toml").write_text(
        "[declared]\nfma_latency = 9\n[costs]\nitem = 9\n[speed]\nolder = 9\ndram_gbs_measured = 9\n")
    (cache / "machines" / "gpus").mkdir()
    (cache / "machines" / "gpus" / "rtx3060.toml").write_text(
        "[declared]\nunits = 9\n[speed]\nolder = 9\ndram_share_measured = 0.5\n")
    found, card = machine(target), gpus.gpu("rtx3060")
    assert found.speed.dram_gbs_measured == 9 and found.declared.fma_latency != 9 != found.costs.item
    assert card.dram_share_measured == 0.5 and card.units == 28
    assert {f.file for f in stated("rtx3060") if f.name == "dram_share_measured"} == {"rtx3060"}


def test_a_card_s_record_counts_where_the_driver_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    info = opencl_devices.DeviceInfo(0, "AMD", "", "", "AMD Radeon RX 6700 XT", "", "1", "GPU", 20, 0, 0, 65536, 256, 4,
                                     frozenset(), frozenset(), None, cache=32768)
    assert (info.record, info.target.units, info.target.l2) == ("rx6700xt", 40, 3 << 20)
    monkeypatch.setattr(devices_command, "devices", lambda: [info])
    monkeypatch.setattr(devices_command, "platforms_without_devices", list)
    assert devices_command._opencl_notes() == [
        "CL:0 is rx6700xt, which has 40 units, not 20, 3145728 bytes of cache, not 32768 as the driver says"]
    other = replace(info, name="AMD Radeon RX 6800M")
    assert (other.record, other.differences, other.target.units) == ("rdna2", (), 20)
    assert replace(info, kind="CPU").record == ""
