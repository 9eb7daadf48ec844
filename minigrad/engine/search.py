"""Search by measuring: for each kernel of a step, other plans that give the same bits, timed where the kernel stands in
the step.

    draft      the policy's candidates and what differs in one thing from the best plans so far (`neighbours`), cheapest
               by the model first
    check      bit for bit against the plan in force, on random operands and on odd ones
    measure    in turns with the plan in force, each run after the launches before it in the step, which leave the
               caches as they do there
    confirm    in whole steps; the bits again on the step's own operands; what has gained is kept (`tuned.py`)

All runs on copies of the step's memory. The largest part of the step comes first, until the time is used up.
"""
from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.passes import drafted
from minigrad.codegen.plan.given import given_plans, parse_given
from minigrad.codegen.plan.several import AnyPlan
from minigrad.engine.compiled import forget_plans
from minigrad.engine.scene import Clock, Scene, Timing, Work, read
from minigrad.engine.trial import MOST_RUNS, Found, Trial, alike, predicted
from minigrad.engine.tuned import Row, file_of, keep_rows, known_best, machine_of, put_in_force, steps_of
from minigrad.errors import MinigradError, present, quantity
from minigrad.runtime.device import Device

SHARE, CONFIRM, ROUNDS, WORTH = 2.0, 0.15, 5, 0.01
"""Of the time that is left: for a kernel, times its share of the step; for the confirmation, which takes so many rounds
at least. The gain that makes a row worth keeping."""


@dataclass(slots=True)
class Outcome:
    """The result of a search: the kernels of the step, the rows that were kept, seconds of all launches of a step
    before and after, and why it ended before its time, or ''."""

    kernels: list[Found] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    before: Timing = field(default_factory=Timing)
    after: Timing = field(default_factory=Timing)
    ended: str = ""

    def __str__(self) -> str:
        gain = f"launches of a step {1e3 * self.before.seconds:.4g} ms -> {1e3 * self.after.seconds:.4g} ms, " \
            if self.rows and self.before.runs else ""
        tried = sum(found.tried for found in self.kernels)
        return f"{gain}{quantity(len(self.rows), 'faster plan')} for {quantity(len(self.kernels), 'kernel')}, " \
            f"{quantity(tried, 'plan')} measured" + (f"; it ended early: {self.ended}" if self.ended else "")


