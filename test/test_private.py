"""Private names are used where they are defined: what other modules use of them may only become less."""
import ast

from support.paths import ROOT

FOLDER = ROOT / "minigrad"
TENSOR = {"tensor.py", *(f"mixins/{path.name}" for path in (FOLDER / "mixins").glob("*.py"))}
CEILING = 30


def defined(tree: ast.AST) -> set[str]:
    """The names with _ that a module's classes and functions define, and what it assigns to as `self._name`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def uses(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of each `x._name` where x is not self, cls or super()."""
    return [(node.lineno, node.attr) for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            and ast.unparse(node.value) not in ("self", "cls", "super()")]


def foreign() -> list[str]:
    """Each use of a private attribute that another module defines. Tensor, whose class many files make, is one."""
    trees = {str(path.relative_to(FOLDER)): ast.parse(path.read_text(encoding="utf-8"))
             for path in FOLDER.rglob("*.py")}
    own = {name: defined(tree) for name, tree in trees.items()}
    of_tensor = set[str]().union(*(own[name] for name in TENSOR))
    return [f"{name}:{line} {attribute}" for name, tree in sorted(trees.items())
            for line, attribute in uses(tree)
            if attribute not in (of_tensor if name in TENSOR else own[name])]


def test_no_more_private_attributes_of_others_are_used() -> None:
    found = foreign()
    assert len(found) <= CEILING, f"{len(found)}, more than {CEILING}:\n" + "\n".join(found)


def test_a_foreign_attribute_is_found() -> None:
    source = "class A:\n    def f(self, other):\n        self._a = other._a + other._b + super()._c"
    tree = ast.parse(source)
    assert [use for use in uses(tree) if use[1] not in defined(tree)] == [(3, "_b")]
