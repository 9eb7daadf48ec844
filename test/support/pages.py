"""Pages of the documentation as their blocks: running them, and the loops of their kernels under their plans."""
from __future__ import annotations

import io
import re
from code import compile_command
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import DOCS, ROOT
from support.plan_reading import built

from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.several import parse_plan as any_plan
from minigrad.codegen.plan.text import parse_plan

_BLOCK = re.compile(r"^(?:<!-- *(?P<marker>not run|needs): *(?P<what>.*?) *-->\n)?"
                    r"```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page, from a line and a character of it on. `marker` is '' or what the HTML comment before
    it says: 'not run' and why, or 'needs' and what of this machine; `what` is the rest of it."""

    language: str
    text: str
    line: int
    start: int
    marker: str = ""
    what: str = ""


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page that name a language."""
    text = page.read_text(encoding="utf-8")
    return [Block(m["language"], m["text"], text.count("\n", 0, m.start("text")) + 1, m.start("text"),
                  m["marker"] or "", m["what"] or "") for m in _BLOCK.finditer(text)]


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page of `docs/`."""
    return [(b.language, b.text) for b in blocks_of(DOCS / page)]


def run_page(page: Path, has: Callable[[str], bool] = lambda name: True, update: bool = False) -> str:
    """Runs the page's Python in order, in one namespace, and returns what it printed.

    A block of text right after one of Python must be what that printed, a block of loops the loops that it gave the
    name `loops`: AssertionError says where they differ. Blocks that need a device, or a feature of the processor, are
    left out without it.
    With `update` the page is written again with what was printed, but for texts with an ellipsis.
    """
    names: dict[str, Any] = {"__name__": "page"}
    printed, before, everything = "", "", ""
    changes: list[tuple[Block, str]] = []
    for block in blocks_of(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python" and block.marker != "not run":
            if block.marker == "needs" and not has(block.what):
                before = ""
                continue
            printed = _run(block, page, names)
            everything += printed
        elif block.language == "text" and before == "python":
            if update and "..." not in block.text:
                changes.append((block, "".join([f"{line.rstrip()}\n" for line in printed.splitlines()])))
            else:
                assert matches(block.text, printed), f"{where}: expected the text of the page, got\n{printed}"
        elif block.language == "loops" and "loops" in names:
            assert body_of(names["loops"]) == block.text, f"{where}: expected the loops of the page"
        before = "" if block.marker == "not run" else block.language
    text = page.read_text(encoding="utf-8")
    for block, new in reversed(changes):
        text = text[:block.start] + new + text[block.start + len(block.text):]
    if changes:
        page.write_text(text, encoding="utf-8")
    return everything


def _run(block: Block, page: Path, names: dict[str, Any]) -> str:
    """Runs a block and returns what it prints. The outputs of a session, with prompts, are compared with the page
    instead."""
    out = io.StringIO()
    with redirect_stdout(out):
        if block.text.startswith(">>> "):
            _run_session(block, page, names)
        else:
            # Blank lines before it make tracebacks and profiles name lines of the page
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True), names)
    return out.getvalue()


def _run_session(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Statements after >>> and ..., each with what it prints below it."""
    for part in re.split(r"^(?=>>> )", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        count = next((k for k, line in enumerate(lines) if not line.startswith((">>> ", "..."))), len(lines))
        code = compile_command("\n".join([line[4:] for line in lines[:count]]) + "\n", str(page), "single")
        out = io.StringIO()
        with redirect_stdout(out):
            exec(code, names)  # type: ignore[arg-type]
        expected = "".join([f"{line}\n" for line in lines[count:]])
        assert matches(expected, out.getvalue()), f"{page.name}:{block.line}: {lines[0]} gave\n{out.getvalue()}"


def matches(expected: str, got: str) -> bool:
    """True where both are equal, but for spaces at the ends of lines; `...` on the page stands for anything."""
    lines = ["\n".join([line.rstrip() for line in text.strip("\n").splitlines()]) for text in (expected, got)]
    pattern = ".*?".join([re.escape(part) for part in lines[0].split("...")])
    return re.fullmatch(pattern, lines[1], re.DOTALL) is not None


def loops_of(kernel: str, plan: str) -> str:
    """The loops that a plan makes of a kernel."""
    parsed = parse_kernel(kernel)
    made = any_plan(plan)
    function = build_block(parsed, made, "f") if isinstance(made, BlockPlan) else built(parsed, parse_plan(plan))[0]
    return body_of(print_function(function))


def body_of(function: str) -> str:
    """A function's text without its first line, as pages have it."""
    return "".join([f"{line[2:]}\n" for line in function.rstrip().splitlines()[1:]])
