"""Reads the arguments of `minigrad <command>` and runs the command."""
from __future__ import annotations

import argparse
from collections.abc import Sequence

from minigrad.cli import cache, devices, dojo, explain, launch, machine, models, reduce, tune
from minigrad.cli.outcome import OneLineParser, finish

COMMANDS = {"devices": devices, "cache": cache, "onnx": models, "launch": launch,
            "machine": machine, "dojo": dojo, "tune": tune, "explain": explain,
            "reduce": reduce}


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
    return finish("minigrad", options.debug, lambda: COMMANDS[options.command].run(options))


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
