"""No class of minigrad stands more than two deep, counting itself, but in parts that say why: parts are composed."""
from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from test_layers import ROOT, part_of

DEPTH = 2
DEEPER = {
    "tensor": (5, "Tensor, of the mixins, and they of one Base"),
    "mixins": (4, "the methods of Tensor by subject, each of Base alone, and all of them together"),
    "nn": (6, "PyTorch's modules inherit so, and users ask isinstance"),
    "optim": (4, "PyTorch's optimizers, and those of users, inherit so"),
    "data": (4, "PyTorch's data sets and samplers inherit so, and users' do from them"),
    "report": (3, "what watches a step for its report is a profile, which is an observer"),
    "errors": (3, "an error of minigrad may be one of Python's too"),
    "codegen": (3, "steps of plans: what all have, what those with memory have, one step"),
    "expr": (4, "kinds of index expressions"),
    "value": (3, "a value used as an index is a kind of index expression"),
    "runtime": (3, "devices: what all have in common, what a host has, one device"),
}
"""How deep a part may go, and why."""

Classes = dict[str, tuple[str, ...]]
"""Classes of minigrad by full name, with their bases, those of other libraries left out."""


def classes_of(sources: dict[str, str]) -> Classes:
    """The classes of modules, given as {name: text}."""
    own: dict[str, list[ast.ClassDef]] = {}
    names: dict[str, str] = {}  # what a module calls something, by 'module.name'
    for module, source in sources.items():
        tree = ast.parse(source)
        own[module] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                names |= {f"{module}.{name.asname or name.name}": base + name.name for name in node.names}
    names = {name: target for name, target in names.items() if name != target}  # a package's own modules
    found = {f"{module}.{node.name}": (module, node) for module, nodes in own.items() for node in nodes}

    def resolved(name: str) -> str:
        """The class that a name stands for where it is imported, perhaps from a module that imports it, too."""
        while name not in found and name in names:
            name = names[name]
        head, _, last = name.rpartition(".")
        return resolved(f"{names[head]}.{last}") if name not in found and head in names else name

    bases = {name: [resolved(f"{module}.{ast.unparse(base).partition('[')[0]}") for base in node.bases]
             for name, (module, node) in found.items()}
    return {name: tuple(base for base in of if base in found) for name, of in bases.items()}


def depths(classes: Classes) -> dict[str, int]:
    """The length of the longest chain of bases of each class, itself included."""
    @cache
    def depth(name: str) -> int:
        return 1 + max(map(depth, classes[name]), default=0)

    return {name: depth(name) for name in classes}


@cache
def of_package() -> dict[str, int]:
    paths = (ROOT / "minigrad").rglob("*.py")
    return depths(classes_of({module_of(path): path.read_text(encoding="utf-8") for path in paths}))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_class_is_deeper_than_two() -> None:
    allowed = {part: most for part, (most, _) in DEEPER.items()}
    deep = {name: depth for name, depth in of_package().items() if depth > allowed.get(part_of(name) or "", DEPTH)}
    assert not deep, deep


def test_exceptions_are_needed() -> None:
    assert {part_of(name) for name, depth in of_package().items() if depth > DEPTH} == {*DEEPER}


def test_renderers_are_composed() -> None:
    """A renderer is an emitter and four parts of a language, which inherit from what is abstract alone."""
    classes = classes_of({module_of(path): path.read_text(encoding="utf-8")
                          for path in (ROOT / "minigrad" / "codegen" / "render").glob("*.py")})
    assert {base for bases in classes.values() for base in bases} == {
        f"minigrad.codegen.render.language.{name}" for name in ("Language", "Access", "Storage", "Control")}


CHAIN = {
    "p.a": "class A: pass\nclass B(A): pass",
    "p.b": "from p.a import B as C\nclass D(C[int]): pass",
    "p": "from p.b import D",
    "p.c": "import q\nfrom p import D\nclass E(D, q.Z): pass",
    "p.d": "from p import c\nclass F(c.E, list): pass",
}


@pytest.mark.parametrize("name, depth", [("p.a.A", 1), ("p.a.B", 2), ("p.b.D", 3), ("p.c.E", 4), ("p.d.F", 5)])
def test_bases_are_found_through_imports(name: str, depth: int) -> None:
    assert depths(classes_of(CHAIN))[name] == depth
