"""The benchmarks run, at tiny sizes, and print rows with the right fields. What they measure is not looked at."""
import argparse
import json
from functools import partial
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from bench import layers, llama
from bench.__main__ import BENCHMARKS, main, measure
from bench.memory import RESET, resident
from bench.options import common_parser
from bench.peers import set_threads
from bench.report import OURS, STREAM, Report, Work
from bench.timing import QUICK, Schedule, Side, interleave
from bench.traffic import stage_bytes, table
from minigrad import Tensor
from minigrad.codegen.passes import Stage, stages_of
from minigrad.runtime.limits import Limits
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule

FIELDS = {"peer", "version", "work", "threads", "best_s", "median_s", "quartiles_s", "runs", "variant", "first_s",
          "cores_used", "omp_wait_policy", "load_average"}
# Works that other frameworks' figures are known by, and the rates of each.
EXPECTED = {
    "matmul": ("matmul 8x8x8 float32", {"gflops", "share"}),
    "conv": ("conv2d forward 8x6x6->5 k1 s1 batch 1", {"gflops", "share"}),
    "attention": ("attention forward causal 2x16x4", {"gflops", "share"}),
    "matvec": ("matvec 256x48 Q4_0", {"gflops", "gb_s", "share", "stream_best", "stream_median"}),
    "depthwise": ("conv2d forward 4x8x8->4 k3 s1 depthwise batch 1", {"gflops", "share"}),
    "rowops": ("softmax 3x5", {"gb_s", "share"}),
    "efficientnet": ("efficientnet quick train batch 2", {"img_s"}),
    "llama": ("llama quick decode after 6", {"tok_s"}),
    "device": ("matmul 16x16x16 float16", {"gflops"}),
    "node": ("node made", set()),
    "zoo": ("zoo quick mobilenetv2", {"gflops", "img_s", "share"}),
    "scripts": ("script vae", set()),
    "networks": ("network quick rows", set()),
    "torch-compile": ("torch.compile vae infer", set()),
}


