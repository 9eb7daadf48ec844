"""Explain why a step takes as long as it does: a page of HTML with times, limits, pictures and warnings.

    explain SCRIPT.py [ARGS...]             the part of the script that comes again and again, else all of it
    explain SCRIPT.py:FUNCTION              a call of the function, or of the function that it returns
    explain SCRIPT.py [ARGS...] --out FILE  where the page goes (default: report.html)
    explain SCRIPT.py [ARGS...] --json      what is known as JSON, on stdout or in --out; no page

The script runs as it would alone, with its arguments; what follows -- is for it whatever it is. Launches are timed one
by one meanwhile. What it prints goes to stderr with --json. docs/warnings.md has a section about each warning.
"""
from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from minigrad.cli.outcome import OneLineParser
from minigrad.report.explained.explain import write_whole
from minigrad.report.explained.page import page_of
from minigrad.report.explained.report import Report, report_of
from minigrad.report.explained.step import watched_call, watched_script
from minigrad.report.scripts import function_of
from minigrad.tensor import Tensor

DEFAULT = "report.html"


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad explain SCRIPT.py[:FUNCTION] [ARGS...] [--out FILE] [--json]`."""
    parser.add_argument("script", metavar="SCRIPT", help="a file of Python, or file.py:function")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS",
                        help="arguments of the script, and ours: --out FILE (default: report.html), --json")


def run(options: argparse.Namespace) -> int:
    """Writes the page, or prints JSON, and a summary in words. Raises MinigradError for wrong words."""
    ours, theirs = _ours(options.arguments)
    with redirect_stdout(sys.stderr) if ours.json else nullcontext():
        report = _report(options.script, theirs)
    if ours.json:
        text = json.dumps(report.as_dict(), indent=1)
        if ours.out:
            write_whole(Path(ours.out), text + "\n")
        else:
            print(text)
        return 0
    out = Path(ours.out or DEFAULT)
    write_whole(out, page_of(report))
    print(f"{report}\n{out}")
    return 0


def _ours(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options that are ours, wherever they stand before a --, and the others."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = OneLineParser(prog="minigrad explain", add_help=False, allow_abbrev=False)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    ours, theirs = parser.parse_known_args(arguments[:cut])
    return ours, [*theirs, *arguments[cut + 1:]]


def _report(script: str, arguments: list[str]) -> Report:
    path, _, name = script.rpartition(":")
    if not path.endswith(".py"):
        return report_of(watched_script(Path(script), arguments))
    function = function_of(Path(path), name)
    made = function()
    step = made if callable(made) and not isinstance(made, Tensor) else function
    return report_of(watched_call(step, (), {}))
