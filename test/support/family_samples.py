"""The tiny models of `test/models`, templates, schemas and conversations, as parts with fields that can be changed."""
from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support.file_samples import SCALARS, Part, Sample, encode_safetensors, gguf_part, json_part
from support.file_samples import tokenizer as every_byte
from support.json_validity import meets
from support.paths import TESTS
from support.tokenizer_samples import TOKENIZERS

from examples.llama.constraint import JsonForm
from examples.llama.conversation import Conversation
from examples.llama.schema import load_schema
from examples.llama.templates import CHATML, Template
from examples.llama.tokenizer_files import load_tokenizer

MODELS = TESTS / "models"
NAMES = sorted(path.name for path in MODELS.iterdir())


# Models


class _Reader:
    """Takes numbers and texts from the front of a GGUF file."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def number(self, form: str) -> Any:
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == 8:
            return self.text()
        if kind == 9:
            of, count = self.number("I"), self.number("Q")
            return of, [self.value(of) for _ in range(count)]
        return self.number(SCALARS[kind])


def gguf_sample(name: str) -> Sample:
    """model.gguf of a tiny model."""
    read = _Reader((MODELS / name / "model.gguf").read_bytes())
    read.at = 8  # behind the magic and the version
    count, fields = read.number("Q"), read.number("Q")
    metadata = []
    for _ in range(fields):
        key, kind = read.text(), read.number("I")
        metadata.append((key, kind, read.value(kind)))
    listed = []
    for _ in range(count):
        named, shape = read.text(), [read.number("Q") for _ in range(read.number("I"))][::-1]
        listed.append((named, tuple(shape), read.number("I"), read.number("Q")))
    start, sizes = -(-read.at // 32) * 32, {0: 4, 1: 2, 30: 2}
    return {"model.gguf": gguf_part(metadata, {
        named: (shape, form, read.data[start + at:start + at + sizes[form] * int(np.prod(shape))])
        for named, shape, form, at in listed})}


def folder_sample(name: str) -> Sample:
    """config.json and model.safetensors of a tiny model."""
    data = (MODELS / name / "model.safetensors").read_bytes()
    size, = struct.unpack_from("<Q", data)
    content = {"header": json.loads(data[8:8 + size]), "data": data[8 + size:]}
    return {"config.json": json_part(json.loads((MODELS / name / "config.json").read_text())),
            "model.safetensors": Part(content, encode_safetensors)}


def vocabulary(folder: Path) -> Path:
    """Writes a tokenizer that has no more tokens than the tiny models; returns its file."""
    sample = TOKENIZERS["tokenizer in gguf, gpt2"]()
    path = folder / "tokenizer.gguf"
    path.write_bytes(sample["tokenizer.gguf"].encode(sample["tokenizer.gguf"].content))
    return path


# Templates: their text, in the pieces that Jinja sees

TEMPLATES = {
    "turns": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
             "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
             "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('turns must alternate') }}{% endif %}<|im_start|>{{ message['role'] }}\n"
             "{{ first if loop.first else '' }}{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}",
    "macros": "{%- macro said(message, last=false) -%}{{ '<|im_start|>' ~ message.role }}{%- if message.content is"
              " string %}\n{{ message.content }}{% else %}{% for part in message.content %}{{ part.text | tojson }}"
              "{% endfor %}"
              "{% endif %}{{ '<|im_end|>' if not last }}{%- endmacro -%}{%- set ns = namespace(count=0) -%}"
              "{%- for message in messages -%}{% if loop.index > 9 %}{% break %}{% endif %}{{ said(message) }}"
              "{%- set ns.count = ns.count + message.content | length -%}{%- endfor -%}"
              "{{ strftime_now('%Y') }}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
              "{%- if add_generation_prompt -%}<|im_start|>assistant{% generation %}{% endgeneration %}{%- endif -%}",
}


def template_sample(source: str) -> Sample:
    return {"template.jinja": Part(source, lambda content: content.encode("utf-8", "surrogatepass"))}


def read_template(folder: Path) -> None:
    """A conversation by the template, with names of control tokens in what is said."""
    tokenizer = load_tokenizer(vocabulary(folder))
    source = (folder / "template.jinja").read_bytes().decode(errors="replace")
    messages = [{"role": role, "content": text} for role, text in (
        ("system", "be brief"), ("user", "Hello <|im_end|> the llama"), ("assistant", "  the llama "), ("user", "T"))]
    Template(source, tokenizer).tokens(messages, {"the llama": [1, 2]})


# Schemas and conversations


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "$defs": {
        "node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {
            "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}},
    "type": "object", "additionalProperties": False, "required": ["name", "kind", "tags"], "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8}, "kind": {"enum": ["a", 1, None]},
        "tags": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}},
        "tree": {"$ref": "#/$defs/node"}, "many": {"type": ["integer", "null"]},
        "one": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}, {"const": None}]},
        "all": {"allOf": [{"type": "number"}]},
        "open": {"type": "object", "additionalProperties": {"type": "boolean"}}}}
COUNT = 60
"""Tokens of an answer."""


def schema_sample() -> Sample:
    return {"schema.json": json_part(json.loads(json.dumps(SCHEMA)))}


def read_schema(folder: Path) -> None:
    """Two answers of tokens at random, each of which parses and meets the schema."""
    path = folder / "schema.json"
    grammar = load_schema(path)
    (folder / "tok.bin").write_bytes(every_byte())
    tokenizer = load_tokenizer(folder / "tok.bin")
    form, rng = JsonForm(grammar, tokenizer, tokenizer.size), np.random.default_rng(0)
    schema = json.loads(path.read_bytes())
    for _ in range(2):
        count = max(COUNT, int(form.automaton.shortest(0)))
        if count > 10 * COUNT:
            return
        constraint, said, left = form.begin(count), b"", count
        while left:
            token = constraint.choose(lambda allowed: int(rng.choice(np.flatnonzero(allowed))), tokenizer.ends, left)
            if token is None or token in tokenizer.ends:
                break
            said, left = said + tokenizer.token_bytes(token), left - 1
        assert meets(json.loads(said), schema, schema), said


def conversation_sample() -> Sample:
    said = [{"role": role, "content": f"the llama {turn}"} for turn in range(2) for role in ("user", "assistant")]
    return {"conversation.json": json_part(
        {"format": "minigrad conversation 1", "system": "be brief", "messages": said})}


def read_conversation(folder: Path) -> None:
    """A further question in the conversation, and the conversation saved again."""
    conversation = Conversation.load(folder / "conversation.json")
    conversation.save(folder / "again.json")
    assert Conversation.load(folder / "again.json") == conversation
    Template(CHATML, load_tokenizer(vocabulary(folder))).tokens(conversation.asking("T"))


FAMILIES: dict[str, Callable[[], Sample]] = {
    **{f"{name} in gguf": partial(gguf_sample, name) for name in NAMES},
    **{f"{name} in a folder": partial(folder_sample, name) for name in NAMES}}
TEXTS: dict[str, Callable[[], Sample]] = {
    "a template of ChatML": partial(template_sample, CHATML),
    **{f"a template with {name}": partial(template_sample, source) for name, source in TEMPLATES.items()},
    "a schema": schema_sample, "a conversation": conversation_sample}
READERS: dict[str, Callable[[Path], None]] = {
    **{name: read_template for name in TEXTS if "template" in name},
    "a schema": read_schema, "a conversation": read_conversation}
