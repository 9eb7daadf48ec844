"""JSON Schemas as grammars: every text of the grammar is JSON that the schema takes.

Not every such JSON is a text of it. Properties come in the order in which the schema lists them, others only where it
has additionalProperties; whitespace and numbers are of bounded length; only a property's own name is written with
escapes. What can neither be said in the grammar nor be left out is refused.
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from examples.llama.grammar import (
    EMPTY,
    NOTHING,
    Automaton,
    Choice,
    Expression,
    Name,
    Repeat,
    Seq,
    characters,
    literal,
    one_of,
)
from examples.llama.pattern import PLAIN, pattern
from minigrad.errors import FormatError
from minigrad.state.fields import brief, read_text

SUPPORTED = """object (properties, required, additionalProperties), array (items, minItems, maxItems), string (enum,
const, minLength, maxLength, pattern), number, integer, boolean, null, lists of types, anyOf, oneOf whose branches
exclude each other, $ref to #/$defs/..., and nesting of all these; annotations (title, format...) have no effect"""

_ANNOTATIONS = frozenset("""$schema $id $comment $anchor $defs definitions title description default examples deprecated
    readOnly writeOnly format contentMediaType contentEncoding""".split())
_BY_TYPE = {"object": ("properties", "required", "additionalProperties"), "array": ("items", "minItems", "maxItems"),
            "string": ("minLength", "maxLength", "pattern"), "number": (), "integer": (), "boolean": (), "null": ()}
_MEANT = frozenset([key for keys in _BY_TYPE.values() for key in keys])
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
MAX_COUNT = 1_000_000

_BLANK = Choice(EMPTY, one_of(" "), Seq(one_of("\n"), Repeat(one_of(" \t"), 0, 32)))
_COMMA, _COLON = Seq(_BLANK, one_of(","), _BLANK), Seq(one_of(":"), Choice(EMPTY, one_of(" ")))
_QUOTE, _CHARACTER = one_of('"'), characters(PLAIN)
_ANY_CHARACTER = Choice(_CHARACTER, Seq(one_of("\\"), one_of('"\\/bfnrt')))
_DIGIT = one_of("0123456789")
_INTEGER = Seq(Choice(EMPTY, one_of("-")), Choice(one_of("0"), Seq(one_of("123456789"), Repeat(_DIGIT, 0, 14))))
_NUMBER = Seq(_INTEGER, Choice(EMPTY, Seq(one_of("."), Repeat(_DIGIT, 1, 15))),
              Choice(EMPTY, Seq(one_of("eE"), Choice(EMPTY, one_of("+-")), Repeat(_DIGIT, 1, 2))))
_SIMPLE = {"number": _NUMBER, "integer": _INTEGER, "boolean": Choice(literal("true"), literal("false")),
           "null": literal("null")}


