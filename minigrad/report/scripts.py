"""Running a script of the user's inside a report."""
from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from minigrad.errors import MinigradError


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Runs a script as it would run alone. Raises MinigradError where it is not there, or ends with an error."""
    if not path.is_file():
        raise MinigradError(f"[script] expected a file of Python, got {str(path)!r}")
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[0] = [str(path), *arguments], str(path.resolve().parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise MinigradError(f"[script] expected a script that ends well, got {end.code!r} from {path}") from None
    except MinigradError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise MinigradError(f"[script] expected a script that ends well, got {type(error).__name__}: {error} at "
                            f"{Path(where.filename).name}:{where.lineno}") from error
    finally:
        sys.argv, sys.path[:] = before
