"""A search keeps plans that are faster by its clock and give the same bits, whatever the clock, the device, the disk
and the user do meanwhile."""
from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from conftest import devices
from support.paths import ROOT, TESTS

from minigrad import Tensor, config, jit, plans, show
from minigrad.codegen.machines import machine as machines
from minigrad.codegen.plan.given import parse_given
from minigrad.engine import compiled, tuned
from minigrad.engine.observe import observing
from minigrad.engine.scene import Clock, Scene, Watch, Work
from minigrad.engine.search import Outcome, Search, kernels_of
from minigrad.engine.stats import stats
from minigrad.engine.trial import Trial, operand
from minigrad.engine.tuned import Row, file_of, keep_rows, read_rows
from minigrad.errors import DeviceError, MinigradError, present
from minigrad.runtime.device import Device, Launch
from minigrad.runtime.registry import get_device

RANDOM = np.random.default_rng(0)
A, B = RANDOM.standard_normal((40, 96), np.float32), RANDOM.standard_normal((96, 72), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Each test has a cache folder and rows of its own."""
    def forget() -> None:
        get_device("CPU").tuned = None
        compiled.forget_plans()
    with config(device="CPU", cache_dir=tmp_path, disk_cache=True, tuned=True):
        forget()
        yield tmp_path
        forget()


FASTEST = 0.0005
"""Seconds of the fastest plans by `Fake`: none is faster where the plan in force is one of them."""


class Fake(Clock):
    """A clock that moves when it is asked for the time of a launch, which is a function of the program's text; `event`
    is asked before each."""

    def __init__(self, noise: float = 0.0, event: Callable[[int, Fake], None] = lambda *_: None):
        super().__init__()
        self.time, self.noise, self.event = 0.0, noise, event
        self.runs, self.random = count(), np.random.default_rng(0)

    def now(self) -> float:
        return self.time

    def seconds(self, launch: Launch) -> float:
        """One of 0.5, 1.0 and 1.5 milliseconds, for good."""
        return (1 + crc32(launch.executable.program.source.encode()) % 3) / 2000

    def wall(self, device: Device, launch: Launch) -> float:
        self.event(next(self.runs), self)
        device.launch([launch])
        found = self.seconds(launch) * (1 + self.noise * self.random.uniform(-1, 1))
        self.time += found
        return found

    def work(self, device: Device, before: list[Launch], launch: Launch) -> float:
        return self.wall(device, launch)


def step() -> Tensor:
    """Two products, one with an end, and rows."""
    a, b = Tensor(A).realize(), Tensor(B).realize()
    return ((a @ b).relu() @ b.transpose(0, 1)).softmax().realize()


def watched(run: Callable[[], Any] = step) -> list[Work]:
    with observing(Watch()) as watch:
        keep = run()
    del keep
    return watch.works


def kept(folder: Path) -> list[Row]:
    """Rows of faster plans."""
    return [row for row in read_rows(folder / "tuned" / "CPU.plans") if row.gains]


def searched(clock: Clock | None = None, seconds: float = 0.3, **options: Any) -> Outcome:
    return Search(seconds, clock=clock or Fake(), **options).of(watched())


def test_faster_plans_are_kept_and_used_by_the_next_process(folder: Path) -> None:
    expected, before = step().numpy(), show(Tensor(A).realize() @ Tensor(B).realize(), "plan")
    found = searched()
    assert found.rows and not found.ended and all(k.new.seconds < k.old.seconds for k in found.kernels if k.best)
    assert found.after.seconds < found.before.seconds and "faster plan" in str(found)
    rows = kept(folder)
    assert [str(row) for row in rows] == [str(row) for row in found.rows]
    for fresh in (False, True):  # in this process, and as in another one
        if fresh:
            get_device("CPU").tuned = None
            tuned._files.clear()
            compiled.forget_plans()
        works = watched()
        hows = {str(item.how).partition("\n")[2] for work in works for item in work.plan.items}
        assert all(row.facts["plan"].partition("\n")[2] in hows for row in rows)
        np.testing.assert_array_equal(step().numpy(), expected)
    with config(tuned=False):
        assert show(Tensor(A).realize() @ Tensor(B).realize(), "plan") == before


def test_plans_on_disk_are_those_of_the_rows() -> None:
    """A second process schedules nothing, and one that uses no rows has its plans as well."""
    def scheduled(**settings: Any) -> int:
        compiled.forget_plans()
        before = stats.schedules
        with config(**settings):
            results.append(step().numpy())
        return stats.schedules - before
    results: list[np.ndarray] = []
    with config(verify=False):
        count, again = scheduled(), scheduled()
        assert count > 0 == again
        compiled.forget_plans()
        assert searched().rows  # the plans from disk have no kernels: they are made anew
        assert (scheduled(), scheduled(), scheduled(tuned=False)) == (count, 0, 0)
    assert all([(r == results[0]).all() for r in results])


def test_rows_are_given_back_by_plans() -> None:
    expected = step().numpy()
    rows = searched().rows
    with config(tuned=False), plans({row.name: row.facts["plan"] for row in rows}):
        works = watched()
        np.testing.assert_array_equal(step().numpy(), expected)
    hows = {str(item.how) for work in works for item in work.plan.items}
    assert {str(parse_given(row.facts["plan"])) for row in rows} <= hows


def test_kernels_whose_plan_a_user_gave_are_not_searched() -> None:
    """What is faster than a slow plan of theirs may be slower than the policy's, and round differently."""
    name = next(kernel.name for kernel in searched().kernels if kernel.best is not None)
    get_device("CPU").tuned = None
    compiled.forget_plans()
    with plans({name: "plan"}):
        found = searched()
    assert found.kernels and name not in {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_keeps_no_slower_plan(noise: float) -> None:
    clock = Fake(noise)
    found = searched(clock, seconds=1.0)
    assert found.rows or noise > 0.1
    for kernel in found.kernels:
        if kernel.best is not None and kernel.launch is not None:
            (scene, at), *_ = kernel.places
            after, before = (clock.seconds(launch) for launch in (
                kernel.launch(scene.launches[at]), scene.launches[at]))
            assert after < before or after == before == FASTEST


def at_run(number: int, act: Callable[[Fake], None]) -> Callable[[int, Fake], None]:
    return lambda run, clock: act(clock) if run == number else None


def raises(error: BaseException) -> Callable[[Fake], None]:
    def act(_: Fake) -> None:
        raise error
    return act


def runs_of_a_search() -> int:
    """The runs of a search of whose kernels the first two have faster plans, up to the confirmation; it keeps none."""
    clock = Fake()
    starts: list[int] = []

    class Noted(Search):
        def _confirm(self, scenes: Any) -> None:
            starts.append(next(clock.runs))
    Noted(0.3, clock=clock).of(watched())
    return starts[0]


def test_a_stall_ends_the_search_in_time() -> None:
    def stall(clock: Fake) -> None:
        clock.time += 1000
    clock = Fake(event=at_run(runs_of_a_search() - 5, stall))
    found = searched(clock)
    assert not found.ended and clock.time < 1001


def test_what_was_verified_before_a_device_is_lost_is_kept(folder: Path) -> None:
    expected = step().numpy()
    last = runs_of_a_search()
    found = searched(Fake(event=at_run(last - 2, raises(DeviceError("[CPU] the driver failed")))))
    assert found.ended == "[CPU] the driver failed" and found.rows and "ended early" in str(found)
    assert len(kept(folder)) == len(found.rows)
    np.testing.assert_array_equal(step().numpy(), expected)
    assert not searched(Fake(event=at_run(0, raises(DeviceError("lost"))))).rows


def test_ctrl_c_keeps_what_was_verified(folder: Path) -> None:
    last = runs_of_a_search()
    with pytest.raises(KeyboardInterrupt):
        searched(Fake(event=at_run(last - 2, raises(KeyboardInterrupt()))))
    assert read_rows(folder / "tuned" / "CPU.plans")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("lost")])
