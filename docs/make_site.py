"""What `make docs` needs besides the pages: the front page, reference pages from docstrings, the pages of folders."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = {
    "settings": ("Settings", ["minigrad.config"]),
    "functions": ("Seeing and running", ["minigrad.engine.show.show", "minigrad.report.plans.plans",
                                         "minigrad.report.profile.profile", "minigrad.report.estimate.plan",
                                         "minigrad.report.explained.explain.explain",
                                         "minigrad.capture.jit.jit", "minigrad.devices", "minigrad.microkernels"]),
    "kernels": ("Kernels", ["minigrad.codegen.kernel.nodes", "minigrad.value.core"]),
    "steps": ("Steps of plans", [f"minigrad.codegen.plan.steps{name}" for name in (
        "", ".sizes", ".split", ".fuse", ".order", ".bind", ".parts", ".stage", ".results", ".call", ".ahead")]),
    "loops": ("Loop IR", ["minigrad.codegen.ir.nodes"]),
    "device": ("Devices", ["minigrad.runtime.device", "minigrad.target", "minigrad.program"]),
}
"""By page: its title, and what it has the docstrings of. The mixins of Tensor make one more."""


def on_config(config: Any) -> Any:
    """Puts the pages of each folder that `nav` names, in order of their names, where the folder stands."""
    config.nav = _filled(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the front page, which is the README, and the reference pages."""
    from mkdocs.structure.files import File  # here, so that tests need no mkdocs

    for name, text in {"index.md": _front_page(), **_reference()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leaves links to files beside docs/ out: where the repository is read they lead there, the site has none of them.
    """
    return markdown if page.file.src_uri == "index.md" else led(markdown, ROOT / "docs" / page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Layouts in docstrings, as in [kk][v][l], are no links to something called l."""
    return re.sub(r'<autoref[^>]* identifier="(\w+)"[^>]*>(.*?)</autoref>', r"[\2][\1]", html)


def _filled(entries: list[Any], docs: Path) -> list[Any]:
    made: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            made += _pages(entry, docs) if entry.endswith("/") else [entry]
        else:
            made += [{title: _filled(below if isinstance(below, list) else [below], docs) if below != "index.md" else
                      below} for title, below in entry.items()]
    return made


def _pages(folder: str, docs: Path) -> list[str]:
    names = {*_reference(), *[str(page.relative_to(docs)) for page in docs.rglob("*.md")]}
    found = [name for name in names if name.startswith(folder)]
    return sorted(found, key=lambda name: (not name.endswith("README.md"), name))


def _front_page() -> str:
    """The README, as a page of docs/."""
    return led((ROOT / "README.md").read_text(encoding="utf-8"), ROOT / "README.md", ROOT / "docs")


def led(text: str, path: Path, folder: Path | None = None) -> str:
    """A page that lies at `path`, as one of `folder` (where it lies by default): links to pages of the site lead there,
    what is none is named without a link."""
    def link(found: re.Match[str]) -> str:
        name, to = found.groups()
        if name is None or re.match(r"[a-z]+:|#", to):
            return found[0]  # code, or a link that says itself where it leads
        target = Path(os.path.normpath(path.parent / to))
        within = target.is_relative_to(ROOT / "docs")
        return f"[{name}]({os.path.relpath(target, folder or path.parent)})" if within else name

    return re.sub(r"^```.*?^```|`[^`\n]*`|\[([^\]]+)\]\(([^()\s]+)\)", link, text, flags=re.DOTALL | re.MULTILINE)


def _reference() -> dict[str, str]:
    """Pages by their names, with a line for each module or function whose docstrings they have."""
    mixins = sorted(path.stem for path in (ROOT / "minigrad" / "mixins").glob("*.py"))
    named = [f"minigrad.mixins.{name}" for name in mixins if name != "__init__"]
    pages = {**REFERENCE, "tensor": ("Methods of Tensor", ["minigrad.tensor.Tensor", *named])}
    return {f"reference/{name}.md": "\n\n".join([f"# {title}", *[f"::: {path}" for path in paths], ""])
            for name, (title, paths) in pages.items()}
