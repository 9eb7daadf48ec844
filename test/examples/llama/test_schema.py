"""Constrained answers: whatever tokens are chosen, they are JSON that meets the schema; what cannot be met is refused.
"""
from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from support.json_validity import meets

from examples.llama.assistant import default_model
from examples.llama.constraint import JsonForm, Trie
from examples.llama.grammar import Automaton, Bytes, Choice, Name, Repeat, Seq, characters, literal, one_of
from examples.llama.pattern import pattern
from examples.llama.schema import compile_schema, load_schema
from examples.llama.tokenizer import Tokenizer
from examples.llama.tokenizer_files import load_tokenizer
from minigrad.errors import FormatError, MinigradError

PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8},
                                           "age": {"type": "integer"}}, "required": ["name"]}
SCHEMAS: dict[str, Any] = {
    "anything": True, "empty": {}, "string": {"type": "string"}, "integer": {"type": "integer"},
    "number": {"type": "number"}, "boolean": {"type": "boolean"}, "null": {"type": "null"},
    "types": {"type": ["integer", "null", "string"], "maxLength": 3}, "length": {"type": "string", "minLength": 3,
                                                                                "maxLength": 5},
    "exactly": {"type": "string", "minLength": 4, "maxLength": 4.0}, "const": {"const": {"a": [1, "é\"\\\n", None]}},
    "enum": {"enum": ["a", 1, 1.5, True, None, [], {}, "日本", "\ud800", "/"]},
    "enum of a type": {"enum": ["a", 1, 2.0, True, None], "type": ["integer", "boolean"]},
    "enum of a length": {"enum": ["a", "bbb", "cc"], "type": "string", "minLength": 2, "maxLength": 2},
    "const in enum": {"enum": [1, 2], "const": 2.0}, "array": {"type": "array", "items": {"type": "boolean"}},
    "few items": {"type": "array", "minItems": 2, "maxItems": 3, "items": {"enum": [1, 2]}},
    "no items": {"type": "array", "maxItems": 0}, "no items possible": {"type": "array", "items": False},
    "person": PERSON, "closed": {**PERSON, "additionalProperties": False},
    "open": {**PERSON, "additionalProperties": True},
    "others": {**PERSON, "additionalProperties": {"type": "boolean"}, "required": ["age", "other"]},
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "odd names": {"type": "object", "properties": {"": {"type": "null"}, "a\"b": {"type": "null"}, "é": {"const": 1},
                                                   "aé": {"const": 2}, "a": {"const": 3}},
                  "additionalProperties": {"const": 4}},
    "an impossible property": {"type": "object", "properties": {"a": False, "b": {"const": 1}}},
    "nested": {"type": "object", "properties": {"people": {"type": "array", "items": PERSON, "maxItems": 2}},
               "required": ["people"]},
    "tree": {"$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["value", "next"]}}, "$ref": "#/$defs/node"},
    "itself": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    "pointer": {"type": "object", "properties": {"a": {"const": 1}, "b": {"$ref": "#/properties/a"}},
                "required": ["b"]},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}, {"const": None}]},
    "told apart": {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "x": {"type": "integer"}},
                              "required": ["kind", "x"]} for kind in ("a", "b", 1)]},
    "all of one": {"allOf": [{"type": "integer"}], "title": "a title", "default": 3},
    "only names": {"properties": {"a": {"const": 1}}}, "only a pattern": {"pattern": "^a+$"},
    "annotations": {"$schema": "x", "title": "t", "description": "d", "format": "email", "examples": [], "const": 0},
    **{f"pattern {text}": {"type": "string", "pattern": text} for text in (
        r"^\d{4}-\d\d-\d\d$", r"^[A-Z][a-z]*( [A-Z][a-z]*)?$", r"^(a|bc)*d$", r"^[^a-y\"]{2,3}$", r"cat|^dog",
        r"^[é-ü日]+$", r"^\"\\\n\t\x01?$", r"^.$", r"^[^\s]\S\W\D\w$", r"^(?:a{2}){1,2}(?P<n>b)?\.$", r"", r"^\u00e9x$",
        r"^[\]a\-z^]+$", r"^[-a]+?$")},
}


@pytest.fixture(scope="module")
def tokenizer(data_dir: Path) -> Tokenizer:
    return load_tokenizer(data_dir / "llm" / "stories260K" / "tok512.bin")