def test_what_an_interrupted_search_found_is_confirmed(error: BaseException, folder: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are not kept that gain in their trials alone, or whose bits differ on the step's own operands alone."""
    last = runs_of_a_search()

    def equals(clock: Fake) -> None:
        monkeypatch.setattr(clock, "seconds", lambda _: 1e-3)
        raise error

    def ends(event: Callable[[int, Fake], None]) -> Outcome:
        search = Search(0.3, clock=Fake(event=event))
        with suppress(KeyboardInterrupt):
            search.of(watched())
        assert search.outcome.ended and any([kernel.tried for kernel in search.outcome.kernels])
        return search.outcome
    assert not ends(at_run(last - 2, equals)).rows
    with monkeypatch.context() as patched:
        patched.setattr("minigrad.engine.search.alike", lambda *_: False)
        assert not ends(at_run(last - 2, raises(error))).rows
    assert not [*(folder / "tuned").iterdir()]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("lost")])
def test_nothing_is_kept_where_nothing_can_be_confirmed(error: BaseException, folder: Path) -> None:
    """Of a device that stays lost, what was found can be replayed."""
    last = runs_of_a_search()

    def act(run: int, clock: Fake) -> None:
        if run >= last - 2:
            raise error
    search = Search(0.3, clock=Fake(event=act))
    with suppress(KeyboardInterrupt):
        search.of(watched())
    assert search.outcome.ended and not search.outcome.rows and get_device("CPU").tuned is None
    left = [*(folder / "tuned").iterdir()]
    assert [path.suffix for path in left] == ([] if isinstance(error, KeyboardInterrupt) else [".tried"])
    assert all([read_rows(path) for path in left])


