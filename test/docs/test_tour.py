"""docs/tour.md names few files, short enough to be read in a weekend, and says of each what to look for."""
from __future__ import annotations

import re

from support.paths import DOCS, PACKAGE, ROOT

MOST_FILES, MOST_LINES = 28, 6000
STOPS = re.findall(r"^### `(.+?)`\n\n(.*?)(?=^#|\Z)", (DOCS / "tour.md").read_text(encoding="utf-8"),
                   re.DOTALL | re.MULTILINE)


def test_the_tour_is_short() -> None:
    files = [PACKAGE / name for name, _ in STOPS]
    assert 20 <= len(files) <= MOST_FILES and len(set(files)) == len(files)
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert sum(lines.values()) <= MOST_LINES, lines


def test_each_stop_says_what_to_look_for() -> None:
    assert all(1 <= len(text.strip().splitlines()) <= 6 for _, text in STOPS)


def test_functions_that_the_tour_names_are_in_their_files() -> None:
    """A word in backquotes is one of the file itself; pages and folders have a dot or a slash, keywords a quote."""
    for name, text in STOPS:
        source = (PACKAGE / name).read_text(encoding="utf-8")
        words = [w for found in re.findall(r"`([\w.]+)`", text) for w in found.split(".") if not found.endswith(".py")]
        missing = [w for w in words if w not in source and w not in ELSEWHERE]
        assert not missing, f"{name}: {missing}"


ELSEWHERE = {"show", "erfcx", "jit", "Tensor"}
"""Words of the tour that are about something other than the file."""


def test_the_readme_promises_no_more() -> None:
    said = re.findall(r"[^.;]*\bweekend\b", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said == [" That much can be read in a weekend"]
