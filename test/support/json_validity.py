"""Says whether a JSON value meets a schema, by JSON Schema's own words, one keyword after another."""
from __future__ import annotations

import json
import re
from typing import Any

TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float),
                         "boolean": bool, "null": type(None)}


def same(first: Any, second: Any) -> bool:
    """Numbers are the same whatever they are written as, but true is not 1."""
    if type(first) in (int, float) and type(second) in (int, float):
        return first == second
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def is_a(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        return type(value) in (int, float) and (kind == "number" or float(value).is_integer())
    return isinstance(value, TYPES[kind])


def meets(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        return meets(value, target, root)
    kinds = schema.get("type", list(TYPES))
    checks = [any([is_a(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]),
              "enum" not in schema or any([same(value, each) for each in schema["enum"]]),
              "const" not in schema or same(value, schema["const"]),
              "anyOf" not in schema or any([meets(value, each, root) for each in schema["anyOf"]]),
              "allOf" not in schema or all([meets(value, each, root) for each in schema["allOf"]]),
              "oneOf" not in schema or sum([meets(value, each, root) for each in schema["oneOf"]]) == 1]
    if isinstance(value, str):
        checks += [schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)),
                   "pattern" not in schema or re.search(schema["pattern"], value) is not None]
    if isinstance(value, list):
        checks += [schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)),
                   all([meets(each, schema.get("items", True), root) for each in value])]
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        checks += [name in value for name in schema.get("required", [])]
        checks += [meets(each, properties.get(name, more), root) for name, each in value.items()]
    return all(checks)