def test_what_was_found_before_a_driver_crashes_can_be_replayed(folder: Path) -> None:
    left: list[Row] = []

    def note(_: Fake) -> None:
        left.extend(row for path in (folder / "tuned").glob("*.tried") for row in read_rows(path))
    found = searched(Fake(event=at_run(runs_of_a_search() - 2, note)))
    assert left and {row.name for row in left} <= {kernel.name for kernel in found.kernels}
    assert not [*(folder / "tuned").glob("*.tried")]


def test_a_full_disk_costs_the_file_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched()
    path = folder / "tuned" / "CPU.plans"
    before = path.read_text()
    get_device("CPU").tuned = None
    compiled.forget_plans()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "write_text", full)
    with config(tuned=False):
        works = watched()
    with pytest.warns(RuntimeWarning, match=r"\[tune\] expected to write .*CPU.plans, got: .*No space left"):
        found = Search(0.3, clock=Fake()).of(works)
    assert found.rows and get_device("CPU").tuned is not None
    assert path.read_text() == before and [p.name for p in path.parent.iterdir()] == ["CPU.plans"]


def test_plans_that_round_differently_do_not_win() -> None:
    """Not even where they are the fastest, unless any rounding will do."""
    x = Tensor(RANDOM.standard_normal((64, 200)).astype(np.float32)).realize()
    works = watched(lambda: x.sum(1).realize())
    scene = Scene(works[0])

    class Fastest(Fake):
        def seconds(self, launch: Launch) -> float:
            return 1e-3 if launch.executable is scene.launches[0].executable else 1e-4
    other = parse_given("plan\n  split r0 -> k c by 2, rest\n  bind parallel i0\n  bind unroll c\n  parts c")
    for rounding in (False, True):
        found, = kernels_of([scene])
        trial = Trial(found, Fastest(), rounding)
        trial.round([other])
        assert found.tried == 1 and (found.best is not None) == rounding
        trial.free()
    scene.free()


@pytest.mark.parametrize("change, word", [
    (lambda text: text.replace("  plan\n", "  plam\n"), "expected a field, got"),
    (lambda text: text.replace("  kernel\n    kernel", "  kernel\n    kernels"), "the digest of its kernel"),
    (lambda text: text.replace("\n  machine", "\n machine"), "expected a field"),
    (lambda text: text.replace("  plan\n    plan", "  plan\n    plans"), "expected plans that fit the kernel"),
    (lambda text: text[:text.rindex("  plan\n")] + "  plan\n    plan\n      bind vector nothing\n",
     "expected plans that fit the kernel")])
def test_a_row_that_is_none_is_named_and_left_out(folder: Path, change: Callable[[str], str], word: str) -> None:
    expected = step().numpy()
    row = searched().rows[0]
    path = folder / "tuned" / "CPU.plans"
    path.write_text(change(f"{row}\n"))
    tuned._files.clear()
    compiled.forget_plans()
    get_device("CPU").tuned = None
    with pytest.warns(RuntimeWarning, match=f"{row.name}.*{word}"):
        found = step().numpy()
    np.testing.assert_array_equal(found, expected)


