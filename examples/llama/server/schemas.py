"""Schemas of clients: what they may have of everything, so that making a grammar of one takes a second at most."""
from __future__ import annotations

import json
from typing import Any

from examples.llama.grammar import Expression
from examples.llama.schema import compile_schema
from minigrad.errors import FormatError

MOST = {"values": 5000, "properties of an object": 100, "letters of an object's names": 5000,
        "letters of a pattern": 500, "values of an enum": 500, "letters of an enum": 20_000, "branches of a oneOf": 100}


def compiled(schema: Any, where: str) -> Expression:
    """The grammar of a schema. Raises FormatError where it is none, is not supported, cannot be met, or is too
    large."""
    values = 0
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        values += 1
        _bound(values, "values", where)
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            _check(value, where)
            waiting += value.values()
    return compile_schema(schema, where)


def _check(schema: dict[str, Any], where: str) -> None:
    properties = schema.get("properties")
    if isinstance(properties, dict):
        _bound(len(properties), "properties of an object", where)
        _bound(sum(map(len, properties)), "letters of an object's names", where)
    if isinstance(schema.get("pattern"), str):
        _bound(len(schema["pattern"]), "letters of a pattern", where)
    if isinstance(schema.get("enum"), list):
        _bound(len(schema["enum"]), "values of an enum", where)
        _bound(len(json.dumps(schema["enum"])), "letters of an enum", where)
    if isinstance(schema.get("oneOf"), list):
        _bound(len(schema["oneOf"]), "branches of a oneOf", where)


def _bound(count: int, what: str, where: str) -> None:
    if count > MOST[what]:
        raise FormatError(f"{where}: a schema may have at most {MOST[what]} {what}")
