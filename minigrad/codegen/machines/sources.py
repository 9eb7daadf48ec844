"""The facts of a record with the source that stands beside each in its file: for people, who compare and doubt them."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigrad.codegen.machines import gpus, machine
from minigrad.codegen.machines.measured import folder, table
from minigrad.errors import ConfigError

VENDORS = ("NVIDIA", "AMD", "Intel", "Apple", "Arm", "Qualcomm")
KINDS = {"manual": "manuals'", "measured": "measured", "chosen": "chosen", "derived": "derived", "assumed": "assumed",
         "as on": "assumed", "unsourced": "without source"}
"""By the first word of a source, how facts with it are counted."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as its file states it, and the name of that file."""

    section: str
    name: str
    value: str
    source: str
    file: str

    @property
    def kind(self) -> str:
        """Whose it is: "AMD's", "manuals'", 'measured', ..., "others'"."""
        vendor = next((v for v in VENDORS if self.source.startswith(v + ":")), None)
        word = next((k for k in KINDS if self.source.startswith(k)), None)
        return f"{vendor}'s" if vendor else KINDS[word] if word else "others'"


def processors() -> tuple[str, ...]:
    """The names of the records of processors."""
    return tuple(sorted(path.stem for path in machine.FOLDER.glob("*.toml") if path.stem != gpus.GENERIC))


def is_gpu(name: str) -> bool:
    """True for a record of a GPU. Raises ConfigError for a name that has none."""
    if name in gpus.records():
        return True
    if name not in processors() and not (folder() / f"{name}.toml").is_file():
        known = ", ".join((*gpus.cards(), *processors()))
        raise ConfigError(f"[machine] expected a name of a record, such as {known}; got {name!r}")
    return False


def stated(name: str) -> list[Fact]:
    """The facts that hold for a machine, in the order of sections and of the most general file. What a user measured
    comes from the user's file. Raises ConfigError for a name that has no record."""
    found: dict[tuple[str, str], Fact] = {}
    of_gpus = is_gpu(name)
    for path, sections in reversed([*_files(name, of_gpus)]):
        for fact in _facts(path):
            if fact.section.partition(".")[0] in sections:
                found[fact.section, fact.name] = fact
    return sorted(found.values(), key=lambda fact: gpus.SECTIONS.index(fact.section.partition(".")[0]))


def chain(name: str) -> list[str]:
    """The names of the records that one is like, the nearest first."""
    return list(dict.fromkeys(path.stem for path, _ in _files(name, is_gpu(name)) if path.stem != name))


def counts(facts: list[Fact]) -> str:
    """A count of facts by their sources: "36 facts: 17 AMD's, 9 others', 8 derived, 2 without source"."""
    kinds = Counter(fact.kind for fact in facts).most_common()
    return f"{len(facts)} facts: " + ", ".join(f"{n} {kind}" for kind, n in kinds)


def _files(name: str, of_gpus: bool) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The files that say something of a machine, the one that counts first, with the sections that count of each."""
    own, user = (gpus.FOLDER if of_gpus else machine.FOLDER) / f"{name}.toml", folder(of_gpus) / f"{name}.toml"
    if user.is_file():
        yield user, gpus.SECTIONS if of_gpus and not own.is_file() else ("speed",)
    path = own if own.is_file() else user
    while True:
        if path.parent in (gpus.FOLDER, machine.FOLDER):
            yield path, gpus.SECTIONS
        like = table(path).get("like")
        if like is None:
            return
        path = next((place / f"{like}.toml" for place in (gpus.FOLDER if of_gpus else machine.FOLDER, folder(of_gpus))
                     if (place / f"{like}.toml").is_file()), own)


def _facts(path: Path) -> Iterator[Fact]:
    section = before = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1]
        elif section and (fact := re.match(r"(\w+) = ([^#]*)(?:# *(.*))?", line)):
            source = fact[3] or (before.partition("#")[2].strip() if before[:1] in "#[" else "")  # or the line above
            yield Fact(section, fact[1], fact[2].strip(), source or "unsourced", path.stem)
        before = line
