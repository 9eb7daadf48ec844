"""Plans on disk: a second process runs a known step without scheduling, rendering or compiling.

The key is the text of everything that a plan depends on: the structure of the graph, donated buffers, the target and
the sources of the modules that make plans. A plan whose programs are not all in the cache of objects is a miss.
"""
from __future__ import annotations

import zlib
from functools import cache
from hashlib import sha256
from pathlib import Path

from minigrad.codegen.microkernels import registry
from minigrad.config import current
from minigrad.engine.plan import ExecutionPlan, arena_for
from minigrad.engine.plan_text import NotWritable, read_plan, spell, write_plan
from minigrad.program import NotStored
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Device

KIND = "plan"
_LANGUAGES = ("llvm", "opencl")
_MAKERS = ("codegen", "engine", "expr", "graph", "ops", "runtime", "scheduler")
"""Folders of the modules that decide what is in a plan, beside those at the top."""


def plan_key(structure: tuple, donated: frozenset[int], device: Device) -> str | None:
    """The key of a plan on disk; None where plans are not stored or must be made anew.

    With `verify` and from `debug` 2 on every process makes its own: there is something to see. Microkernels that users
    add are known by name only, hence not in a key; whether plans of theirs fit is found out anew.
    """
    settings = current()
    if device.target.language not in _LANGUAGES or registry.added() or not sources_digest():
        return None
    if not settings.disk_cache or settings.verify or settings.debug > 1 or settings.plans:
        return None
    target = device.target
    facts = [f"{name}={getattr(target, name)!r}" for name in target.__dataclass_fields__ if name != "features"]
    try:
        text = spell((structure, donated))
    except NotWritable:
        return None
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
    package = Path(__file__).resolve().parent.parent
    files = sorted([*package.glob("*.py"), *[path for f in _MAKERS for path in (package / f).rglob("*.py")],
                    *(package / "codegen" / "machines").glob("*.toml")])
    digest = sha256()
    try:
        for path in files:
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest() if files else ""