class Search:
    """One search: `of` some works, for `seconds`. `rounding` lets plans divide sums in another way; `again` searches
    kernels that were searched before as well."""

    def __init__(self, seconds: float, rounding: bool = False, replay: Sequence[Row] | None = None,
                 clock: Clock | None = None, say: Callable[[str], None] = lambda _: None, again: bool = True):
        self.clock, self.rounding, self.say, self.again = clock or Clock(), rounding, say, again
        self.replay = None if replay is None else {row.name: row for row in replay}
        self.end = self.clock.now() + seconds
        self.until = self.end - CONFIRM * seconds
        self.outcome = Outcome()
        self.gained: dict[str, list[AnyPlan]] = {}
        """By plan in force, those that other kernels gained by."""
        self.noted: set[Path] = set()

    def of(self, works: Sequence[Work]) -> Outcome:
        """Searches, keeps what it finds and has it used from the next plan on. What comes between, Ctrl-C or an error
        of a device, ends the search: what was found is confirmed then. A second one ends that, and nothing is kept."""
        with self.clock.alone:
            self._of(works)
        self.say(str(self.outcome))
        return self.outcome

    def _of(self, works: Sequence[Work]) -> None:
        scenes: list[Scene] = []
        try:
            for plan, times in Counter([id(work.plan) for work in works]).items():
                scenes.append(Scene(next(work for work in works if id(work.plan) == plan), times))
            self.outcome.kernels = kernels_of(scenes)
            if not self.again:
                known = {id(found.device): known_best(found.device) for found in self.outcome.kernels}
                self.outcome.kernels = [found for found in self.outcome.kernels if (
                    found.name, steps_of(str(found.before))) not in known[id(found.device)]]
            if not self.outcome.kernels:
                return
            for _ in range(2):  # the first one wakes clocks and caches
                self._step(scenes, {})
            self._shares(scenes)
            for found in self.outcome.kernels:
                if found.seconds and self.clock.now() < self.until:
                    self._kernel(found)
            self._confirm(scenes)
        except (MinigradError, KeyboardInterrupt) as error:
            self.outcome.ended = str(error) or "interrupted"
            self.end = self.clock.now()
            self.say(f"{self.outcome.ended}: what was found until now is confirmed")
            try:
                self._confirm(scenes)
            except MinigradError:
                self.noted.clear()  # nothing can be confirmed: what was found stays there, for `--replay`
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            for scene in scenes:
                scene.free()
            for path in self.noted:
                path.unlink(missing_ok=True)

    def _step(self, scenes: Sequence[Scene], chosen: dict[tuple[int, int], Found], all_workers: bool = False
              ) -> dict[tuple[int, int], float]:
        """Seconds of each launch of the step, by scene and place, some of them by the plans that were found."""
        found = {}
        for k, scene in enumerate(scenes):
            for at, launch in enumerate(scene.launches):
                other = chosen.get((k, at))
                launch = launch if other is None else present(other.launch, "[search] expected a program")(launch)
                found[k, at] = self.clock.wall(scene.device, launch) if all_workers else \
                    self.clock.work(scene.device, [], launch)
        return found

    def _shares(self, scenes: Sequence[Scene]) -> None:
        times = self._step(scenes, {})
        for (k, at), seconds in times.items():
            scenes[k].seconds[at] = seconds
        for found in self.outcome.kernels:
            found.seconds = sum(scene.seconds[at] * scene.times for scene, at in found.places)
            found.places.sort(key=lambda place: -place[0].seconds[place[1]])
        self.outcome.kernels.sort(key=lambda found: -found.seconds)

    # ---- one kernel ----

    def _kernel(self, found: Found) -> None:
        """Finds the best plan of a kernel, in its part of the time that is left."""
        rest = sum(other.seconds for other in self.outcome.kernels if not other.tried)
        now = self.clock.now()
        until = now + SHARE * found.seconds / max(rest, 1e-9) * (self.until - now)
        trial = Trial(found, self.clock, self.rounding)
        try:
            if not trial.ready:
                return
            if self.replay is not None:
                row = self.replay.get(found.name)
                if row is not None:
                    with suppress(MinigradError):
                        trial.round([parse_given(row.facts["plan"])])
            else:
                trial.search(self.gained.get(str(found.before), []), min(until, self.until))
        finally:
            trial.free()
        if found.best is not None:
            self.gained.setdefault(str(found.before), []).insert(0, found.best)
            self._note(found)
            self.say(f"{found.name}  {1e3 * found.old.seconds:.3f} -> {1e3 * found.new.seconds:.3f} ms, "
                     f"{quantity(found.tried, 'plan')}")

    def _note(self, found: Found) -> None:
        """Writes a row beside those that are kept, for `--replay`, in case that a driver takes the process with it."""
        path = file_of(found.device)
        if path is not None:
            path = path.with_name(f"{path.stem}.{os.getpid()}.tried")
            self.noted.add(path)
            with suppress(OSError):
                keep_rows(path, [_row(found, self.rounding)])

    # ---- all of them ----

    def _confirm(self, scenes: Sequence[Scene]) -> None:
        """Keeps the plans that gain in whole steps, by work and not less by all workers, and whose bits are the same
        there."""
        winners = {(scenes.index(scene), at): found for found in self.outcome.kernels if found.best is not None
                   for scene, at in found.places}
        for found in self._differing(scenes, winners):
            found.best = None
        winners = {place: found for place, found in winners.items() if found.best is not None}
        times: dict[tuple[bool, bool], list[dict[tuple[int, int], float]]] = {}
        for all_workers in (False, True) if winners else ():
            self._step(scenes, {}, all_workers)  # workers begin or end
            until = self.end - (self.end - self.clock.now()) / 2 * (not all_workers)
            for k in range(MOST_RUNS):
                if k >= ROUNDS and self.clock.now() >= until:
                    break
                for new in (False, True) if k % 2 else (True, False):
                    step = self._step(scenes, winners if new else {}, all_workers)
                    times.setdefault((all_workers, new), []).append(step)
        for found in {id(found): found for found in winners.values()}.values():
            if not self._gains(found, winners, times):
                found.best = None
        better = {place for place, found in winners.items() if found.best is not None}
        if times:
            pairs = [*zip(times[True, False], times[True, True], strict=True)]
            self.outcome.before = Timing([sum(old.values()) for old, _ in pairs])
            self.outcome.after = Timing([sum((new if place in better else old)[place] for place in old)
                                         for old, new in pairs])
        whole = self.replay is None and not self.outcome.ended
        self._keep([found for found in self.outcome.kernels if found.best is not None or (whole and found.tried)])

    def _gains(self, found: Found, winners: dict[tuple[int, int], Found],
               times: dict[tuple[bool, bool], list[dict[tuple[int, int], float]]]) -> bool:
        places = [place for place, other in winners.items() if other is found]
        found.old, found.new, old, new = (
            Timing([sum(step[place] for place in places) for step in times[key]])
            for key in ((False, False), (False, True), (True, False), (True, True)))
        def faster(a: Timing, b: Timing) -> bool:
            return a.seconds * (1 + a.error) < b.seconds * (1 - b.error)
        return found.new.seconds < found.old.seconds * (1 - WORTH) and faster(found.new, found.old) and \
            not faster(old, new)

    def _differing(self, scenes: Sequence[Scene], winners: dict[tuple[int, int], Found]) -> list[Found]:
        """The kernels that the step's own operands give other bits."""
        wrong: list[Found] = []
        for k, scene in enumerate(scenes):
            for at, launch in enumerate(scene.launches):
                found, device = winners.get((k, at)), scene.device
                if found is None:
                    device.launch([launch])
                    continue
                written = [scene.buffers[s] for s in sorted(scene.item(at).writes)]
                types = scene.types(at)
                before = [read(b) for b in written]
                results = []
                for each in (present(found.launch, "[search] expected a program")(launch), launch):
                    for buffer, data in zip(written, before, strict=True):
                        device.copy_in(buffer, data)
                    device.launch([each])
                    results.append([read(b) for b in written])
                if not all([alike(a, b, types[s], self.rounding) for s, a, b in zip(
                        sorted(scene.item(at).writes), *results, strict=True)]):
                    wrong.append(found)
        return wrong

    def _keep(self, tried: Sequence[Found]) -> None:
        """Writes rows, and puts those in force that gain. A row that was in force before stays where none is better."""
        by_device: dict[int, tuple[Device, list[Row]]] = {}
        for found in tried:
            row = _row(found, self.rounding)
            if found.best is not None or not row.gains:
                by_device.setdefault(id(found.device), (found.device, []))[1].append(row)
        for device, rows in by_device.values():
            use_rows(device, rows)
            self.outcome.rows += [row for row in rows if row.gains]


