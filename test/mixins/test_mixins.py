"""Tensor's mixins: each stands on `Base` alone, and no method is defined twice."""
import ast
from collections import Counter
from pathlib import Path

import pytest
from support.paths import ROOT

from minigrad import Tensor
from minigrad.mixins.all import AllMixins
from minigrad.mixins.base import Base

FOLDER = ROOT / "minigrad" / "mixins"
MIXINS = AllMixins.__bases__
OF_EVERY_CLASS = {"__module__", "__doc__", "__slots__", "__firstlineno__", "__static_attributes__", "__annotations__",
                  "__annotate_func__", "__annotations_cache__"}
Method = tuple[str, str]  # the kind of its decorator, its signature


def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {c.name: c for c in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(c, ast.ClassDef)}


def methods(cls: ast.ClassDef) -> dict[str, Method]:
    """By name, those by another name (`__add__ = add`) too."""
    found: dict[str, Method] = {}
    for node in cls.body:
        if isinstance(node, ast.FunctionDef):
            kinds = [name for d in node.decorator_list if (name := ast.unparse(d)) in ("classmethod", "property")]
            found[node.name] = "".join(kinds), f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns or node)}"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found.update({ast.unparse(target): found[node.value.id] for target in node.targets})
    return found


def declared() -> dict[str, dict[str, Method]]:
    """By the file that each is said to be defined in."""
    source = (FOLDER / "operations.py").read_text(encoding="utf-8")
    cls = classes(FOLDER / "operations.py")["Operations"]
    files = {k: line.split()[1].removesuffix(".py") for k, line in enumerate(source.split("\n"), 1)
             if line.startswith("    # ")}
    bodies: dict[str, list[ast.stmt]] = {}
    for node in cls.body[1:]:
        bodies.setdefault(files[max(k for k in files if k < node.lineno)], []).append(node)
    return {file: methods(ast.ClassDef("", [], [], body, [])) for file, body in bodies.items()}


DECLARED = declared()


def test_all_mixins_are_there_and_inherit_base_alone() -> None:
    written = {name for path in FOLDER.glob("*.py") for name in classes(path) if name.endswith("Mixin")}
    assert written == {c.__name__ for c in MIXINS} and [c.__bases__ for c in MIXINS] == [(Base,)] * len(MIXINS)


def test_no_method_is_defined_twice() -> None:
    """Neither by two mixins, nor by one and Base or Tensor, so that it does not matter in which order they come."""
    path = FOLDER.parent / "tensor.py"
    own = [Base, *MIXINS]
    found = Counter(name for names in [*map(vars, own), methods(classes(path)["Tensor"])] for name in names)
    twice = {name for name, count in found.items() if count > 1} - OF_EVERY_CLASS
    assert not twice and len(found) > 800 and set(found) - OF_EVERY_CLASS <= set(dir(Tensor))


@pytest.mark.parametrize("file", DECLARED)
def test_declarations_say_what_is_defined(file: str) -> None:
    path = FOLDER.parent / "tensor.py" if file == "tensor" else FOLDER / f"{file}.py"
    (cls,) = [c for name, c in classes(path).items() if name == "Tensor" or name.endswith("Mixin")]
    defined = methods(cls)
    wrong = {name: (here, defined.get(name)) for name, here in DECLARED[file].items() if defined.get(name) != here}
    assert not wrong


def test_what_is_declared_is_used_by_another_mixin() -> None:
    """Operators are a language of their own: all of them are declared, and what they stand for."""
    operators = {method for name, method in DECLARED["elementwise"].items() if name.startswith("__")}
    uses: dict[str, set[str]] = {}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                uses.setdefault(node.attr, set()).add(path.stem)
    unused = [name for file, names in DECLARED.items() for name, method in names.items()
              if not name.startswith("__") and not uses.get(name, set()) - {file} and method not in operators]
    assert not unused
