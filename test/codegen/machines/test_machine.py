"""Facts of machines: which file a target gets, that all files are complete, and what each fact says of itself."""
import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.golden_plans import FOLDER as GOLDEN
from support.golden_plans import TARGETS, Pair, blocks, families, pairs

from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.machines import machine as module
from minigrad.codegen.machines.caches import fits, room
from minigrad.codegen.machines.machine import FOLDER, facts, file_of, machine
from minigrad.codegen.passes import Staged, stages_of
from minigrad.codegen.plan.several import AnyPlan, BlockPlan
from minigrad.codegen.plan.steps import Call, Parts, Plan, Split
from minigrad.codegen.policy.blocks import block_form
from minigrad.errors import InternalError
from minigrad.target import Target

FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))
KNOWN = TARGETS["half"]


def runs_on(name: str) -> Target:
    """A target whose facts are in the file."""
    if name == "generic-gpu":
        return TARGETS["gpu"]
    if name == "generic-opencl-cpu":
        return TARGETS["pocl"]
    if name.startswith("generic"):
        width = {"generic-neon": 16, "generic-avx2": 32}.get(name, 64)
        return replace(KNOWN, cpu="", vector_bytes=width)
    return replace(KNOWN, cpu=name)


def test_each_target_has_the_file_of_its_kind() -> None:
    found = {name: file_of(t.cpu, t) for name, t in TARGETS.items()}
    assert found == {
        "avx2": "znver3", "avx512": "znver5", "half": "znver4", "alone": "znver4", "intel": "generic-avx512",
        "vnni": "znver5", "amx": "generic-avx512", "neon": "generic-neon", "pocl": "generic-opencl-cpu",
        "gpu": "generic-gpu", "units": "generic-gpu", "raster": "generic-gpu", "scalar": "generic-gpu"}
    for unknown in "a processor of next year", "generic", "generic-avx512", "":
        kinds = [file_of(unknown, replace(KNOWN, vector_bytes=width)) for width in (16, 32, 64)]
        assert kinds == ["generic-neon", "generic-avx2", "generic-avx512"]
    assert file_of("znver4", TARGETS["pocl"]) == "generic-opencl-cpu"  # a driver's code is its own


@pytest.mark.parametrize("name", FILES)
def test_files_are_complete(name: str) -> None:
    made = machine(runs_on(name))
    assert all(getattr(made, section) is not None for section in ("declared", "costs", "plans", "speed"))


@pytest.mark.parametrize("name", FILES)
def test_each_fact_says_where_it_is_from(name: str) -> None:
    """Every line with a fact, or the comment right above it."""
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r"\w+ = ", line) and not line.startswith("like"):
            said = line.partition("#")[2] or before.partition("#")[2]
            assert re.search(r"manual|measured \d{4}-\d{2}|chosen|as on|assumed", said), f"{name}: {line}"
        assert len(line) <= 120, f"{name}: {line}"


def test_files_differ_from_what_they_are_like() -> None:
    """A fact that is repeated would be two to keep equal."""
    for name in FILES:
        own = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        below = facts(own.pop("like")) if "like" in own else {}
        assert name == "generic" or below
        repeated = [f for section, found in own.items() for f, x in found.items() if below.get(section, {}).get(f) == x]
        assert not repeated, f"{name}: {repeated}"


def test_programs_round_as_the_processor_they_are_for() -> None:
    """And are as fast as the one that they run on."""
    older = replace(KNOWN, cpu="x86-64-v4", host="znver4")
    assert machine(older).declared.fma_per_cycle == 2 and machine(KNOWN).declared.fma_per_cycle == 1
    assert machine(older).speed.long_streams and not machine(replace(older, host="")).speed.long_streams


@pytest.mark.parametrize("text, message", [
    ("like = 'generic'\n[speed]\nlong_steams = true", "expected facts [] and not ['long_steams'] in [speed]"),
    ("[declared]\n[costs]\n[speed]\nlong_streams = true", "fma_per_cycle"),
    ("like = 'generic'\n[speeds]\nlong_streams = true", "expected sections declared, costs, plans, speed in"),
])
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "generic.toml").write_text((FOLDER / "generic.toml").read_text())
    (tmp_path / "wrong.toml").write_text(text)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    for kept in (module.facts, module.machine, module._processors):
        monkeypatch.setattr(module, kept.__name__, getattr(kept, "__wrapped__", kept))
    with pytest.raises((InternalError, KeyError), match=re.escape(message)):
        module.machine(replace(KNOWN, cpu="wrong"))


@pytest.mark.parametrize("level, most", [(1, 48 << 10), (2, 1 << 20)])
def test_what_fits_a_cache(level: int, most: int) -> None:
    target = TARGETS["half"]
    assert room(level, target) == most and fits(most, level, target) and not fits(most + 1, level, target)


def test_importing_reads_no_facts() -> None:
    """They are read when something is planned for the first time."""
    code = "import sys, minigrad; print('tomllib' in sys.modules, 'minigrad.codegen.machines.machine' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=FOLDER.parents[2])
    assert found.stdout.startswith(b"False")


