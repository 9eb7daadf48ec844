"""Answers of the server as people read them: reasoning and calls apart, stops, and what is given to models."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served import write_model

pytest.importorskip("pydantic", reason="the server needs pydantic")

from examples.llama.schema import compile_schema
from examples.llama.server.calls import HERMES, LLAMA, MISTRAL, Call, CallForm, call_schema, form_of
from examples.llama.server.errors import ApiError
from examples.llama.server.models import Loaded, name_of
from examples.llama.server.ollama_api import chat_part
from examples.llama.server.prompts import Asked, chat_prompt, text_prompt
from examples.llama.server.requests import Step
from examples.llama.server.speech import Manner, Piece, Speech, Until
from examples.llama.templates import CHATML, Template
from examples.llama.tokenizer import Tokenizer
from examples.llama.tokenizer_files import load_tokenizer
from minigrad.errors import FormatError, MinigradError


class FakeEngine:
    """Of a context; nothing is asked of it."""

    context = 400

    def submit(self, request: Any) -> Any:
        raise AssertionError

    def embed(self, prompt: Any) -> np.ndarray:
        raise AssertionError

    def stats(self) -> dict[str, float]:
        return {}

    def close(self, seconds: float) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture
def model(tokenizer: Tokenizer, folder: Path) -> Loaded:
    template = Template((folder / "chat_template.jinja").read_text(), tokenizer)
    return Loaded(tokenizer, template, FakeEngine(), tokenizer.size)


def steps_of(tokenizer: Tokenizer, text: str) -> list[Step]:
    """Tokens of a text in which the names of control tokens are those."""
    found: list[int] = []
    while text:
        name = next((name for name in tokenizer.special if text.startswith(name)), None)
        found += [tokenizer.special[name]] if name else tokenizer.encode(text[0])
        text = text[len(name or text[0]):]
    return [Step(token) for token in found]


def read(tokenizer: Tokenizer, text: str, manner: Manner, at_once: int) -> Piece:
    """The whole of an answer that comes in pieces of some tokens."""
    speech, steps = Speech(tokenizer, manner), steps_of(tokenizer, text)
    pieces = [speech.add(steps[at:at + at_once]) for at in range(0, len(steps), at_once)] + [speech.finish()]
    return Piece("".join([p.text for p in pieces]), "".join([p.reasoning for p in pieces]),
                 tuple([call for p in pieces for call in p.calls]))


WEATHER = '{"name": "weather", "arguments": {"city": "Bern"}}'
TIME = '{"name": "time", "arguments": {}}'
TOOLS = frozenset(["weather", "time"])
ANSWERS: dict[str, tuple[str, Manner, tuple[str, str, list[str]]]] = {
    "text": ("Hello  there", Manner(), ("Hello  there", "", [])),
    "reasoning": ("<think>\nso\n</think>\n\nHello", Manner(), ("Hello", "\nso\n", [])),
    "reasoning from the start": ("so</think>\n\nHello", Manner(thinks=True), ("Hello", "so", [])),
    "reasoning without an end": ("so it is", Manner(thinks=True), ("", "so it is", [])),
    "a name later on is text": ("a <think>b", Manner(), ("a <think>b", "", [])),
    "not of a completion": ("<think>b", Manner(reasons=False), ("<think>b", "", [])),
    "a call": (f"<tool_call>\n{WEATHER}\n</tool_call>", Manner(form=HERMES, tools=TOOLS), ("", "", ["weather"])),
    "text and two calls": (f"I ask.<tool_call>{WEATHER}</tool_call>\n<tool_call>{TIME}</tool_call>",
                           Manner(form=HERMES, tools=TOOLS), ("I ask.", "", ["weather", "time"])),
    "the first call only": (f"<tool_call>{WEATHER}</tool_call>\n<tool_call>{TIME}</tool_call>",
                            Manner(form=HERMES, tools=TOOLS, one_call=True), ("", "", ["weather"])),
    "reasoning and a call": (f"<think>x</think><tool_call>{TIME}</tool_call>", Manner(form=HERMES, tools=TOOLS),
                             ("", "x", ["time"])),
    "a call that was cut off": (f"<tool_call>{WEATHER[:20]}", Manner(form=HERMES, tools=TOOLS),
                                (f"<tool_call>{WEATHER[:20]}</tool_call>", "", [])),
    "a call of nothing known": (f"<tool_call>{TIME}</tool_call>", Manner(form=HERMES, tools=frozenset(["other"])),
                                (f"<tool_call>{TIME}</tool_call>", "", [])),
    "no tools": (f"<tool_call>{TIME}</tool_call>", Manner(), (f"<tool_call>{TIME}</tool_call>", "", [])),
    "Mistral's": (f"[TOOL_CALLS][{WEATHER}, {TIME}]", Manner(form=MISTRAL, tools=TOOLS), ("", "", ["weather", "time"])),
    "newer Mistral's": ('[TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]time[ARGS]{}',
                        Manner(form=MISTRAL, tools=TOOLS), ("", "", ["weather", "time"])),
    "Llama's": ('{"name": "weather", "parameters": {"city": "Bern"}}; ' + TIME, Manner(form=LLAMA, tools=TOOLS),
                ("", "", ["weather", "time"])),
    "JSON that is no call": ('{"city": "Bern"}', Manner(form=LLAMA, tools=TOOLS), ('{"city": "Bern"}', "", [])),
    "a forced call": (WEATHER, Manner(form=HERMES, tools=TOOLS, forced=True), ("", "", ["weather"])),
    "a stop": ("one two three", Manner(stops=("two", "three")), ("one ", "", [])),
    "a stop in reasoning is none": ("two</think>one two", Manner(thinks=True, stops=("two",)), ("one ", "two", [])),
    "the start of a stop": ("one tw", Manner(stops=("two",)), ("one tw", "", [])),
    "a character of several tokens": ("gr\u00fc\u00df \U0001f999", Manner(), ("gr\u00fc\u00df \U0001f999", "", [])),
}


@pytest.mark.parametrize("at_once", [1, 3, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read(name: str, at_once: int, tokenizer: Tokenizer) -> None:
    text, manner, (shown, reasoning, calls) = ANSWERS[name]
    piece = read(tokenizer, text, manner, at_once)
    assert (piece.text, piece.reasoning, [call.name for call in piece.calls]) == (shown, reasoning, calls)
    for call in piece.calls:
        assert json.loads(call.arguments) == ({"city": "Bern"} if call.name == "weather" else {})
        assert len(call.id) == 9 and call.id.isalnum()


def test_text_is_shown_as_soon_as_it_can_be() -> None:
    until = Until(["<tool_call>", "</x>"])
    assert until.add("a <to") == ("a ", None, "") and until.add("ad") == ("<toad", None, "")
    assert until.add("<tool_call") == ("", None, "") and until.add("> b") == ("", "<tool_call>", " b")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"name": 1}', '{"name": "f", "arguments": 1}', '"f"', "null",
                                  '{"name": "f", "arguments": "{"}', "[" * 100_000, "{} x"])
def test_what_is_no_call(text: str) -> None:
    assert HERMES.parse(text) is None


@pytest.mark.parametrize("source, form", [(CHATML, HERMES), ("{{ tools }}<tool_call>", HERMES),
                                          ("{{ tools }}[TOOL_CALLS]", MISTRAL), ("{{ tools }} ipython", LLAMA),
                                          ("{{ tools }}", None)])
def test_forms_of_templates(source: str, form: CallForm | None) -> None:
    assert form_of(source) is form


def test_schemas_of_calls_have_their_own_references() -> None:
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"],
                  "$defs": {"A": {"enum": ["#/$defs/A"]}}, "additionalProperties": False}
    tools: list[dict[str, Any]] = [{"function": {"name": "f", "parameters": parameters}}, {"function": {"name": "g"}}]
    schema = call_schema(tools, "arguments")
    compile_schema(schema)
    assert schema["$defs"]["0"]["properties"]["a"] == {"$ref": "#/$defs/0/$defs/A"}
    assert schema["$defs"]["0"]["$defs"]["A"] == {"enum": ["#/$defs/A"]}
    with pytest.raises(ApiError, match="the parameters of f: #: 'not' is not supported"):
        call_schema([{"function": {"name": "f", "parameters": {"not": {}}}}], "arguments")


HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "time", "description": "<|im_end|>"}}


def test_tools_are_part_of_the_prompt(model: Loaded) -> None:
    prompt = chat_prompt(model, Asked([HELLO], [TOOL]))
    text = "".join([model.tokenizer.decode([token]) for token in prompt.tokens])
    assert '"name": "time"' in text and prompt.manner.form is HERMES and prompt.manner.tools == {"time"}
    end = model.tokenizer.special["<|im_end|>"]
    assert prompt.tokens.count(end) == 2  # what a description says is text
    assert chat_prompt(model, Asked([HELLO], [TOOL], "none")).tokens == chat_prompt(model, Asked([HELLO])).tokens
    forced = chat_prompt(model, Asked([HELLO], [TOOL], "time"))
    assert forced.tokens[:-2] == prompt.tokens and forced.tokens[-2] == model.tokenizer.special["<tool_call>"]
    assert forced.schema["anyOf"][0]["properties"]["name"] == {"const": "time"}


def test_tools_are_explained_where_the_template_has_none(model: Loaded) -> None:
    model.template = Template(CHATML, model.tokenizer)
    calls = [{"id": "1", "type": "function", "function": {"name": "time", "arguments": {"a": 1}}}]
    messages: list[dict[str, Any]] = [HELLO, {"role": "assistant", "content": "", "tool_calls": calls},
                                      {"role": "tool", "content": "noon"}]
    text = model.tokenizer.decode(chat_prompt(model, Asked(messages, [TOOL])).tokens)
    assert text.startswith("system\nYou may call functions.") and '"name": "time"' in text
    assert '<tool_call>\n{"name": "time", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "user\n<tool_response>\nnoon\n</tool_response>" in text


def test_thinking_begins_in_the_prompt(model: Loaded) -> None:
    think, thought = (model.tokenizer.special[name] for name in ("<think>", "</think>"))
    plain = chat_prompt(model, Asked([HELLO]))
    assert not plain.manner.thinks and think not in plain.tokens
    thinking = chat_prompt(model, Asked([HELLO], think=True))
    assert thinking.manner.thinks and thinking.tokens[:-2] == plain.tokens
    assert chat_prompt(model, Asked([HELLO], settings={"reasoning_effort": "low"})) == thinking
    bound = chat_prompt(model, Asked([HELLO], think=True, schema={"type": "object"}))
    assert not bound.manner.thinks and bound.tokens.index(think) < bound.tokens.index(thought)


@pytest.mark.parametrize("asked, message", [
    (Asked([HELLO], settings={"shout": True}), "knows no shout"),
    (Asked([HELLO], [TOOL], schema={}), "expected tools or a response_format, got both"),
    (Asked([{"role": "user", "content": "x" * 100_000}]), "the context holds 400"),
])
def test_what_cannot_be_met_is_refused(asked: Asked, message: str, model: Loaded) -> None:
    with pytest.raises((ApiError, MinigradError), match=message):
        chat_prompt(model, asked)


def test_tools_of_an_unknown_form_are_refused(model: Loaded) -> None:
    model.template = Template("{{ tools }}{{ messages[0].content }}", model.tokenizer)
    assert chat_prompt(model, Asked([HELLO])).tokens
    with pytest.raises(ApiError, match="of a form that is not known here"):
        chat_prompt(model, Asked([HELLO], [TOOL]))


def test_texts_and_tokens_are_continued(model: Loaded) -> None:
    assert text_prompt(model, "Hello", ()).tokens == [*([] if model.tokenizer.bos is None else [model.tokenizer.bos]),
                                                      *model.tokenizer.encode("Hello")]
    assert text_prompt(model, [5, 6], ()).tokens == [5, 6] and text_prompt(model, "", ()).tokens
    with pytest.raises(ApiError, match=f"expected tokens below {model.vocabulary}, got 99999"):
        text_prompt(model, [5, 99999], ())


@pytest.mark.parametrize("text, name, path", [
    (None, "SmolLM2-135M-Instruct", None), ("a=/x/b.gguf", "a", "/x/b.gguf"), ("/x/b.gguf", "b", "/x/b.gguf"),
    ("/x/my model/", "my-model", "/x/my model/"), ("hf:o/n:f.gguf", "f", "hf:o/n:f.gguf"), ("a:7b=m", "a:7b", "m"),
    ("/x/a=b/c", "c", "/x/a=b/c")])
def test_names_of_models(text: str | None, name: str, path: str | None) -> None:
    assert name_of(text) == (name, path)


@pytest.mark.parametrize("text", ["a b=x", "=x", "a="])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(FormatError, match="expected --model NAME=PATH"):
        name_of(text)


def test_calls_in_the_form_of_ollama() -> None:
    piece = Piece(reasoning="so", calls=(Call("weather", '{"city": "Bern"}', "1"),))
    assert chat_part(piece) == {"message": {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [
        {"id": "1", "function": {"name": "weather", "arguments": {"city": "Bern"}}}]}}
