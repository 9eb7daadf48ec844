"""Numbers that decide in policies are counted: more of them are not wanted, facts of machines are data."""
import ast
from collections.abc import Iterator
from pathlib import Path

POLICY = Path(__file__).parents[3] / "minigrad" / "codegen" / "policy"
MOST = 121
"""Numbers that policies have; 60 are the aim."""

FREE = -1, 0, 1, 2
WIDTHS = 4, 8, 16, 32


def deciding(source: str) -> Iterator[tuple[int, float]]:
    """(line, number) of those that decide something: thresholds, limits, factors. Not those that are choices among
    which another function decides (displays of several numbers, ranges), nor bits and bytes of types, positions, sizes
    of caches of functions."""
    tree = ast.parse(source)
    free = set[int]()
    for node in ast.walk(tree):
        inside = list(ast.walk(node))
        numbers = [n for n in inside if isinstance(n, ast.Constant)]
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if (isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1 and all(
                [isinstance(e, ast.Constant | ast.Tuple) for e in node.elts])) or called in ("lru_cache", "range"):
            free |= {id(n) for n in numbers}
        elif isinstance(node, ast.Subscript):
            free |= {id(n) for n in ast.walk(node.slice)}
        elif isinstance(node, ast.BinOp | ast.Compare) or called in ("max", "min"):
            named = {getattr(n, "attr", getattr(n, "id", "")) for n in inside}
            if named & {"bits", "itemsize"}:
                free |= {id(n) for n in numbers if n.value in WIDTHS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in FREE and \
                id(node) not in free:
            yield node.lineno, node.value  # type: ignore[misc]


def test_numbers_of_policies() -> None:
    found = {path.name: list(deciding(path.read_text())) for path in sorted(POLICY.glob("*.py"))}
    assert sum(map(len, found.values())) <= MOST, "\n".join(f"{name}: {n}" for name, n in found.items() if n)


def test_what_counts() -> None:
    source = """
LIMIT = 400
SIDES = (4, 8, 16)
@lru_cache(maxsize=2048)
def plan(n, bits, names):
    if n > 3 * LIMIT or n * 0.97 < bits // 8:
        return names[3:5], max(bits, 32), -1, range(3, 9)
"""
    assert sorted(n for _, n in deciding(source)) == [0.97, 3, 400]
