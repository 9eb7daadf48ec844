"""An ExecutionPlan as text, and back: what a second process needs in order to run it, and nothing of how it was made.

The text is JSON: slots and sizes, programs by the digest of their source (OpenCL's with the source, which its drivers
want), argument tables, memory plan. Sums over symbolic dims are texts over a table of variables. Loop IR, kernels and
LLVM IR are not in it.
"""
from __future__ import annotations

import json
from typing import Any

from minigrad.engine.packing import packable
from minigrad.engine.plan import ExecutionPlan, Item, Row
from minigrad.expr import Expr, Index, Var, parse, to_text, unbind, variables
from minigrad.program import Link, Program
from minigrad.runtime.device import Device
from minigrad.scheduler.memory import Arena
from minigrad.scheduler.schedule import Schedule, Slot


class NotWritable(Exception):
    """A plan that holds what has no text. No error: such a plan is made in each process."""


def write_plan(plan: ExecutionPlan) -> str:
    """The text of a plan whose programs are loaded. Raises NotWritable."""
    writer = _Writer()
    programs: dict[Program, int] = {}
    links: dict[str, Link] = {}
    items = []
    for item in plan.items:
        program = item.executable.program
        links.update({link.symbol: link for link in program.links})
        rows = [[r.values, r.scalars, [writer.index(d) for d in r.dims], writer.index(r.extent), r.work]
                for r in item.rows]
        items.append([item.name, programs.setdefault(program, len(programs)), rows, sorted(item.reads),
                      sorted(item.writes), item.flops, item.bytes, str(item.how), item.origins, item.group])
    text = {
        "items": items,
        "slots": [[writer.index(s.nbytes), s.leaf] for s in plan.schedule.slots],
        "sizes": [writer.index(s) for s in plan.sizes],
        "outputs": plan.schedule.outputs, "donated": sorted(plan.schedule.donated), "temporary": plan.temporary,
        "packs": plan.packs or packable(plan), "flops": plan.flops, "bytes": plan.bytes,
        "arenas": [[key, a.nbytes, list(a.offsets.items())] for key, a in plan.arenas.items()],
        "programs": [[p.name, p.language, "" if p.language == "llvm" else p.source, p.arguments, p.scratch, p.group,
                      [link.symbol for link in p.links], p.identity() if p.language == "llvm" else ""]
                     for p in programs],
        "links": [[k.symbol, k.name, k.source, k.language] for k in links.values()],
        "variables": [[v.name, v.lo, v.hi] for v in writer.variables],
    }
    return json.dumps(text, separators=(",", ":"))


def read_plan(text: str, device: Device) -> ExecutionPlan:
    """The plan of a text, with its programs loaded on `device`. Raises NotStored where no cache has one of them."""
    t = json.loads(text)
    names: dict[str, Index] = {name: Var(name, lo, hi) for name, lo, hi in t["variables"]}

    def index(e: int | str) -> Index:
        return parse(e, names) if isinstance(e, str) else e

    links = {row[0]: Link(*row) for row in t["links"]}
    programs = [Program(name, language, source, tuple(arguments), scratch, group, tuple([links[s] for s in symbols]),
                        digest) for name, language, source, arguments, scratch, group, symbols, digest in t["programs"]]
    executables = device.load(programs)
    items = []
    for name, program, rows, reads, writes, flops, nbytes, how, origins, group in t["items"]:
        made = [Row(tuple(values), tuple(scalars), tuple([index(d) for d in dims]), index(extent), work)
                for values, scalars, dims, extent, work in rows]
        items.append(Item(name, executables[program], made, frozenset(reads), frozenset(writes), flops, nbytes, how,
                          tuple(origins), group=group))
    slots = tuple([Slot(index(nbytes), leaf) for nbytes, leaf in t["slots"]])
    schedule = Schedule((), slots, tuple(t["outputs"]), frozenset(t["donated"]))
    arenas = {tuple(key): Arena(nbytes, dict(offsets)) for key, nbytes, offsets in t["arenas"]}
    return ExecutionPlan(schedule, device, items, [index(s) for s in t["sizes"]], t["temporary"], arenas, t["flops"],
                         t["bytes"], packs=tuple(t["packs"]))


class _Writer:
    def __init__(self) -> None:
        self.variables: dict[Var, None] = {}

    def index(self, e: Index) -> int | str:
        """An int, or the text of a sum without run-time values that reads back as it is."""
        if not isinstance(e, Expr):
            return e
        e = unbind(e)[0]
        for v in variables(e):
            if type(v.lo) is not int or type(v.hi) is not int:
                raise NotWritable(f"{v.name} has bounds that are no numbers")
            self.variables[v] = None
        text, names = to_text(e), {v.name: v for v in self.variables}
        if len(names) < len(self.variables) or parse(text, names) != e:
            raise NotWritable(f"{text} does not read back")
        return text


def spell(value: Any) -> str:
    """The text of a structure's key: equal only for equal ones, in every process. Raises NotWritable."""
    return _spell(value, {})


def _spell(value: Any, known: dict[Any, str]) -> str:
    kind = type(value)
    if kind is int or value is None:
        return str(value)
    if kind is str or kind is bool:
        return repr(value)
    if isinstance(value, tuple):
        # Ints, strings and True are told apart by `clean`; a tuple of equal things has an equal text.
        found = known.get(value)
        if found is None:
            found = known[value] = "(" + ",".join([_spell(v, known) for v in value]) + ")"
        return found
    if isinstance(value, Expr):
        bounds = sorted([f"{v.name} {v.lo} {v.hi} {v.value}" for v in variables(value)])
        return f"<{to_text(value)} {'; '.join(bounds)}>"
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted([_spell(v, known) for v in value])) + "}"
    if kind.__name__ in ("Op", "DType"):
        return f"{kind.__name__} {value.name}"
    raise NotWritable(f"{kind.__name__} has no text of its own")
