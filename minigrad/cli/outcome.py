"""The outcomes of commands, those of examples/ too: wrong usage, errors, Ctrl-C and closed pipes."""
from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from minigrad.errors import MinigradError


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line and status 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def finish(name: str, debug: bool, action: Callable[[], int | None]) -> int:
    """Runs `action`; returns the exit status: its own or 0, 1 after an error, 130 after Ctrl-C.

    An error that the user can do something about is one line on stderr; with `debug` it is raised.
    """
    try:
        return action() or 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MinigradError, OSError, MemoryError) as error:
        if debug:
            raise
        short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        print(f"{name}: {'there is not enough memory' if short else error}", file=sys.stderr)
        return 1