def answer(form: JsonForm, tokenizer: Tokenizer, rng: np.random.Generator, count: int) -> str:
    """An answer of tokens at random, where those that may come are as probable as each other."""
    constraint, text, left = form.begin(count), b"", count
    while left:
        token = constraint.choose(lambda allowed: int(rng.choice(np.flatnonzero(allowed))), tokenizer.ends, left)
        if token is None or token in tokenizer.ends:
            break
        text, left = text + tokenizer.token_bytes(token), left - 1
    return text.decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_meet_the_schema(name: str, tokenizer: Tokenizer) -> None:
    """Those of the fewest tokens, too."""
    schema = SCHEMAS[name]
    form = JsonForm(compile_schema(schema), tokenizer, tokenizer.size)
    rng = np.random.default_rng(sum(map(ord, name)))
    least = int(form.automaton.shortest(0))
    for count in (least, least, least + 1, least + 3, 60 + least, 60 + least, 60 + least):
        text = answer(form, tokenizer, rng, count)
        value = json.loads(text)
        assert meets(value, schema, schema), text
    with pytest.raises(MinigradError, match=f"may take {least} tokens, and only {least - 1}"):
        form.begin(least - 1)


TAKEN = [("person", '{"name": "a"}', True), ("person", '{\n  "name":"a" , "age": 3\n}', True), ("person", "{}", False),
         ("person", '{"age": 3, "name": "a"}', False), ("closed", '{"name": "a", "x": 1}', False),
         ("open", '{"name": "a", "x": {"y": []}}', True), ("open", '{"name": "a", "name": 1}', False),
         ("open", '{"name": "a", "nam": 1, "names": 1}', True), ("number", "-1.5e-3", True), ("number", "01", False),
         ("number", "1.", False), ("integer", "-0", True), ("integer", "1.0", False), ("length", '"日本語"', True),
         ("length", '"日本"', False), ("length", '"\\n\\"\\\\"', True), ("string", '"\n"', False),
         ("string", '"\\x"', False), ("anything", '[1, {"a": [true, null, "x"]}, -2.5]', True),
         ("anything", "[1,]", False), ("array", "[ true,\n\tfalse ]", True), ("enum", '"\\ud800"', True)]


@pytest.mark.parametrize("name, text, taken", TAKEN)
def test_texts_that_are_taken(name: str, text: str, taken: bool) -> None:
    assert Automaton(compile_schema(SCHEMAS[name])).accepts(text.encode()) == taken


REFUSED: list[tuple[Any, str]] = [
    ({"type": "integer", "minimum": 3}, "#: 'minimum' is not supported; supported is object"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported"),
    ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a: 'not' is not supported"),
    ({"type": "array", "items": {"type": "thing"}}, "#/items: expected a type object, .*, got 'thing'"),
    ({"type": "array", "prefixItems": []}, "'prefixItems'"), ({"if": {}}, "'if'"), (3, "expected a schema, got 3"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no JSON can meet the schema: minLength is 3 and maxLength 2"),
    ({"type": "array", "minItems": 1, "items": False}, "no JSON can meet the schema"), (False, "no JSON can meet"),
    ({"enum": []}, "no JSON can meet"), ({"enum": [1], "type": "string"}, "no JSON can meet"),
    ({"const": 1, "enum": [2, True]}, "no JSON can meet"), ({"type": []}, "no JSON can meet"),
    ({"type": None}, "expected a type object, .*, got None"),
    ({"enum": ["a"], "minLength": 2, "type": "string"}, "no JSON can meet"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "no JSON can meet"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no JSON can meet"),
    ({"$ref": "#"}, "no JSON can meet"), ({"anyOf": [{"$ref": "#"}, False]}, "no JSON can meet"),
    ({"$ref": "#/$defs/none"}, "there is no '#/\\$defs/none'"), ({"$ref": "http://x"}, "expected a \\$ref inside"),
    ({"$ref": "#", "type": "string"}, "\\$ref beside 'type' is not supported"),
    ({"anyOf": [{}], "type": "string"}, "anyOf beside 'type' is not supported"), ({"anyOf": []}, "a list of schemas"),
    ({"allOf": [{}, {}]}, "allOf of several"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "give each branch"),
    ({"oneOf": [{"const": 1}, {"enum": [1.0]}]}, "give each branch"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "give each branch"),
    ({"enum": [{}], "properties": {}}, "enum or const beside properties"), ({"enum": 3}, "expected enum to be a list"),
    ({"minLength": -1}, "expected minLength to be from 0"), ({"maxItems": "x"}, "expected maxItems"),
    ({"maxItems": None}, "expected maxItems"), ({"properties": []}, "expected properties to be an object"),
    ({"required": "a"}, "expected required to be names"), ({"pattern": 3}, "expected a pattern"),
    ({"pattern": "^a+$", "maxLength": 3}, "a pattern beside minLength or maxLength"),
    *[({"pattern": text}, "the pattern .* has ") for text in (
        "(", ")", "a)", "[", "[b-a]", "a**", "*a", "a{2000}", "a{3,2}", "a{x}", r"\1", r"\b", "(?=a)", "(?<!a)",
        "(?i)a", "a^b", "a$b", "(^a)", r"\p{L}", "\\", r"\xg0", "[^", "{1}")]]


@pytest.mark.parametrize("schema, message", REFUSED)
def test_schemas_that_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        compile_schema(schema, "a.json")
    assert str(caught.value).startswith("a.json: ") and str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"const": 1e999}', '{"const": Infinity}', "[" * 100_000,
                                  '{"items": ' * 3000 + "{}" + "}" * 3000, "\xff"])