def test_rows_of_other_machines_drivers_and_plans_are_not_used(folder: Path) -> None:
    row = searched().rows[0]
    device = get_device("CPU")
    for changed in ({"machine": "another"}, {"driver": "llvm 1"}):
        tuned.put_in_force(device, [Row(row.name, row.facts | changed)])
        assert device.tuned is None
    tuned.put_in_force(device, [Row(row.name, row.facts | {"instead": "plan"})])
    compiled.forget_plans()
    with pytest.warns(RuntimeWarning, match="compared with other plans than kernels have now: .* searches again"):
        hows = [str(item.how).partition("\n")[2] for work in watched() for item in work.plan.items]
    assert device.tuned is not None and row.facts["plan"].partition("\n")[2] not in hows


def test_rows_that_are_shared_hold_without_a_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, row = step().numpy(), searched().rows[0]
    (folder / "tuned" / "CPU.plans").unlink()
    shared = folder / f"{machines.file_of(get_device('CPU').target.cpu, get_device('CPU').target)}.plans"
    shared.write_text(str(Row(row.name, {k: v for k, v in row.facts.items() if k not in ("driver", "instead")})))
    monkeypatch.setattr(machines, "FOLDER", folder)
    tuned._files.clear()
    compiled.forget_plans()
    hows = [str(item.how).partition("\n")[2] for work in watched() for item in work.plan.items]
    assert row.facts["plan"].partition("\n")[2] in hows
    np.testing.assert_array_equal(step().numpy(), expected)


def test_processes_that_write_at_once_lose_no_row(folder: Path) -> None:
    row, path = searched().rows[0], folder / "tuned" / "other.plans"

    def write(k: int) -> None:
        keep_rows(path, [Row(row.name, row.facts | {"machine": str(k)})])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    assert sorted(r.facts["machine"] for r in read_rows(path)) == sorted(map(str, range(24)))
    (path.parent / "other.plans.lock").touch()  # of a process that died
    os.utime(path.parent / "other.plans.lock", (0, 0))
    write(99)
    assert len(read_rows(path)) == 25


IN_A_PROCESS = """
import json, sys, time
from test_search import Fake, searched, step, watched
from minigrad import config
folder, rows = config.current().cache_dir, []
if len(sys.argv) > 1:
    (folder / f"{sys.argv[1]}.ready").touch()
    while len([*folder.glob("*.ready")]) < 2:
        time.sleep(0.001)
    rows = searched(Fake(0.01 * int(sys.argv[1])), 0.1).rows
hows = [str(item.how).partition("\\n")[2] for work in watched() for item in work.plan.items]
print(json.dumps([[str(row) for row in rows], hows, step().numpy().tolist()]))
"""