def load_schema(path: Path) -> Expression:
    """The grammar of texts that a file's schema takes. Raises FormatError where it is no schema, says what is
    not supported, or takes no text.
    """
    def no_number(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number of JSON")

    try:
        content = json.loads(read_text(path), parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected a JSON Schema: {error}; mend the file") from None
    return compile_schema(content, str(path))


def compile_schema(content: Any, source: str = "the schema") -> Expression:
    """As `load_schema`, of what the file says."""
    try:
        grammar = Seq(_BLANK, _Reader(content, source).expression(content, "#"))
    except RecursionError:
        raise FormatError(f"{source}: the schema is nested too deeply") from None
    if Automaton(grammar).shortest(0) == math.inf:
        raise FormatError(f"{source}: no JSON can meet the schema: what it requires excludes itself or never ends")
    return grammar


class _Reader:
    def __init__(self, root: Any, source: str):
        self.root, self.source = root, source
        self.named: dict[str, Name] = {}
        self.anything = Name()
        self.anything.meaning = Choice(
            *_SIMPLE.values(), _string(0, None), _array(self.anything, 0, None), _object([], self.anything, ()))

    def refuse(self, where: str, what: str) -> NoReturn:
        raise FormatError(f"{self.source}: {where}: {what}; supported is {' '.join(SUPPORTED.split())}")

    def expression(self, schema: Any, where: str) -> Expression:
        if schema is True or schema is False:
            return self.anything if schema else NOTHING
        if not isinstance(schema, dict):
            self.refuse(where, f"expected a schema, got {brief(schema)}")
        meant = [key for key in schema if key not in _ANNOTATIONS]
        unknown = next((key for key in meant if key not in {*_MEANT, *_ALONE, "type", "enum", "const"}), None)
        if unknown is not None:
            self.refuse(where, f"{brief(unknown)} is not supported")
        alone = next((key for key in _ALONE if key in schema), None)
        if alone is not None:
            if len(meant) > 1:
                self.refuse(where, f"{alone} beside {brief(next(key for key in meant if key != alone))} is not "
                                   "supported")
            return self.reference(schema, where) if alone == "$ref" else self.branches(schema, alone, where)
        if "enum" in schema or "const" in schema:
            return self.values(schema, where)
        return Choice(*[self.of_type(kind, schema, where) for kind in self.types(schema, where)])

    def types(self, schema: dict[str, Any], where: str) -> list[str]:
        """The types that a value may have: those named, or those of which something is said, or all."""
        named: Any = schema.get("type")
        kinds: list[Any] = named if isinstance(named, list) else [named] if "type" in schema else [
            kind for kind, keys in _BY_TYPE.items() if any([key in schema for key in keys])] or list(_BY_TYPE)
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _BY_TYPE:
                self.refuse(where, f"expected a type {', '.join(_BY_TYPE)}, got {brief(kind)}")
        return kinds

    def of_type(self, kind: str, schema: dict[str, Any], where: str) -> Expression:
        if kind == "string":
            return self.string(schema, where)
        if kind == "array":
            least, most = self.bounds(schema, "minItems", "maxItems", where)
            return _array(self.expression(schema.get("items", True), f"{where}/items"), least, most)
        return self.object(schema, where) if kind == "object" else _SIMPLE[kind]

    def string(self, schema: dict[str, Any], where: str) -> Expression:
        least, most = self.bounds(schema, "minLength", "maxLength", where)
        if "pattern" not in schema:
            return _string(least, most)
        if (least, most) != (0, None):
            self.refuse(where, "a pattern beside minLength or maxLength is not supported")
        if not isinstance(schema["pattern"], str):
            self.refuse(where, f"expected a pattern, got {brief(schema['pattern'])}")
        return Seq(_QUOTE, pattern(schema["pattern"], lambda what: self.refuse(where, what)), _QUOTE)

    def object(self, schema: dict[str, Any], where: str) -> Expression:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            self.refuse(where, f"expected properties to be an object, got {brief(properties)}")
        if not isinstance(required, list) or not all([isinstance(name, str) for name in required]):
            self.refuse(where, f"expected required to be names, got {brief(required)}")
        more = schema.get("additionalProperties", True)
        others = self.expression(more, f"{where}/additionalProperties")
        members = [(name, self.expression(inner, f"{where}/properties/{name}"), name in required)
                   for name, inner in properties.items()]
        members += [(name, others, True) for name in dict.fromkeys(required) if name not in properties]
        allowed = "additionalProperties" in schema or not members
        return _object(members, others if allowed and more is not False else None, [name for name, _, _ in members])

    def bounds(self, schema: dict[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
        found: list[int | None] = []
        for key, default in ((low, 0), (high, None)):
            value = schema.get(key, default)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            given = key in schema or value is not None
            if given and (type(value) is not int or not 0 <= value <= MAX_COUNT):
                self.refuse(where, f"expected {key} to be from 0 to {MAX_COUNT}, got {brief(value)}")
            found.append(value)
        least, most = found[0] or 0, found[1]
        if most is not None and most < least:
            raise FormatError(f"{self.source}: {where}: no JSON can meet the schema: {low} is {least} and {high} "
                              f"{most}")
        return least, most

    def values(self, schema: dict[str, Any], where: str) -> Expression:
        """Those of enum and const that the type and what is said of strings leave."""
        beside = next((key for key in schema if key in (*_BY_TYPE["object"], *_BY_TYPE["array"])), None)
        if beside is not None:
            self.refuse(where, f"enum or const beside {beside} is not supported")
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            self.refuse(where, f"expected enum to be a list, got {brief(values)}")
        try:
            json.dumps(values, allow_nan=False)
        except ValueError:
            self.refuse(where, "expected numbers that JSON can write, got one too large")
        if "const" in schema:
            values = [value for value in values if _key(value) == _key(schema["const"])]
        kinds = self.types(schema, where) if "type" in schema else list(_BY_TYPE)
        strings = Automaton(self.string(schema, where))
        return Choice(*[literal(_written(value)) for value in values if set(kinds) & _types_of(value) and (
            not isinstance(value, str) or not {*schema} & {*_BY_TYPE["string"]}
            or strings.accepts(_written(value).encode()))])

    def reference(self, schema: dict[str, Any], where: str) -> Expression:
        pointer, target = self.resolve(schema, where)
        if pointer not in self.named:
            name = self.named[pointer] = Name()
            name.meaning = self.expression(target, pointer)
        return self.named[pointer]

    def resolve(self, schema: dict[str, Any], where: str) -> tuple[str, Any]:
        """(where a $ref points, what is there)."""
        pointer = schema["$ref"]
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            self.refuse(where, f"expected a $ref inside the file, got {brief(pointer)}")
        target = self.root
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                self.refuse(where, f"there is no {brief(pointer)}")
            target = target[key]
        return pointer, target

    def branches(self, schema: dict[str, Any], key: str, where: str) -> Expression:
        inner = schema[key]
        if not isinstance(inner, list) or not inner:
            self.refuse(where, f"expected {key} to be a list of schemas, got {brief(inner)}")
        if key == "allOf" and len(inner) > 1:
            self.refuse(where, "allOf of several schemas is not supported")
        if key == "oneOf":
            for at, first in enumerate(inner):
                for second in inner[:at]:
                    if not self.apart(first, second, 0):
                        self.refuse(where, "oneOf with branches that may hold together is not supported; "
                                           "say anyOf, or give each branch a type or a const of its own")
        return Choice(*[self.expression(each, f"{where}/{key}/{at}") for at, each in enumerate(inner)])

    def apart(self, first: Any, second: Any, depth: int) -> bool:
        """Says whether it is plain that no value meets both."""
        first, second = self.followed(first), self.followed(second)
        if not isinstance(first, dict) or not isinstance(second, dict) or depth > 4:
            return False
        finite = [None if not {"enum", "const"} & set(each) else
                  each.get("enum", [each.get("const")]) for each in (first, second)]
        if isinstance(finite[0], list) and isinstance(finite[1], list):
            return not {_key(value) for value in finite[0]} & {_key(value) for value in finite[1]}
        kinds = []
        for each, values in zip((first, second), finite, strict=True):
            named = each.get("type")
            listed = named if isinstance(named, list) else [named] if isinstance(named, str) else list(_BY_TYPE)
            of = set().union(*map(_types_of, values)) if isinstance(values, list) else {
                str(kind) for kind in listed} | ({"integer"} if "number" in listed else set())
            kinds.append(of)
        both = kinds[0] & kinds[1]
        if both != {"object"}:
            return not both
        shared = [each["required"] for each in (first, second) if isinstance(each.get("required"), list)]
        inner = [each["properties"] for each in (first, second) if isinstance(each.get("properties"), dict)]
        return len(shared) == len(inner) == 2 and any(
            [name in shared[1] and name in inner[0] and name in inner[1]
             and self.apart(inner[0][name], inner[1][name], depth + 1) for name in shared[0] if isinstance(name, str)])

    def followed(self, schema: Any) -> Any:
        """The schema that a chain of $refs leads to; one of a circle."""
        for _ in range(16):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self.resolve(schema, "#")[1]
        return schema


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool) or value is None:
        return {"null" if value is None else "boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def _key(value: Any) -> str:
    """The same text for equal values."""
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value, sort_keys=True)


def _written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not any(["\ud800" <= c <= "\udfff" for c in text]) else json.dumps(value)


def _string(least: int, most: int | None) -> Expression:
    return Seq(_QUOTE, Repeat(_ANY_CHARACTER, least, most), _QUOTE)


def _array(item: Expression, least: int, most: int | None) -> Expression:
    if most == 0:
        return Seq(one_of("["), _BLANK, one_of("]"))
    more = Repeat(Seq(_COMMA, item), max(least - 1, 0), None if most is None else most - 1)
    inside = Seq(item, more, _BLANK)
    return Seq(one_of("["), _BLANK, inside if least else Choice(EMPTY, inside), one_of("]"))


def _object(members: Iterable[tuple[str, Expression, bool]], others: Expression | None, names: Iterable[str]
            ) -> Expression:
    """An object of (name, value, whether it is required), in this order, then properties of other names."""
    # `first` is what can stand at the start, `later` what follows a property; both from the last member to the first.
    first: Expression = EMPTY
    later: Expression = EMPTY
    if others is not None:
        other = Seq(_QUOTE, _other_than(frozenset(names)), _COLON, others)
        later = Repeat(Seq(_COMMA, other))
        first = Choice(EMPTY, Seq(other, later))
    for name, value, required in reversed(list(members)):
        member = Seq(literal(_written(name)), _COLON, value)
        this, next_one = Seq(member, later), Seq(_COMMA, member, later)
        first = this if required else Choice(this, first)
        later = next_one if required else Choice(next_one, later)
    return Seq(one_of("{"), _BLANK, first, _BLANK, one_of("}"))


def _other_than(names: frozenset[str]) -> Expression:
    """The rest of a key, with its closing quote, that is none of `names`; without escapes, so that it is what it
    seems.
    """
    starts = sorted({name[0] for name in names if name})
    options: list[Expression] = [] if "" in names else [_QUOTE]
    free: list[tuple[int, int]] = []
    for low, high in PLAIN:
        for point in [ord(start) for start in starts if low <= ord(start) <= high]:
            free += [(low, point - 1)] if point > low else []
            low = point + 1
        free += [(low, high)] if low <= high else []
    options.append(Seq(characters(tuple(free)), Repeat(_CHARACTER), _QUOTE))
    for start in starts:
        if any([low <= ord(start) <= high for low, high in PLAIN]):
            rest = _other_than(frozenset([name[1:] for name in names if name[:1] == start]))
            options.append(Seq(literal(start), rest))
    return Choice(*options)