def test_files_that_are_no_schema(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        load_schema(tmp_path / "a.json")
    assert str(caught.value).isprintable()


# The parts


def refuse(what: str) -> NoReturn:
    raise AssertionError(what)


@pytest.mark.parametrize("text", [name.removeprefix("pattern ") for name in SCHEMAS if name.startswith("pattern ")])
def test_patterns_are_those_of_python(text: str) -> None:
    """Short strings of what may stand in one, and those where we take less than Python."""
    automaton, rng = Automaton(Seq(pattern(text, refuse))), random.Random(text)
    letters = 'abcdxyzACZ019é日ü"\\\n\t\x01-^]. '
    taken = 0
    for _ in range(3000):
        string = "".join(rng.choices(letters, k=rng.randrange(6)))
        if automaton.accepts(json.dumps(string, ensure_ascii=False)[1:-1].encode()):
            assert re.search(text, string) is not None, string
            taken += 1
        elif re.search(text, string) is not None:
            assert "\\S" in text or "\\W" in text or string.endswith("\n"), string
    assert taken or "{4}" in text or "cat" in text or "\\" in text or "(" in text


@pytest.mark.parametrize("seed", range(20))
def test_characters_are_the_ranges(seed: int) -> None:
    rng = random.Random(seed)
    points = sorted(rng.sample([*range(0x300), 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF,
                                *range(0xFF0, 0x1010)], 6))
    ranges = tuple(zip(points[::2], points[1::2], strict=True))
    automaton = Automaton(characters(ranges))
    for point in {*points, *[p + d for p in points for d in (-1, 1)], *[rng.randrange(0x110000) for _ in range(50)]}:
        if 0 <= point < 0x110000 and not 0xD800 <= point < 0xE000:
            assert automaton.accepts(chr(point).encode()) == any([low <= point <= high for low, high in ranges])


def test_recursion_and_repetition() -> None:
    nested = Name()
    nested.meaning = Choice(Seq(), Seq(one_of("("), nested, one_of(")"), nested))
    automaton = Automaton(nested)
    for text, taken in (("", True), ("()(())", True), ("(()", False), ("())", False), ("(" * 900 + ")" * 900, True)):
        assert automaton.accepts(text.encode()) == taken
    assert automaton.shortest(automaton.step(0, b"((")) == 2
    some = Automaton(Repeat(Repeat(literal("a"), 0, 2), 2, 3))  # its part may be empty
    assert [some.accepts(b"a" * count) for count in range(8)] == [True] * 7 + [False]
    endless = Name()
    endless.meaning = Seq(one_of("a"), endless)
    assert Automaton(Choice(endless, literal("b"))).row(0)[ord("a")] == -1  # no state that cannot be completed
    assert Automaton(Bytes(0)).shortest(0) == float("inf")
    assert not Automaton(Choice()).accepts(b"")


@pytest.mark.parametrize("schema", ["person", "anything", "odd names", "pattern cat|^dog"])
def test_masks_are_what_each_token_alone_does(schema: str, tokenizer: Tokenizer) -> None:
    automaton, trie = Automaton(compile_schema(SCHEMAS[schema])), Trie(tokenizer, tokenizer.size)
    for start in (b"", b'{"', b'{"name": "\xc3', b"[1"):
        state = automaton.step(0, start)
        if state < 0:
            continue
        after = trie.walk(automaton, state)
        for token in range(tokenizer.size):
            text = tokenizer.token_bytes(token)
            assert after[token] == (automaton.step(state, text) if text else -1)


def test_a_vocabulary_of_many_tokens(tokenizer: Tokenizer) -> None:
    """SmolLM2's has no token for some bytes of rare characters, which are never begun."""
    try:
        smollm = load_tokenizer(default_model())
    except FormatError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
    form = JsonForm(compile_schema(SCHEMAS["open"]), smollm, smollm.size + 8)
    rng = np.random.default_rng(0)
    for count in (20, 100, 100):
        assert meets(json.loads(answer(form, smollm, rng, count)), SCHEMAS["open"], None)
    single = {token for token in range(smollm.size) if len(smollm.token_bytes(token)) == 1}

    class Without(type(smollm)):  # type: ignore[misc]
        def token_bytes(self, token: int) -> bytes:
            text = super().token_bytes(token)
            return b"" if text == b"{" and token in single else text

    smollm.__class__ = Without
    with pytest.raises(MinigradError, match="no tokens for some characters of every JSON"):
        JsonForm(compile_schema(SCHEMAS["person"]), smollm, smollm.size)
