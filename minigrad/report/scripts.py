"""Scripts of users inside a report: run, or asked for a function."""
from __future__ import annotations

import importlib.util
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def function_of(path: Path, name: str) -> Callable[[], Any]:
    """A function of a file, which is imported once, from its folder or as part of a package."""
    if not path.is_file():
        raise MinigradError(f"[dojo] expected a file, got {str(path)!r}")
    module = f"minigrad_{path.stem}_{abs(hash(path.resolve())):x}"  # others may have the name of this file
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None:
            raise MinigradError(f"[dojo] expected a file in Python, got {str(path)!r}")
        sys.modules[module] = importlib.util.module_from_spec(spec)
        sys.path[:0] = [str(Path.cwd()), str(path.resolve().parent)]
        try:
            spec.loader.exec_module(sys.modules[module])
        except BaseException:
            del sys.modules[module]
            raise
        finally:
            del sys.path[:2]
    found: Any = getattr(sys.modules[module], name, None)
    if not callable(found):
        raise MinigradError(f"[dojo] expected a function of {path}, got {name!r}")
    return found
