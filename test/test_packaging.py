"""What pyproject.toml says of the package: what it needs, what comes with it, which version it is."""
import ast
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest
from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
MODULES = {"pillow": "PIL", "prometheus-client": "prometheus_client"}
"""What libraries are imported as, where that is not their name."""
PROGRAMS = {"mpich"}
"""Libraries that other libraries load, and programs: nothing imports them."""


def libraries(requirements: list[str]) -> set[str]:
    """The modules of requirements such as `numpy>=1.26`, and of this package's extras."""
    own = [e for r in requirements if r.startswith("minigrad[") for e in re.findall(r"[\w-]+", r)[1:]]
    names = [re.split(r"[^\w-]", r)[0] for r in requirements if not r.startswith("minigrad[")]
    modules = {MODULES.get(name, name) for name in names if name not in PROGRAMS}
    return modules.union(*[libraries(EXTRAS[extra]) for extra in own])


def imported(folder: str) -> Iterator[str]:
    """The top-level modules that a folder's modules import, but for Python's and this repository's."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                yield name.split(".")[0]


@pytest.mark.parametrize("folder, extras", [("minigrad", ("compile", "data", "mpi", "onnx")),
                                            ("examples", ("chat", "examples", "serve", "train"))])
def test_what_is_imported_is_what_is_needed(folder: str, extras: tuple[str, ...]) -> None:
    own = {"minigrad", "examples"} | sys.stdlib_module_names
    needed = libraries(PROJECT["project"]["dependencies"])
    found = set(imported(folder)) - own
    more = libraries([r for extra in extras for r in EXTRAS[extra]])
    assert found | needed == needed | more
    assert folder != "minigrad" or found == needed | more


def test_files_beside_modules_come_with_the_package() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["minigrad"]
    package = ROOT / "minigrad"
    beside = [path.relative_to(package).as_posix() for path in package.rglob("*")
              if path.is_file() and path.suffix not in (".py", ".pyc", ".md")]
    assert [path for path in beside if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)] == []


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == PROJECT["project"]["version"]