def use_rows(device: Device, rows: Sequence[Row]) -> None:
    """Keeps rows of a device on disk, where that can be, and puts them in force beside those that are."""
    path = file_of(device)
    if path is not None:
        try:
            keep_rows(path, rows)
        except OSError as error:
            warnings.warn(f"[tune] expected to write {path}, got: {error}; what was found holds for this process alone",
                          RuntimeWarning, stacklevel=2)
    known = device.tuned.rows if device.tuned else {}
    mine = [Row(name, {"kernel": kernel.rstrip("\n"), "instead": instead, "plan": plan})
            for name, (kernel, instead, plan) in known.items()]
    put_in_force(device, [*mine, *rows])
    forget_plans()


def _row(found: Found, rounding: bool) -> Row:
    """The row of a kernel that was searched, with the plan that it had where none was faster."""
    device, best = found.device, found.best or found.before
    units, parts, _ = drafted(found.kernel, device.target)
    facts = {"machine": machine_of(device), "driver": device.driver, "date": date.today().isoformat()}
    if found.best is not None:
        facts |= {"time": str(found.new), "before": str(found.old)}
        old, new = (predicted(units[found.stage][0], plan, device) for plan in (found.before, best))
        if old and new:
            facts["predicted"] = f"{new:.3g} cycles, before {old:.3g}"
    if rounding:
        facts["rounding"] = "any"
    return Row(found.name, {**facts, "kernel": print_kernel(parts[found.stage]).rstrip("\n"),
                            "instead": str(units[found.stage][1]), "plan": str(best)})


def kernels_of(scenes: Sequence[Scene]) -> list[Found]:
    """The kernels of a step that plans can be given for, with their launches; not those of tables of launches, which
    are one program for many sizes, and of sizes that are known when it runs. Nor those whose plan a user gave: a row
    takes the place of the policy's."""
    found: dict[tuple[int, str], Found] = {}
    for scene in scenes:
        for at in range(len(scene.launches)):
            item = scene.item(at)
            kernel = item.kernel
            if kernel is None or kernel.block is not None or kernel.dims or len(item.rows) > 1:
                continue
            target = scene.device.target
            _, parts, names = drafted(kernel, target)
            if item.stage in dict(given_plans(parts, target.plans)):
                continue
            key = id(scene.device), names[item.stage]
            known = found.setdefault(key, Found(key[1], kernel, item.stage, item.how, []))
            if known.kernel == kernel:  # another one may begin elsewhere
                known.places.append((scene, at))
    return list(found.values())
