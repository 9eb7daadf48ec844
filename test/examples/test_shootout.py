"""The drivers' shoot-out: entries, and what is said of drivers that fail, end their process or hang. That of real
drivers runs in docs/howto/compare-drivers.md."""
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.efficientnet import benchmark_train_efficientnet as benchmark
from examples.efficientnet.shootout import Entry, Outcome, entries_of, one, shootout, table
from minigrad.errors import ConfigError

RUN = benchmark.Run(0.001, 0.002, 0.003, 0.004, 6.9, 1, 1, benchmark.Stats(flops=1e9, programs=7)).row()
SLOW = {**RUN, "run_s": 2.009, "schedule_s": 0.5, "render_s": 0.25}


def test_entries() -> None:
    assert entries_of("CPU") == [Entry("CPU", "CPU")]
    assert entries_of("CL:pocl 3.1, AMD:gfx1031,cpu") == [
        Entry("CL:pocl 3.1", "CL:pocl 3.1"), Entry("AMD:gfx1031", "AMD:gfx1031"), Entry("cpu", "cpu")]
    first, second = entries_of("CL:rusticl[AMD_DEBUG=cs,useaco; X=],CL:rusticl[]")
    assert first == Entry("CL:rusticl[AMD_DEBUG=cs,useaco; X=]", "CL:rusticl",
                          (("AMD_DEBUG", "cs,useaco"), ("X", "")))
    assert second == Entry("CL:rusticl[]", "CL:rusticl")
    assert [e.offline for e in entries_of("AMD:gfx1031,NV:sm_86,CL:amd")] == ["gfx1031", "sm_86", ""]


@pytest.mark.parametrize("text, message", [
    ("", "at least one device, got none"), ("GPU", "expected CPU, CL, .* got 'GPU'"), (",CPU", r"got ',CPU'"),
    ("CPU[A=1", r"expected DEVICE or DEVICE\[VARIABLE=value;...\], separated by commas, got 'CPU\[A=1'"),
    ("CPU[A]", r"expected VARIABLE=value in the brackets of CPU, got 'A'"), ("CPU[A=1]CL", "got 'CPU")])
def test_entries_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        entries_of(text)


def test_other_options_that_name_a_device_are_refused() -> None:
    for other in ("--device=CPU", "--occupancy=gfx1031"):
        with pytest.raises(ConfigError, match=r"expected all devices in --shootout"):
            benchmark.parse_settings(["--shootout", "CPU", other])


def driver(folder: Path, code: str) -> str:
    """The environment of a process that does this before anything else, as the words of an entry; `row` writes a row of
    the benchmark."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"""
import json, os, sys, time
rows = sys.orig_argv[sys.orig_argv.index("--json") + 1]
def row(what):
    with open(rows, "a") as file:
        file.write(json.dumps(what) + "\\n")
{code}
""")
    return f"[PYTHONPATH={os.pathsep.join([str(folder), *filter(None, sys.path)])}]"


@pytest.mark.parametrize("code, limit, problem", [
    ("os.kill(os.getpid(), 11)", 60, r"ended by SIGSEGV after \d+ s and 0 runs"),
    (f"row({SLOW!r}); print('LLVM ERROR: no', file=sys.stderr); os.abort()", 60,
     r"ended by SIGABRT after \d+ s and 1 run: LLVM ERROR: no"),
    (f"row({SLOW!r}); os.system('sleep 60')", 3, r"stopped after 3 s, in which it had done 1 run"),
    ("open(rows, 'a').write('{'); sys.stderr.write('out of memory\\n'); os._exit(3)", 60,
     r"failed after \d+ s: out of memory"),
    ("os._exit(3)", 60, r"failed after \d+ s: exit status 3"),
])
def test_a_driver_that_fails_is_one_column(code: str, limit: float, problem: str, tmp_path: Path) -> None:
    """Whatever it does, the others go on."""
    said: list[str] = []
    fine = driver(tmp_path / "fine", f"row({SLOW!r}); row({RUN!r}); os._exit(0)")
    failed, other = shootout(entries_of(f"CL:first{driver(tmp_path / 'not', code)},CL:second{fine}"), {}, limit,
                             said.append)
    assert re.fullmatch(problem, failed.problem), failed.problem
    assert len(failed.runs) == code.count("row(") and not other.problem and len(other.runs) == 2
    assert table([failed, other])[-1].split() == ["outcome", "failed", "ran"]
    assert said[-1].startswith("  last ") and f"  {failed.problem}" in said


def test_what_a_driver_dumps_of_its_shaders_is_counted(tmp_path: Path) -> None:
    words = "SGPRS: 8\\nVGPRS: 24\\nMax Waves: {}\\n****"
    code = "".join([f"print('{words.format(n)}', file=sys.stderr);" for n in (16, 8, 16)])
    entry, = entries_of("CL:first" + driver(tmp_path, f"{code} row({SLOW!r}); row({RUN!r}); os._exit(0)"))
    outcome = one(entry, {}, 60)
    assert outcome.waves == Counter({16: 2, 8: 1}) and not outcome.problem and outcome.programs == 7
    assert outcome.compile_s == pytest.approx(2.0 - 0.75)
    lines = {line.split("  ")[0]: line.split()[-1] for line in table([outcome])[1:]}
    assert lines["Max Waves: 16"] == "2" and lines["Max Waves: 8"] == "1" and lines["outcome"] == "ran"
    assert lines["first run, ms"] == "2009.00" and lines["last run, ms"] == "9.00"
    row = json.loads(json.dumps(outcome.row()))
    assert row["max_waves"] == {"16": 2, "8": 1} and row["first"]["run_s"] == 2.009 and row["device"] == "CL:first"


def test_each_entry_has_its_environment_and_empty_caches(tmp_path: Path) -> None:
    code = "row({'about': json.dumps(dict(os.environ))}); os._exit(0)"
    entries = entries_of(f"CPU{driver(tmp_path, code)[:-1]};AMD_DEBUG=useaco],CPU{driver(tmp_path, code)}")
    found = [json.loads(o.about) for o in shootout(entries, {"NUM": 3}, 60, lambda _: None)]
    assert [f.get("AMD_DEBUG") for f in found] == ["useaco", None] and all(f["NUM"] == "3" for f in found)
    for name in ("MINIGRAD_CACHE", "POCL_CACHE_DIR", "MESA_SHADER_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert found[0][name] != found[1][name] and not Path(found[0][name]).exists()


def test_tables_have_columns_as_wide_as_names() -> None:
    outcomes = [Outcome(Entry("CPU", "CPU"), runs=[RUN]), Outcome(Entry("CL:rusticl[AMD_DEBUG=useaco]", "CL"))]
    outcomes[1].unknown["no ptxas"] = 4
    lines = table(outcomes)
    assert len({len(line) for line in lines}) == 1 and lines[0].split() == [o.entry.name for o in outcomes]
    assert next(line for line in lines if "no ptxas" in line).split()[-2:] == ["-", "4"]
