"""Calls of tools in the words of models: what they look like in an answer, and how an answer is made to be one.

    Hermes, Qwen      <tool_call>{"name": ..., "arguments": {...}}</tool_call>, maybe several
    Mistral           [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...} of newer ones
    Llama 3           {"name": ..., "parameters": {...}}, as the whole answer; several with ; between
"""
from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.llama.server.errors import ApiError
from examples.llama.server.schemas import compiled
from minigrad.errors import FormatError


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments, JSON as the model wrote it, or as written anew."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: _new_id())


def _new_id() -> str:
    """Of nine letters and digits, as Mistral's templates ask for."""
    return "".join([secrets.choice(string.ascii_letters + string.digits) for _ in range(9)])


@dataclass(frozen=True)
class CallForm:
    """The way a family writes calls: what begins one, what ends it (empty: the answer's end), and the key of arguments.

    `whole` says that a call is an answer from its first character on, and no text stands beside it.
    """

    start: str
    end: str
    key: str = "arguments"
    whole: bool = False

    def parse(self, text: str) -> list[Call] | None:
        """The calls that stand between start and end; None where these are none."""
        try:
            found: list[Any] = []
            for part in text.split(self.start) if self.start else [text]:
                name, mark, rest = part.partition("[ARGS]")
                values = [{"name": name.strip(), self.key: json.loads(rest)}] if mark else self._values(part.strip())
                found += [each for value in values for each in (value if isinstance(value, list) else [value])]
            return [_call(each, self.key) for each in found] or None
        except (ValueError, RecursionError):
            return None

    def _values(self, text: str) -> list[Any]:
        """JSON values one after another, with ; or commas between."""
        decoder, found, at = json.JSONDecoder(), [], 0
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            found.append(value)
            while at < len(text) and text[at] in " \n\t;,":
                at += 1
        return found

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls of an earlier answer as text."""
        return "\n".join([f"{self.start}\n" + json.dumps({"name": name, self.key: arguments}, ensure_ascii=False)
                          + f"\n{self.end}" for name, arguments in calls])


def _call(value: Any, key: str) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


HERMES = CallForm("<tool_call>", "</tool_call>")
MISTRAL = CallForm("[TOOL_CALLS]", "")
LLAMA = CallForm("", "", "parameters", whole=True)


def form_of(source: str) -> CallForm | None:
    """The form of a chat template that is told of tools. None where it is none of these; HERMES where it takes no tools
    at all, as `instructions` explain it to any model."""
    if "tools" not in source or "<tool_call>" in source:
        return HERMES
    if "[TOOL_CALLS]" in source:
        return MISTRAL
    return LLAMA if "ipython" in source or "python_tag" in source else None


def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """Text of a system message that explains tools where the template has no place for them."""
    listed = "\n".join([json.dumps(tool, ensure_ascii=False) for tool in tools])
    return (f"You may call functions. Their signatures, in <tools></tools>:\n<tools>\n{listed}\n</tools>\n"
            "To call one, answer with a JSON object in <tool_call></tool_call>:\n"
            '<tool_call>\n{"name": "the function\'s name", "arguments": {"argument": "value"}}\n</tool_call>')


def call_schema(tools: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The schema of a call of one of the tools, with the arguments that its parameters describe."""
    branches, definitions = [], {}
    for at, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        try:
            compiled(parameters, f"the parameters of {function['name']}")
        except FormatError as error:
            raise ApiError(400, str(error), f"tools.{at}.function.parameters", "invalid_schema") from None
        definitions[str(at)] = _moved(parameters, f"#/$defs/{at}")
        branches.append({"type": "object", "properties": {"name": {"const": function["name"]},
                                                          key: {"$ref": f"#/$defs/{at}"}},
                         "required": ["name", key], "additionalProperties": False})
    return {"anyOf": branches, "$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """A schema with its references, which count from its own root, counted from where it stands now."""
    if isinstance(schema, dict):
        return {key: root + value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#")
                else value if key in ("const", "enum") else _moved(value, root) for key, value in schema.items()}
    return [_moved(inner, root) for inner in schema] if isinstance(schema, list) else schema
