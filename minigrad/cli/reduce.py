"""Find the least program whose result is wrong, and print it as a test.

    reduce SCRIPT.py [ARGS...]

The script runs as it would alone, eagerly. All that it computes is compared with what the NUMPY device gives for the
same numbers, where errors of rounding do not count, and gradients with slopes; the first one that is wrong is made
smaller until little remains. The test goes to stdout, with status 1; where all is right, the status is 0. NUMPY is
slow: take small models and few steps. --no-gradients leaves the slopes out.
"""
from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from minigrad.errors import MinigradError, quantity
from minigrad.report.reduced.reduce import reduced
from minigrad.report.reduced.write import written
from minigrad.report.scripts import run_script


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad reduce [--no-gradients] SCRIPT.py [ARGS...]`."""
    parser.add_argument("--no-gradients", action="store_true", help="do not compare gradients with slopes")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a file of Python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script")


def run(options: argparse.Namespace) -> int:
    """Prints a test; status 1 where something is wrong. Raises MinigradError where nothing was compared."""
    with redirect_stdout(sys.stderr):
        found, compared = reduced(lambda: run_script(options.script, options.arguments), not options.no_gradients)
    counted = f"{quantity(compared.compared, 'graph')} and {quantity(compared.gradients, 'gradient')} compared"
    if compared.left_out:
        counted += f", {compared.left_out} left out, which NUMPY cannot compute"
    if found is None:
        if not compared.compared and not compared.gradients:
            raise MinigradError(f"[reduce] expected a script that computes on a device with kernels, got none from "
                                f"{options.script}")
        print(f"nothing differs: {counted}", file=sys.stderr)
        return 0
    print(f"{found.text}; reduced to {quantity(found.program.size, 'operation')}", file=sys.stderr)
    print(written(found), end="")
    return 1
