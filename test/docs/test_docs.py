"""Pages hold what they promise: links lead somewhere, files that they name exist, each kind of page is of its kind."""
from __future__ import annotations

import ast
import re
import runpy
from functools import cache
from pathlib import Path

import pytest
from support.pages import blocks
from support.paths import DOCS, PACKAGE, ROOT

from minigrad import Tensor, show
from minigrad.runtime.device import Device

FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")),
         *[path for folder in ("minigrad", "examples", "bench") for path in sorted((ROOT / folder).rglob("*.md"))]]
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))

LINK = re.compile(r"\[[^\]]*\]\(([^()\s]*)\)")
FILE = re.compile(r"`([\w./-]+\.(?:py|pyi|md|toml|ll|cl|c))`")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code, which may have brackets and # of their own."""
    return re.sub(r"^(```+).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What `#...` may name in a page: its headings in small letters, without punctuation, with - for spaces. Equal ones
    are numbered."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = next(k for k in range(len(found) + 1) if (f"{slug}-{k}" if k else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


def broken_links(page: Path) -> list[str]:
    """One line per relative link of a page that leads nowhere."""
    found = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{name_of(page)}: {link}: no such file")
        elif anchor and anchor not in anchors(target):
            found.append(f"{name_of(page)}: {link}: no such heading")
    return found


def missing_files(page: Path, where: list[Path], least_parts: int = 1) -> list[str]:
    """One line per `file` that a page names and that is in none of these folders; names of fewer parts are left out."""
    named = [name for name in FILE.findall(prose(page)) if len(name.split("/")) >= least_parts]
    return [f"{name_of(page)}: {name}" for name in dict.fromkeys(named) if not any((f / name).exists() for f in where)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken_links(page)


def test_links_of_the_site_stay_in_it() -> None:
    """mkdocs is not asked: the site has the pages of docs/, and the README as its front page."""
    led = runpy.run_path(str(DOCS / "make_site.py"))["led"]
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        folder = DOCS if page.name == "README.md" and page.parent == ROOT else page.parent
        before, after = page.read_text(encoding="utf-8"), led(page.read_text(encoding="utf-8"), page, folder)
        assert FENCED.findall(after) == FENCED.findall(before)
        text = FENCED.sub("", re.sub(r"`[^`\n]*`", "", after))
        paths = [link.partition("#")[0] for link in LINK.findall(text) if not re.match("[a-z]+:|#", link)]
        outside = [p for p in paths if not (folder / p).resolve().is_relative_to(DOCS) or not (folder / p).exists()]
        assert not outside, f"{name_of(page)}: {outside}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_pages_name_with_their_folders_exist(page: Path) -> None:
    assert not missing_files(page, [ROOT, PACKAGE, page.parent], least_parts=2)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_every_folder_says_why_it_is_there_and_how_to_read_it(folder: Path) -> None:
    page = folder / "README.md"
    assert page.exists(), f"{name_of(folder)} has no README.md"
    assert not missing_files(page, [folder])
    assert 5 <= len(page.read_text(encoding="utf-8").splitlines()) <= 20


def test_pages_that_the_code_refers_to_exist() -> None:
    sources = [path for folder in ("minigrad", "test", "bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    named = {(name_of(path), page) for path in sources
             for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert named
    assert not [f"{path}: {page}" for path, page in sorted(named)
                if (ROOT / page).parent.exists() and not (ROOT / page).exists()]


def test_architecture_is_a_description() -> None:
    """No history and no measurements: these are in decisions/ and measurements/."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert not re.findall(r".*(?:\d ?%|\bDecided\b|times as fast|\d ms\b).*", text)


def test_the_kernel_of_a_softmax_is_the_one_on_the_page() -> None:
    (_, kernel), = [block for block in blocks("architecture.md") if block[0] == "kernel"]
    assert kernel.strip() in show(Tensor.ones(8, 100, device="CPU").realize().softmax(), stage="kernels")


def test_the_methods_of_a_device_are_those_on_the_page() -> None:
    named, = re.findall(r"has eight methods: `(.*?)`", prose(DOCS / "architecture.md"))
    assert sorted(named.split(", ")) == sorted(Device.__abstractmethods__) and len(Device.__abstractmethods__) == 8


def test_the_list_of_decisions_has_all_of_them_by_their_titles() -> None:
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (DOCS / "decisions" / "README.md").read_text(encoding="utf-8"),
                        re.MULTILINE)
    titles = {(HEADING.findall(page.read_text(encoding="utf-8"))[0], page.name) for page in DECISIONS}
    assert sorted(listed) == sorted(titles)
    assert len({page.name[:4] for page in DECISIONS}) == len(DECISIONS)
    assert all(title.startswith(f"{int(name[:4])}. ") for title, name in titles)


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_is_a_page_with_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = [text.find(f"\n**{part}") for part in ("Question.**", "Decision.**", "Evidence", "Ask again**")]
    assert -1 < places[0] < places[1] < places[2] < places[3], places
    assert len(text.splitlines()) <= 60


def test_measurements_are_listed() -> None:
    folder = DOCS / "measurements"
    listed = set(LINK.findall(prose(folder / "README.md")))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= listed


def test_the_glossary_has_one_entry_a_term() -> None:
    text = prose(DOCS / "glossary.md")
    entries = re.findall(r"^- \*\*(.*?)\*\*(.*?)(?=^- |^#|^$)", text, re.DOTALL | re.MULTILINE)
    terms = [term for names, _ in entries for term in re.sub(r"\([^)]*, [^)]*\)", "", names).split(", ")]
    assert len(terms) > 80 and sorted(set(terms)) == sorted(terms)
    assert not [names for names, entry in entries if len(entry.splitlines()) > 4]
    assert not missing_files(DOCS / "glossary.md", [PACKAGE, DOCS])


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `heading`, twice\n\n```\n# no heading\n```\n\n# A heading twice\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-heading-twice) [c](there.md#a-heading-twice-1) [d](#here)\n"
                    "[e](https://x.org) `[f](code)`\n# Here\n[g](gone.md) [h](there.md#no-heading) [i](#gone)\n"
                    "[j](there.md#a-heading-twice-2)")
    assert broken_links(page) == ["page.md: gone.md: no such file", "page.md: there.md#no-heading: no such heading",
                                  "page.md: #gone: no such heading",
                                  "page.md: there.md#a-heading-twice-2: no such heading"]


def test_missing_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    page = tmp_path / "page.md"
    page.write_text("`there.py`, `gone.py`, `x/gone.toml` and `../x/../there.py`, `no.file` `f(x.py)`")
    assert missing_files(page, [tmp_path]) == ["page.md: gone.py", "page.md: x/gone.toml", "page.md: ../x/../there.py"]
    assert missing_files(page, [tmp_path], least_parts=2) == ["page.md: x/gone.toml", "page.md: ../x/../there.py"]


AVOIDED = {"turned", "squares", "dots", "teams", "windowed"}
"""Words that the glossary replaces by what the field says, and that are no plain English besides."""


def test_words_to_avoid_are_no_names_of_code_generation() -> None:
    listed = re.findall(r"^\| (\w+).*? \| ", prose(DOCS / "glossary.md").split("## Words to avoid")[1], re.MULTILINE)
    assert set(listed) >= AVOIDED
    found = []
    for path in sorted([*(PACKAGE / "codegen").rglob("*.py"), *(PACKAGE / "ops").rglob("*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {path.stem, *[getattr(node, key, None) or "" for node in ast.walk(tree)
                              for key in ("id", "name", "arg", "attr") if isinstance(getattr(node, key, None), str)]}
        found += [f"{name_of(path)}: {name}" for name in sorted(names) if AVOIDED & set(name.lower().split("_"))]
    assert not found, found
