"""Plans on disk: a second process runs a known step without scheduling, rendering or compiling.

The key is the text of everything that a plan depends on: the structure of the graph, donated buffers, the target, what
was measured of it and the sources of the modules that make plans. A plan whose programs are not all in the cache of
objects is a miss.

The text of a plan is JSON: what is needed in order to run it, and nothing of how it was made. It has slots and sizes,
programs by the digest of their source (OpenCL's with the source, which its drivers want), argument tables, memory plan.
Sums over symbolic dims are texts over a table of variables. Loop IR, kernels and LLVM IR are not in it.
"""
from __future__ import annotations

import json
import os
import zlib
from functools import cache
from glob import glob
from hashlib import sha256
from typing import Any

from minigrad.codegen.machines.machine import measured_of
from minigrad.codegen.microkernels import registry
from minigrad.config import current
from minigrad.engine.exchange import with_exchanges
from minigrad.engine.hoisting import packable
from minigrad.engine.plan import ExecutionPlan, Item, Row, arena_for, call_item
from minigrad.expr import Expr, Index, Var, parse, to_text, unbind, variables
from minigrad.program import Link, NotStored, Program
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Device
from minigrad.runtime.host_calls import HostCall
from minigrad.scheduler.exchanges import Exchange
from minigrad.scheduler.memory import Arena
from minigrad.scheduler.recompute import Recomputation
from minigrad.scheduler.schedule import Schedule, Slot

KIND = "plan"
_LANGUAGES = ("llvm", "opencl")
MAKERS = ("codegen", "engine", "expr", "graph", "ops", "runtime", "scheduler", "value")
"""Folders of the modules that decide what is in a plan, beside those at the top."""


def plan_key(structure: tuple, donated: frozenset[int], device: Device) -> str | None:
    """The key of a plan on disk; None where plans are not stored or must be made anew.

    With `verify` and from `debug` 2 on every process makes its own: there is something to see. Microkernels that users
    add are known by name only, hence not in a key; whether plans of theirs fit is found out anew.
    """
    settings = current()
    if device.simulates or device.target.language not in _LANGUAGES or registry.added() or not sources_digest():
        return None
    if not settings.disk_cache or settings.verify or settings.debug > 1 or settings.plans:
        return None
    target = device.target
    facts = [f"{name}={getattr(target, name)!r}" for name in target.__dataclass_fields__ if name != "features"]
    try:
        text = spell((structure, donated, settings.memory))
    except NotWritable:
        return None
    facts += [f"{name}={value!r}" for name, value in measured_of(target).items()]
    return "\n".join([sources_digest(), device.name, *facts, *sorted(target.features), text])


def stored_plan(key: str, device: Device) -> ExecutionPlan | None:
    """The plan that some process stored under this key, or None."""
    data = disk_cache.get(KIND, key)
    if data is None:
        return None
    try:
        return read_plan(zlib.decompress(data).decode(), device)
    except NotStored:
        return None


def store_plan(key: str, plan: ExecutionPlan) -> None:
    """Keeps a plan for other processes, if it has a text."""
    try:
        if all(type(plan.sizes[k]) is int for k in plan.temporary):
            arena_for(plan, {}, {})  # the memory plan goes with it
        text = write_plan(plan)
    except NotWritable:
        return
    disk_cache.put(KIND, key, zlib.compress(text.encode(), 1))


@cache
def sources_digest() -> str:
    """A digest of the sources of every module that decides what is in a plan; '' where they cannot be read."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = glob(os.path.join(package, "*.py"))
    files += [os.path.join(folder, name) for f in MAKERS for folder, _, names in os.walk(os.path.join(package, f))
              for name in names if name.endswith((".py", ".toml"))]
    digest = sha256()
    try:
        for path in sorted(files):
            with open(path, "rb", buffering=0) as file:
                digest.update(path[len(package):].encode() + b"\0" + file.read())
    except OSError:
        return ""
    return digest.hexdigest() if files else ""


class NotWritable(Exception):
    """A plan that holds what has no text. No error: such a plan is made in each process."""


def write_plan(plan: ExecutionPlan) -> str:
    """The text of a plan whose programs are loaded. Raises NotWritable."""
    writer = _Writer()
    programs: dict[Program, int] = {}
    links: dict[str, Link] = {}
    items = []
    for item in plan.items:
        if isinstance(item.executable, HostCall):
            continue
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
        "recomputed": None if (found := plan.schedule.recomputed) is None else [
            found.values, found.work, found.before, found.after],
        "exchanges": [[e.slots, e.shapes, e.dtype, e.how, e.channel] for e in plan.schedule.exchanges],
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
    recomputed = None if t["recomputed"] is None else Recomputation(*t["recomputed"])
    exchanges = tuple([Exchange(tuple(parts), tuple(map(tuple, shapes)), dtype, how, channel)
                       for parts, shapes, dtype, how, channel in t["exchanges"]])
    items = with_exchanges(items, exchanges, device, call_item)
    schedule = Schedule((), slots, tuple(t["outputs"]), frozenset(t["donated"]), recomputed, exchanges)
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
