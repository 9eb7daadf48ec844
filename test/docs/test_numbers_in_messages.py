"""Numbers of things in messages: '1 launch', not '1 launches'."""
import ast
import re

import pytest
from support.paths import ROOT

from minigrad.errors import quantity

CONSTANTS = re.compile(r"[A-Z][A-Z_]+|\[.*|ranks")
"""Of what stands before a noun, numbers that are never 1, and lists."""


@pytest.mark.parametrize("count, noun, text", [
    (0, "row", "0 rows"), (1, "row", "1 row"), (2, "launch", "2 launches"), (1, "axis", "1 axis"),
    (3, "entry", "3 entries"), (12, "array", "12 arrays"), (2, "box", "2 boxes"), (2, "class", "2 classes"),
])
def test_a_noun_after_its_number(count: int, noun: str, text: str) -> None:
    assert quantity(count, noun) == text


def nouns(tree: ast.AST) -> set[str]:
    """The nouns that a module's calls of `quantity` name."""
    return {ast.literal_eval(call.args[1]) for call in ast.walk(tree)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "quantity"}


def unnumbered(tree: ast.AST, plurals: set[str]) -> list[str]:
    """`line: {number} plural` of each f-string with such a noun behind a number that may be 1."""
    found = []
    for text in ast.walk(tree):
        for number, rest in zip(text.values, text.values[1:], strict=False) if isinstance(text, ast.JoinedStr) else ():
            if isinstance(number, ast.FormattedValue) and isinstance(rest, ast.Constant):
                noun, value = re.match(r" (\w+)", str(rest.value)), ast.unparse(number.value)
                if noun and noun[1] in plurals and not CONSTANTS.fullmatch(value):
                    found.append(f"{number.lineno}: {{{value}}} {noun[1]}")
    return found


def test_messages_number_things_by_the_same_function() -> None:
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
             for path in sorted((ROOT / "minigrad").rglob("*.py"))}
    plurals = {quantity(2, noun)[2:] for noun in set[str]().union(*map(nouns, trees.values()))}
    assert "launches" in plurals
    assert [f"{name}:{line}" for name, tree in trees.items() for line in unnumbered(tree, plurals)] == []


def test_an_unnumbered_noun_is_found() -> None:
    tree = ast.parse('f"{len(x)} rows of {MOST} rows", f"{quantity(n, \'row\')} of {m:.1f} ms"')
    assert unnumbered(tree, {"rows"}) == ["1: {len(x)} rows"]
