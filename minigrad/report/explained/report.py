"""All that is known of a step, put together: a summary, rows, warnings, boxes and memory, as one dictionary."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.passes import render
from minigrad.engine.show import text_of
from minigrad.errors import quantity
from minigrad.report.explained.layout import Box, boxes_of
from minigrad.report.explained.machine_code import machine_code, stack_moves
from minigrad.report.explained.memory_map import MemoryMap, memory_map
from minigrad.report.explained.rows import Row, rows_of
from minigrad.report.explained.step import Step
from minigrad.report.explained.warnings import NamedWarning, warnings_of
from minigrad.report.profile import limits_of
from minigrad.report.words import size_text, time_text
from minigrad.runtime.cpu import CPU

MOST_ROWS, MOST_DETAILED = 300, 60
"""The rows that are listed one by one, and those of them with their texts: the longest."""

MOST_TEXT, MOST_TEXTS = 30_000, 4_000_000
"""The most characters of one text, and of all texts together."""

SLICES = 6
"""The kernels that are parts of the bar by themselves."""

PAGE = "docs/warnings.md"


@dataclass(frozen=True)
class Report:
    """A step, explained. `seconds` is the time of the step: from begin to end where that was measured, else what its
    launches take."""

    step: Step
    rows: tuple[Row, ...]
    texts: tuple[dict[str, str], ...]
    boxes: tuple[Box, ...]
    memory: MemoryMap | None
    left_out: tuple[str, ...]

    @property
    def kernels(self) -> float:
        """Seconds in kernels."""
        return sum([row.seconds for row in self.rows])

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return max(self.step.wall or 0.0, self.kernels)

    @property
    def least(self) -> float | None:
        """The seconds that the machine's limits allow; None where those are not known."""
        known = [row.least for row in self.rows]
        return None if None in known else sum([min(row.least or 0.0, row.seconds) for row in self.rows])

    @cached_property
    def warnings(self) -> tuple[NamedWarning, ...]:
        """The warnings, those about most of the step first."""
        return tuple(warnings_of(self.step, self.rows, self.seconds))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that it runs on."""
        return tuple(dict.fromkeys(row.device for row in self.rows))

    def bar(self) -> Iterator[dict[str, Any]]:
        """The parts of the step's time, each with the least that it could be."""
        for k, row in enumerate(self.rows[:SLICES]):
            yield {"name": row.name, "line": row.line, "seconds": row.seconds, "least": row.least, "row": k}
        rest = self.rows[SLICES:]
        if rest:
            known = all(row.least is not None for row in rest)
            yield {"name": quantity(len(rest), "other kernel"), "line": "", "seconds": sum([r.seconds for r in rest]),
                   "least": sum([min(r.least or 0.0, r.seconds) for r in rest]) if known else None, "row": None}
        outside = self.seconds - self.kernels
        if outside > 0.001 * self.seconds:
            yield {"name": "outside kernels", "line": "", "seconds": outside, "least": 0.0, "row": None}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for programs: what `--json` prints. Times are in seconds."""
        step, limits = self.step, {d: limits_of(d) for d in self.devices}
        nodes = {id(t.plan): step.watch.nodes.get(id(t.plan), 0) for t in step.launches}
        return {
            "what": step.what, "how": step.how, "devices": list(self.devices), "captured": step.captured,
            "seconds": self.seconds, "wall": step.wall, "kernels": self.kernels, "least": self.least,
            "launches": len(step.launches), "programs": len(self.rows), "nodes": sum(nodes.values()),
            "flops": sum([r.flops for r in self.rows]), "bytes": sum([r.bytes for r in self.rows]),
            "limits": {d: {"gflops": x.gflops, "gb_s": x.gb_s} for d, x in limits.items() if x is not None},
            "bar": list(self.bar()),
            "warnings": [{"name": w.name, "text": w.text, "cure": w.cure, "page": f"{PAGE}#{w.name}",
                          "share": w.share, "rows": list(w.rows)} for w in self.warnings],
            "rows": [_as_dict(row) | {"texts": texts}
                     for row, texts in zip(self.rows[:MOST_ROWS], self.texts, strict=True)],
            "boxes": [asdict(b) | {"reads": sorted(b.reads)} for b in self.boxes],
            "memory": None if self.memory is None else asdict(self.memory), "left_out": list(self.left_out)}

    def __str__(self) -> str:
        whole = self.seconds or 1.0
        share = "" if self.least is None else f", {self.least / whole:.0%} of the machine's limit"
        lines = [f"{self.step.what}: {time_text(self.seconds)}{share}; {quantity(len(self.step.launches), 'launch')}"]
        for part in self.bar():
            at = f" at {part['line']}" if part["line"] else ""
            lines.append(f"{part['seconds'] / whole:6.1%}  {part['name']}{at}")
        return "\n".join([*lines, *[f"warning  {w.name}: {w.text}" for w in self.warnings]])


def report_of(step: Step) -> Report:
    """The report about a step."""
    rows = rows_of(step)
    texts, left_out = _texts(rows)
    if len(rows) > MOST_ROWS:
        left_out.append(f"{quantity(len(rows) - MOST_ROWS, 'row')} of the table, the shortest: "
                        f"{time_text(sum([r.seconds for r in rows[MOST_ROWS:]]))} together")
    memory, boxes = memory_map(step), boxes_of(step)
    if memory is not None and memory.left_out[0]:
        count, nbytes = memory.left_out
        left_out.append(f"{quantity(count, 'value')} of the picture of memory, of {size_text(nbytes)} together")
    return Report(step, tuple(rows), tuple(texts), tuple(boxes), memory, tuple(left_out))


def _texts(rows: list[Row]) -> tuple[list[dict[str, str]], list[str]]:
    """The forms of the longest rows, by name; and what was left out, in words. Fills in what machine code tells."""
    found: list[dict[str, str]] = []
    total, cut = 0, 0
    for row in rows[:MOST_ROWS]:
        texts = _forms(row) if len(found) < MOST_DETAILED and total < MOST_TEXTS else {}
        if isinstance(row.plan.device, CPU) and "machine code" in texts:
            row.facts.spills, row.facts.of = stack_moves(texts["machine code"])
        for form, text in texts.items():
            if len(text) > MOST_TEXT:
                cut += 1
                texts[form] = f"{text[:MOST_TEXT]}\n... and {len(text) - MOST_TEXT} more characters"
        total += sum(map(len, texts.values()))
        found.append(texts)
    without = len(rows) - sum([1 for texts in found if texts])
    left_out = [f"the texts of {quantity(without, 'row')}, the shortest"] * bool(without)
    return found, left_out + [f"the ends of {quantity(cut, 'long text')}"] * bool(cut)


def _forms(row: Row) -> dict[str, str]:
    made = row.stage
    if made is None:
        return {"plan": str(row.launch.how)} if row.launch.how is not None else {}
    stage, staged = made
    target = row.plan.device.target
    program = render(stage.function, target)
    code = machine_code(program, row.plan.device)
    return {"index notation": print_kernel(row.launch.kernel).rstrip() if row.launch.kernel is not None else "",
            **{form: text_of(stage, staged, form, target) for form in ("plan", "loops", "source")},
            **({"machine code": code} if code else {})}


def _as_dict(row: Row) -> dict[str, Any]:
    facts = asdict(row.facts)
    return {"name": row.name, "line": row.line, "device": row.device, "pattern": row.pattern, "count": len(row.at),
            "at": row.at[:100], "programs": len(row.launch.rows), "seconds": row.seconds, "flops": row.flops,
            "bytes": row.bytes, "least": row.least, "limit": row.limit, "predicted": row.predicted,
            "begins": list(row.begins), "ends": list(row.ends), "facts": facts}