def test_processes_that_search_one_step_at_once_leave_whole_rows(folder: Path) -> None:
    """A third one, which searches nothing, has the plans of these rows."""
    def start(*number: str) -> subprocess.Popen[str]:
        environment = {"MINIGRAD_CACHE": str(folder), "MINIGRAD_DISK_CACHE": "1", "MINIGRAD_TUNED": "1",
                       "MINIGRAD_DEVICE": "CPU", "MINIGRAD_VERIFY": "0",
                       "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS, TESTS / "engine")))}
        return subprocess.Popen([sys.executable, "-W", "error::RuntimeWarning", "-c", IN_A_PROCESS, *number], text=True,
                                env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(process: subprocess.Popen[str]) -> list[Any]:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and not errors, errors
        return json.loads(out)
    expected = step().numpy().tolist()
    (first, _, one), (second, _, two) = map(end, [start("1"), start("2")])
    rows = kept(folder)
    assert first and second and {str(row) for row in rows} <= {*first, *second}
    assert {row.name for row in rows} == {text.split()[1] for text in (*first, *second)}
    assert [path.name for path in (folder / "tuned").iterdir()] == ["CPU.plans"]
    _, hows, three = end(start())
    assert {row.facts["plan"].partition("\n")[2] for row in rows} <= {*hows}
    assert one == two == three == expected


def test_without_a_file_nothing_changes() -> None:
    device = get_device("CPU")
    target = device.target
    step()
    assert device.tuned is None and device.target is target
    with config(disk_cache=False):
        assert file_of(device) is None
        step()


def test_a_replay_runs_no_other_plans() -> None:
    rows = searched().rows
    get_device("CPU").tuned = None
    compiled.forget_plans()
    found = searched(replay=rows)
    assert sum(k.tried for k in found.kernels) == len(rows)
    assert {row.name for row in found.rows} == {row.name for row in rows}


def test_jit_searches_once_and_captures_anew(capfd: pytest.CaptureFixture[str]) -> None:
    w = Tensor(B).realize()
    plain, tuned_step = (jit(lambda x: (x @ w).relu().sum(1), search=seconds) for seconds in (0.0, 0.2))
    for k in range(4):
        x = Tensor(A + k).realize()
        np.testing.assert_array_equal(tuned_step(x).numpy(), plain(x).numpy())
    assert tuned_step.captures == 2 and tuned_step.searched is not None and plain.searched is None
    assert "[search] " in capfd.readouterr().err
    wrong: Any
    for wrong in (-1, float("inf"), "2 minutes", True):
        with pytest.raises(MinigradError, match=r"\[jit\] expected a time in seconds to search, got"):
            jit(lambda x: x, search=wrong)


def test_a_search_in_vain_replaces_no_row_that_gains(folder: Path) -> None:
    """Of two that ran at once; a row that was compared with another plan is out of date, and is replaced."""
    row, *_ = searched(seconds=1.0).rows
    path = folder / "tuned" / "CPU.plans"
    keep_rows(path, [Row(row.name, {**row.facts, "plan": row.facts["instead"]})])
    assert str(row) in [str(known) for known in kept(folder)]
    keep_rows(path, [Row(row.name, {**row.facts, "instead": "plan\n  order i0", "plan": "plan\n  order i0"})])
    assert row.name not in [known.name for known in kept(folder)]


def test_what_a_search_knows_is_not_searched_again(folder: Path) -> None:
    """Neither kernels with rows nor those for which it found nothing faster; on request all of them."""
    first = searched(seconds=1.0)
    assert all(found.tried for found in first.kernels) and 0 < len(first.rows) < len(first.kernels)
    text = (folder / "tuned" / "CPU.plans").read_text()
    get_device("CPU").tuned = None
    tuned._files.clear()
    compiled.forget_plans()
    second = searched(seconds=1.0, again=False)
    assert not second.kernels and not second.rows and (folder / "tuned" / "CPU.plans").read_text() == text
    third = searched(seconds=0.3)
    assert {found.name for found in third.kernels} == {found.name for found in first.kernels}
    assert {row.name for row in first.rows} <= {row.name for row in kept(folder)}


def test_a_step_in_training_is_not_changed_by_its_search() -> None:
    def losses(**options: Any) -> list[float]:
        w = Tensor(B * 0.1, requires_grad=True).realize()
        x = Tensor(A).realize()

        @jit(**options)
        def train() -> Tensor:
            w.grad = None
            loss = (x @ w).square().mean()
            loss.backward()
            w.assign(w.detach() - present(w.grad, "a gradient") * 0.1)
            return loss
        return [train().item() for _ in range(5)]
    assert losses() == losses(search=0.2)


@pytest.mark.parametrize("device", [name for name in devices() if name not in ("CPU", "NUMPY")])
def test_drivers_are_searched_likewise(device: str, folder: Path) -> None:
    with config(device=device):
        expected = step().numpy()
        found = searched(seconds=0.02)
        path = present(file_of(get_device(device)), "a file")
        rows = [row for row in read_rows(path) if row.gains]
        assert sum(k.tried for k in found.kernels) and len(found.rows) == len(rows)
        np.testing.assert_array_equal(step().numpy(), expected)
        get_device(device).tuned = None
        compiled.forget_plans()


def test_odd_operands_are_odd() -> None:
    for name in ("float32", "float16", "bfloat16", "float64"):
        dtype = Tensor.zeros(1, dtype=name).dtype
        plain, odd = (operand(dtype, 4096 * dtype.itemsize, o, 3) for o in (False, True))
        assert plain.nbytes == 4096 * dtype.itemsize and (plain != odd).any()
