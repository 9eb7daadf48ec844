"""Reads the arguments, runs the command, turns errors into one line."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from minigrad.cli import cache, devices
from minigrad.errors import MinigradError

COMMANDS = {"devices": devices, "cache": cache}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `minigrad <arguments>`; returns the exit status: 0 done, 1 failed, 2 wrong usage."""
    parser = _parser()
    try:
        options = parser.parse_args(arguments, argparse.Namespace(debug=False))
    except SystemExit as e:
        return int(e.code or 0)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return COMMANDS[options.command].run(options)
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MinigradError, OSError) as e:
        if options.debug:
            raise
        print(f"minigrad: {e}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    common = OneLineParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS,
                        help="on an error, show the whole traceback")
    parser = OneLineParser(prog="minigrad", parents=[common], description="A lazy-tensor neural-network framework.",
                           epilog="`minigrad <command> --help` says more about a command.")
    commands = parser.add_subparsers(dest="command", metavar="<command>", title="commands")
    for name, module in COMMANDS.items():
        first_line = (module.__doc__ or "").split("\n", 1)[0]
        child = commands.add_parser(name, parents=[common], help=first_line, description=module.__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        module.describe(child)
    return parser