@pytest.fixture(autouse=True)
def _threads_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.set_threads", lambda count: None)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_runs_and_prints_rows(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "torch-compile":
        pytest.importorskip("torch", reason="torch is not installed: nothing to compile")
    path = tmp_path / "rows.jsonl"
    assert main([name, "--quick", "--against", "none", "--threads", "2", "--json", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    work, rates = EXPECTED[name]
    found = [row for row in rows if row["work"] == work and row["peer"] != STREAM]
    assert found, [row["work"] for row in rows]
    for row in found:
        assert set(row) == FIELDS | rates
        assert row["peer"] == OURS and row["threads"] == 2 and row["runs"] >= 1
        low, high = row["quartiles_s"]
        assert 0 < row["best_s"] <= low <= row["median_s"] <= high
    assert work in capsys.readouterr().out


def test_products_of_other_types_stand_beside_float32() -> None:
    report = measure("matmul", ["--quick", "--against", "none", "--sets", "square", "--dtypes", "float16", "int8"])
    for dtype in ("float16", "int8"):
        rows = [row for row in report.rows if row["work"] == f"matmul 8x8x8 {dtype}"]
        assert [row["peer"] for row in rows] == [OURS, OURS, "minigrad float32"]
        assert all(row["against"] == "minigrad float32 jit" for row in rows[:2])


def test_a_read_stream_takes_turns_with_products_that_stream() -> None:
    """Its bytes are those of the work, its rate counts among the limits, and it is no peer."""
    report = measure("matvec", ["--quick", "--against", "none", "--dtypes", "float16", "Q8_0"])
    for dtype in ("float16", "Q8_0"):
        rows = {row["peer"]: row for row in report.rows if row["work"] == f"matvec 256x48 {dtype}"}
        ours, stream = rows[OURS], rows[STREAM]
        assert "against" not in ours and "gflops" not in stream and stream["share"] <= 1.01
        assert ours["stream_best"] == pytest.approx(ours["gb_s"] / stream["gb_s"], rel=0.01)
    assert not any(row["peer"] == STREAM for row in report.rows if row["work"].endswith("geometric mean"))


def test_traffic_of_a_step_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    measure("efficientnet", ["--quick", "--against", "none", "--traffic", "train"])
    lines = capsys.readouterr().out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("one step: "))
    launches, programs = (int(word) for word in lines[first].split() if word.isdigit())
    assert launches >= programs // 2 > 0
    moved = [float(line.split()[0]) for line in lines[first + 1:] if " stages " in line]
    assert moved == sorted(moved, reverse=True) and abs(sum(moved) - float(lines[first].split()[-4])) < 0.1


def scheduled(x: Tensor) -> list[Stage]:
    target = get_device("CPU").target
    return [stage for step in schedule(build_graph([x.node]), frozenset(), target).steps
            for stage in stages_of(step.kernel, target).stages]


def test_bytes_of_a_stage_are_those_of_its_operands() -> None:
    x, y = Tensor.ones(40, 60).contiguous().realize(), Tensor.ones(60).contiguous().realize()
    lines = table(lambda: (x * y + 1).realize(), 1)
    assert lines[0].startswith("one step: 1 launch, 1 program") and len(lines) == 2
    kernel = scheduled(x * y + 2)[0]
    assert stage_bytes(kernel) == 4 * (2400 + 60 + 2400)
    shifted = scheduled(x[:, 1:].contiguous())[0]
    assert stage_bytes(shifted) == 4 * 2 * 40 * 59, "what is not read does not count"


@pytest.mark.parametrize("wanted", ["data", "weights", "both"])
def test_gradients_run(wanted: str) -> None:
    report = measure("conv", ["--quick", "--against", "none", "--grad", wanted])
    passes = {"data": "backward-data", "weights": "backward-weights", "both": "backward"}
    assert [row["work"] for row in report.rows] == [
        *(f"conv2d {passes[wanted]} {layer} batch 1" for layer in layers.QUICK_LAYERS),
        f"conv2d {passes[wanted]} mobilenet batch 1, geometric mean"]


@pytest.mark.parametrize("name", ["matmul", "depthwise", "matvec", "rowops", "efficientnet", "scripts", "networks"])
def test_each_peer_does_the_same_work(name: str) -> None:
    pytest.importorskip("torch", reason="torch is a peer, not a dependency")
    rows = measure(name, ["--quick", "--against", "torch", "--threads", "1"]).rows
    works = {row["work"] for row in rows if row["peer"] == "torch"}
    assert works == {row["work"] for row in rows if row["peer"] == OURS}
    for row in rows:
        if row["peer"] == OURS:
            assert row["ratio_best"] > 0 and row["ratio_median"] > 0
            assert row["work"].endswith("geometric mean") or row["against"].startswith("torch")


def test_a_missing_peer_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    measure("llama", ["--quick", "--against", "llama.cpp,numpy"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("without llama.cpp: ") and lines[1] == "without numpy: it is not asked for this work"


def test_rows_go_to_stdout_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    measure("matmul", ["--quick", "--against", "none", "--sets", "square", "--json", "-"])
    printed = capsys.readouterr()
    assert [json.loads(line)["work"] for line in printed.out.splitlines()] == [
        *["matmul 8x8x8 float32"] * 2, *["matmul square, geometric mean"] * 2]
    assert "matmul 8x8x8 float32" in printed.err


def test_words_that_are_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["nothing"]) == 2
    assert "usage: python -m bench" in capsys.readouterr().err
    for arguments, message in ((["--against", "keras"], "expected some of torch, numpy, onnxruntime, llama.cpp"),
                               (["--threads", "0"], "expected at least 1, got 0")):
        with pytest.raises(SystemExit):
            common_parser("matmul", "").parse_args(arguments)
        assert message in capsys.readouterr().err


def test_sides_take_turns() -> None:
    calls: list[str] = []
    sides = [Side(OURS, name, partial(calls.append, name)) for name in "ab"]
    interleave(sides, Schedule(rounds=2, turn_s=0.0, pause_s=0.0))
    order = [name for name, before in zip(calls, ["", *calls], strict=False) if name != before]
    assert order == ["a", "b"] * 3  # preparation, and two rounds
    assert all(len(side.seconds) == 2 for side in sides)


def test_times_are_of_one_work() -> None:
    side = Side(OURS, "", lambda: None, count=4, seconds=[], repeats=1)
    interleave([side], QUICK)
    assert side.best_s * side.count * side.repeats <= side.wall_s * 1.01


def test_ratios_and_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(1, Limits(gflops=100.0, gb_s=10.0))
    for scale in (1.0, 4.0):
        report.add(Work("w", "group", flop=4e9, bytes=4e9), [
            Side(OURS, "jit", lambda: None, seconds=[2.0, 1.0, 3.0]),
            Side("numpy", "slow", lambda: None, seconds=[9.0]),
            Side("numpy", "fast", lambda: None, seconds=[2.0 * scale, 4.0 * scale])])
    report.finish()
    ours = [row for row in report.rows if row["peer"] == OURS]
    assert ours[0]["best_s"] == 1.0 and ours[0]["median_s"] == 2.0 and ours[0]["gflops"] == ours[0]["gb_s"] == 4.0
    assert ours[0]["share"] == 0.4 and ours[0]["against"] == "numpy fast"
    assert ours[0]["ratio_best"] == 2.0 and ours[0]["ratio_median"] == 1.5
    assert ours[2]["work"] == "group, geometric mean" and ours[2]["ratio_best"] == 4.0 and ours[2]["runs"] == 2
    assert ours[2]["ratio_least"] == 2.0 and ours[2]["ratio_middle"] == 5.0 and ours[2]["suspect"] == 1
    means = {row["variant"]: row["best_s"] for row in report.rows if row["work"] == "group, geometric mean"}
    assert means == {"jit": 1.0, "slow": 9.0, "fast": 4.0}
    assert "geometric mean of 2 ratios 4.00x by best" in capsys.readouterr().out


def test_threads_are_asked_for_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MINIGRAD_THREADS"):
        monkeypatch.setenv(variable, "7")
    monkeypatch.delitem(__import__("sys").modules, "numpy")
    assert set_threads(3) is None
    assert __import__("os").environ["OPENBLAS_NUM_THREADS"] == "3"


def test_layers_of_efficientnet() -> None:
    found = layers.efficientnet_b0()
    assert str(found[0]) == "3x224x224->32 k3 s2" and str(found[-1]) == "320x7x7->1280 k1 s1"
    assert "144x56x56->144 k5 s2 depthwise" in [str(layer) for layer in layers.DEPTHWISE]
    assert layers.ConvLayer(2, 4, 3, 3).flop == 2 * 2 * 9 * 3 * 16


def test_a_device_chats_with_the_options_of_that_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that `bench llama` looks at is there; `--quick` alone would not look at most of it."""
    seen: dict[str, object] = {}
    monkeypatch.setattr(llama, "run", lambda bench: seen.update(vars(bench.options)))
    measure("device", ["--parts", "chat", "--device", "CPU", "--against", "none", "--budget", "0"])
    parser = argparse.ArgumentParser()
    llama.add_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        assert seen[name] == default


@pytest.mark.parametrize("code, budget, said", [
    ("", "120", "| copy float32 |"), ("import os; os.kill(os.getpid(), 11)", "120", "copy: ended by SIGSEGV"),
    ("import time; time.sleep(60)", "2", "copy: stopped after 1 s"),
])
def test_a_part_that_fails_or_takes_too_long_costs_itself(code: str, budget: str, said: str, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif 'copy' in sys.orig_argv:\n    {code or 'pass'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = measure("device", ["--parts", "copy", "launch", "--device", "CPU", "--budget", budget])
    works = [row["work"].split(",")[0] for row in report.rows]
    assert said in capsys.readouterr().out
    assert ("copy float32" in works) == (not code) and ("launch" in works or "stopped" in said)


def test_rows_of_slow_works_have_few_samples() -> None:
    side = Side("ours", "jit", lambda: sleep(0.01))
    interleave([side], Schedule(turn_s=0.0, most_s=0.001))
    assert len(side.seconds) == 1


@pytest.mark.skipif(not RESET.exists(), reason="reads Linux's /proc")
def test_peak_memory_is_that_since_the_reset() -> None:
    size = 64 << 20
    RESET.write_text("5")
    before = resident("VmHWM")
    np.ones(size, np.uint8)
    assert size * 0.9 < resident("VmHWM") - before < size * 1.5
    RESET.write_text("5")
    assert resident("VmHWM") - before < size * 0.5


def test_a_baseline_has_rows_with_their_spread(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert main(["baseline", "--quick", "--parts", "matmul", "rowops", "--only", "8", "--json", str(path)]) == 0
    kept = json.loads(path.read_text())
    assert kept["machine"]["processor"] and kept["machine"]["date"] and kept["machine"]["versions"]["python"]
    assert {(row["benchmark"], row["work"]) for row in kept["rows"]} >= {("matmul", "matmul 8x8x8 float32")}
    assert all(row["best_s"] <= row["quartiles_s"][0] <= row["median_s"] for row in kept["rows"])


def test_two_trees_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    root = str(Path(layers.__file__).parent.parent)
    assert main(["compare", root, "--quick", "--threads", "1", "--parts", "matmul", "--only", "8x8x8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:1]] == ["matmul 8x8x8 float32"]
    assert any(line.startswith("all ") and "geometric mean of 2: " in line for line in lines)
    with pytest.raises(SystemExit):
        main(["compare", root + "/nothing"])
    assert "expected a folder with minigrad/, got" in capsys.readouterr().err
