"""The command line. A command is a module of this folder with `describe(parser)` and `run(options) -> exit status`."""
from minigrad.cli.command_line import main

__all__ = ["main"]
