"""OpenCL drivers that lie in the Python environment, where no loader looks: it is told of them when it starts.

A package of an index may bring a driver as a library below the environment's `lib`, and a file `etc/OpenCL/vendors/
*.icd` that names it by a path of the machine that it was built on. The loader reads one folder of such files, /etc's or
the one that a variable names, once, at the first call of a process. So for that call there is a folder with the
system's files and one for each such library. Who sets the variable is obeyed: then nothing is added.
"""
from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLES = "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"
VENDORS = Path("etc/OpenCL/vendors")
SYSTEM = "/" / VENDORS


@contextmanager
def environments_drivers() -> Iterator[None]:
    """Until it is left, a loader that starts finds the environment's drivers beside the system's."""
    variable = VARIABLES[0]
    known = _files(SYSTEM)
    own = {} if any([os.environ.get(name) for name in VARIABLES]) else _own(known)
    if not own:
        yield
        return
    with TemporaryDirectory(prefix="minigrad-opencl-") as folder:
        for name, library in (own | known).items():
            Path(folder, name).write_text(library + "\n")
        before = os.environ.get(variable)
        os.environ[variable] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before


def _files(folder: Path) -> dict[str, str]:
    """The library that each .icd of a folder names, by the file's name."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for path in sorted(folder.glob("*.icd")):
            with suppress(OSError, UnicodeDecodeError):
                found[path.name] = path.read_text().strip()
    return found


def _own(known: dict[str, str]) -> dict[str, str]:
    """As `_files`, of the environment's folders: libraries that are there, as named or in its `lib`, and not known."""
    places = {os.path.realpath(library) for library in known.values()}
    found: dict[str, str] = {}
    for prefix in _prefixes():
        for name, library in _files(prefix / VENDORS).items():
            at = next((p for p in (Path(library), Path(prefix, "lib", Path(library).name)) if p.is_file()), None)
            if at is not None and os.path.realpath(at) not in places:
                places.add(os.path.realpath(at))
                found[f"minigrad-{len(found)}-{name}"] = str(at)
    return found


def _prefixes() -> dict[str, None]:
    """The folders that packages install files into which are no modules."""
    users = [site.getuserbase()] if site.ENABLE_USER_SITE else []
    return dict.fromkeys([sys.prefix, sysconfig.get_path("data"), *users])
