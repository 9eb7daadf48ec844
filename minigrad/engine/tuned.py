"""Plans that searches have found, kept in files that are read, edited and shared as text: a row for each kernel.

    row sum_mul@91ab3f
      machine znver5, 2 units, vectors of 64 bytes
      driver llvm 20.1.8
      date 2026-11-29
      time 1.234 ms, within 0.8%, of 12 runs
      before 1.456 ms, within 1.1%, of 12 runs
      predicted 3.2e+06 cycles, before 3.9e+06
      kernel
        kernel sum_mul(out o0: f32[262144], ...)
          ...
      instead
        plan panels
          ...
      plan
        plan panels
          ...

`<cache>/tuned/<device>.plans` has those of searches here, `codegen/machines/<name>.plans` those that are shared. A row
holds for the kernel whose text it has, for its machine and driver where it names them, and in place of the plan that it
was found to be faster than. Where that is its own plan, a search found none that is faster. What is no row is told and
left out.
"""
from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from weakref import WeakKeyDictionary

from minigrad.codegen.machines import machine as machines
from minigrad.config import current
from minigrad.errors import FormatError
from minigrad.runtime.device import Device
from minigrad.runtime.own_files import make_own, open_own
from minigrad.runtime.registry import get_device
from minigrad.target import Tuned

TEXTS = "kernel", "instead", "plan"
"""Fields that are texts of several lines; the others have one."""

LOCK_SECONDS = 10.0
"""The time after which a lock is taken to be one that a process left when it died."""


@dataclass(frozen=True, slots=True)
class Row:
    """A plan for the kernel of a name, as `codegen/plan/given.py` gives it; `facts` are its fields, in order."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """There is one row for each."""
        return self.name, self.facts.get("machine", ""), self.facts.get("driver", "")

    @property
    def gains(self) -> bool:
        """True where the plan is another one than it was compared with."""
        return self.facts["plan"] != self.facts.get("instead")

    def __str__(self) -> str:
        lines = [f"row {self.name}"]
        for name, value in self.facts.items():
            lines += [f"  {name}", *[f"    {line}" for line in value.splitlines()]] if name in TEXTS else [
                f"  {name} {value}"]
        return "\n".join(lines)


def machine_of(device: Device) -> str:
    """The machine that a plan's time depends on, beside the driver."""
    target = device.target
    return f"{target.cpu}, {target.units} units, vectors of {target.vector_bytes} bytes"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none where there is no file; warns of what is none, naming it, and leaves it out. Raises
    OSError for a file that cannot be read, or that others may write."""
    try:
        with open_own(path) as file:
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    found: list[Row] = []
    for part in ("\n" + text).split("\nrow ")[1:]:
        try:
            found.append(_row(part))
        except FormatError as error:
            warnings.warn(f"[tuned] {path}: row {part.splitlines()[0]!r}: {error}; it is left out", RuntimeWarning,
                          stacklevel=2)
    return found


def _row(text: str) -> Row:
    """A row from its text after the word. Raises FormatError."""
    name, *lines = text.splitlines()
    facts: dict[str, str] = {}
    last = ""
    for line in lines:
        if line.startswith("    ") and last in TEXTS:
            facts[last] += line[4:] + "\n"
        elif line.startswith("  ") and line[2:3].strip():
            last, _, value = line.strip().partition(" ")
            facts[last] = "" if last in TEXTS else value
        elif line.strip() and not line.startswith("#"):
            raise FormatError(f"expected a field, got {line!r}")
    facts = {field: value.strip("\n") for field, value in facts.items()}
    for wanted in ("kernel", "plan"):
        if not facts.get(wanted):
            raise FormatError(f"expected a {wanted}, got none")
    digest = sha256((facts["kernel"] + "\n").encode()).hexdigest()[:6]
    if not name.endswith(f"@{digest}"):
        raise FormatError(f"expected a name with the digest of its kernel, @{digest}")
    return Row(name, facts)


# ---- in force ----

_files: WeakKeyDictionary[Device, Path | None] = WeakKeyDictionary()
"""By device, the file whose rows are in force."""


def file_of(device: Device) -> Path | None:
    """The file of a device's rows; None where nothing is kept on disk."""
    settings = current()
    name = device.name.replace(":", "-")
    return settings.cache_dir / "tuned" / f"{name}.plans" if settings.disk_cache else None


def tuned(name: str) -> Device:
    """The device, with the plans that searches have found for it in force."""
    device = get_device(name)
    if current().tuned and _files.get(device, False) != (path := file_of(device)):
        put_in_force(device, _rows_of(device))
        _files[device] = path
    return device


def _rows_of(device: Device) -> list[Row]:
    """The rows that are shared for a device's machine, and those that were found here."""
    shared = machines.FOLDER / f"{machines.file_of(device.target.cpu, device.target)}.plans"
    return [row for file in (shared, file_of(device)) if file for row in _readable(file)]


def _readable(path: Path) -> list[Row]:
    try:
        return read_rows(path)
    except OSError:
        return []


def put_in_force(device: Device, rows: Sequence[Row]) -> None:
    """Has a device use those of the rows that are for it, the last one for each kernel, and no others."""
    fit = {row.name: (row.facts["kernel"] + "\n", row.facts.get("instead", ""), row.facts["plan"]) for row in rows
           if row.gains and is_for(row, device)}
    if fit or device.tuned:
        digest = sha256(repr(sorted(fit.items())).encode()).hexdigest()
        device.tuned = Tuned(digest, fit) if fit else None


def is_for(row: Row, device: Device) -> bool:
    """True where a row names no other machine and no other driver."""
    mine = {"machine": machine_of(device), "driver": device.driver}
    return all([row.facts.get(name, here) == here for name, here in mine.items()])


def known_best(device: Device) -> set[tuple[str, str]]:
    """Names of kernels, each with the steps of a plan than which a search has found nothing faster."""
    return {(row.name, steps_of(row.facts["plan"])) for row in _rows_of(device) if is_for(row, device)}


def steps_of(plan: str) -> str:
    """The text of a plan without its first line, which may name a policy."""
    return plan.partition("\n")[2]


def keep_rows(path: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a file, in place of those for the same kernel, machine and driver; other processes may do so at the
    same time. Raises OSError where the file cannot be written, and leaves it as it was."""
    make_own(path.parent)
    with _locked(path):
        known = {row.key: row for row in read_rows(path)}
        known |= {row.key: row for row in rows if row.gains or not _is_better(known.get(row.key), row)}
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}.tmp")
        try:
            temporary.write_text("".join([f"{row}\n\n" for row in known.values()]), encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _is_better(known: Row | None, row: Row) -> bool:
    """True where a row that is known gains beside the plan in whose place another one found nothing."""
    return known is not None and known.gains and known.facts.get("instead") == row.facts.get("instead")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Others who want to write the file wait meanwhile; not for a process that died."""
    lock = path.with_name(f"{path.name}.lock")
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            with suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > LOCK_SECONDS:
                    lock.unlink()
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