def test_the_wheel_has_them() -> None:
    project = tomllib.loads((FOLDER.parents[2] / "pyproject.toml").read_text())
    kept = project["tool"]["setuptools"]["package-data"]["minigrad"]
    assert all(any((FOLDER / f"{name}.toml") in FOLDER.parents[1].glob(pattern) for pattern in kept) for name in FILES)


# ---- planners ----

PLANNERS = sorted(path for folder in ("patterns", "policy", "cost")
                  for path in (FOLDER.parent / folder).glob("[a-z]*.py"))
PLANNERS += [FOLDER.parent / name for name in ("panels.py", "passes.py", "machines/caches.py")]
NAMES = re.compile(r"(?i)\b_?(sse|avx|vnni|amx|neon|sve|znver|zen\d|epyc|ryzen|intel|amd|arm|xeon|neoverse|cortex)"
                   r"|(lake|haswell|broadwell|rapids)\b")


def words(source: str) -> list[tuple[int, str]]:
    """(line, word) of names, imports and texts of a module, its docstrings left out: these may say what was measured
    where."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
        found += [(line, str(x)) for name in ("id", "attr", "arg", "name", "module", "value")
                  if isinstance(x := getattr(node, name, None), str)]
    return found


def names_in(source: str) -> list[tuple[int, str]]:
    return [(line, word) for line, text in words(source) for word in re.split(r"[_.\s]", text) if NAMES.search(word)]


@pytest.mark.parametrize("path", PLANNERS, ids=lambda p: p.stem)
def test_planners_name_no_processor_and_no_instruction_set(path: Path) -> None:
    """What they ask for is a fact of the machine."""
    assert names_in(path.read_text()) == []


@pytest.mark.parametrize("source", [
    'x = "avx2" in target.features', "AMX_ROWS = 3", 'cpu == "znver4"', "import minigrad.microkernels.amx",
    'cpu.startswith("Xeon")', "def on_skylake(): pass", "from a.vnni import b", "f(avx512f=1)",
])
def test_a_name_is_found(source: str) -> None:
    assert names_in(source)
    assert names_in(f'"""On a Zen 4, with AVX-512."""\ny = "charm"\n{source}')[0][0] == 3


def changed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fact of [speed] is another one from now on, for targets that were not asked about yet."""
    known = module.facts

    def all_changed(name: str) -> dict[str, dict[str, Any]]:
        found = known(name)

        def other(x: Any) -> Any:
            if isinstance(x, dict):
                return {f: other(y) for f, y in x.items()}
            return not x if isinstance(x, bool) else type(x)(x * factor)

        return found | {"speed": other(found["speed"])}

    monkeypatch.setattr(module, "facts", all_changed)


def samples() -> list[Pair]:
    """Of each kind of plan on each target the first and the last pair."""
    found: dict[tuple[str, str], list[Pair]] = {}
    for family in families():
        kept = dict(blocks(GOLDEN / "plans" / f"{family}.txt"))
        for pair in pairs(family):
            found.setdefault((kept[str(pair)].split("\n")[0].split(" outer")[0][:30], pair.target), []).append(pair)
    return [pair for some in found.values() for pair in dict.fromkeys((some[0], some[-1]))]


def grouping(staged: Staged, target: Target) -> list[object]:
    """What of stages decides how sums are grouped: their nests, and of plans what does more than share out work."""
    found: list[object] = []
    for stage in staged.stages:
        parts, plans = [staged.kernel.with_nests(stage.nests)], [stage.plan]
        if isinstance(stage.plan, BlockPlan):
            parts, plans = list(block_form(parts[0], target).alone()), list(stage.plan.plans)
        found += [(plan.pattern, part.nests, sums(plan, part.nests)) for part, plan in zip(parts, plans, strict=True)]
    return found


def sums(plan: AnyPlan, nests: tuple[Nest, ...]) -> object:
    if not isinstance(plan, Plan):
        return plan
    domain = {v.name for nest in nests for v in nest.domain}
    parts = [x for s in plan.steps if isinstance(s, Parts) for x in s.loops]
    inner = {s.inner: s for s in plan.steps if isinstance(s, Split) and s.loop not in domain}
    own = [(x, inner[x].size) for x in (*parts, *plan.bound("vector")) if x in inner]
    called = any(isinstance(s, Call) and s.kernel.startswith("tile_") for s in plan.steps)
    return (own, inner) if called else own  # such a sum may be rounded once for some of its steps


def test_speed_does_not_decide_how_sums_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in how many nests, nor with how many sums each: results stay when a machine is measured again."""
    chosen = samples()
    before = {pair: stages_of(parse_kernel(pair.kernel), TARGETS[pair.target]) for pair in chosen}
    assert len(chosen) > 150
    differ = 0
    for factor in 0.5, 3:
        with monkeypatch.context() as patch:
            changed(factor, patch)
            for pair in chosen:
                target = replace(TARGETS[pair.target], name=f"{pair.target} at {factor}")
                after = stages_of(parse_kernel(pair.kernel), target)
                assert grouping(after, target) == grouping(before[pair], target), f"{pair} at {factor}"
                differ += [s.plan for s in after.stages] != [s.plan for s in before[pair].stages]
    assert differ > 5  # they do decide something
