"""Prompts of requests, and what is known about their answers beforehand."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from examples.llama.constraint import Constraint, JsonForm
from examples.llama.generate import ContextFull
from examples.llama.server.calls import HERMES, CallForm, call_schema, form_of, instructions
from examples.llama.server.errors import ApiError, unsupported
from examples.llama.server.models import Loaded
from examples.llama.server.schemas import compiled
from examples.llama.server.speech import MARKS, THINK, THOUGHT, Manner
from minigrad.errors import FormatError, MinigradError


@dataclass(frozen=True)
class Asked:
    """A conversation to be answered, as templates have it. `choice` is none, auto, required or a tool's name; `schema`
    that of the answer; `settings` are the template's own; `think` True or False where the client says so.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    one_call: bool = False
    schema: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prompt:
    """The tokens to continue, how to read the answer, and the schema that it has to meet (None: any text)."""

    tokens: list[int]
    manner: Manner
    schema: Any = None
    schema_of: str = "response_format"


def chat_prompt(model: Loaded, asked: Asked) -> Prompt:
    """The prompt of a conversation. Raises ApiError, FormatError, ContextFull."""
    template = model.template
    if template is None:
        raise ApiError(400, "this model has no chat format: it continues texts; use /v1/completions", "messages",
                       "no_chat_format")
    check_length(model, sum([len(message["content"]) for message in asked.messages]))
    tools = [] if asked.choice == "none" else list(asked.tools)
    form = form_of(template.source)
    if form is None and tools:
        raise unsupported("tools", "the calls of this model's chat template are of a form that is not known here")
    form = form or HERMES
    if tools and asked.schema is not None:
        raise unsupported("response_format", "expected tools or a response_format, got both; say tool_choice: none")
    native = "tools" in template.source
    messages = list(asked.messages) if native else _without_tools(asked.messages, tools, form)
    tokens = template.tokens(messages, None, tools if native and tools else None, _settings(template.source, asked))
    if not tokens:
        raise ApiError(400, "the prompt is empty; expected messages with text", "messages")
    manner = Manner(thinks=_ends_with(model, tokens, THINK), stops=asked.stops, one_call=asked.one_call)
    if tools:
        manner = replace(manner, form=form, tools=frozenset([tool["function"]["name"] for tool in tools]))
    schema = asked.schema
    if tools and asked.choice != "auto":
        chosen = [tool for tool in tools if asked.choice in ("required", tool["function"]["name"])]
        schema, manner = call_schema(chosen, form.key), replace(manner, forced=True)
    if manner.thinks and (schema is not None or asked.think is False):
        tokens, manner = tokens + _words(model, f"\n{THOUGHT}\n\n"), replace(manner, thinks=False)
    if manner.forced:
        tokens = tokens + _words(model, form.start + ("\n" if form.end else ""))
    return Prompt(tokens, manner, schema, "tools" if manner.forced else "response_format")


def text_prompt(model: Loaded, text: str | list[int], stops: tuple[str, ...], schema: Any = None) -> Prompt:
    """The prompt of a text that the model continues. Raises ApiError, ContextFull."""
    if isinstance(text, str):
        check_length(model, len(text))
        bos = model.tokenizer.bos
        tokens = [*([] if bos is None else [bos]), *model.tokenizer.encode(text)]
        if not tokens:  # any token that begins a text will do
            tokens = sorted(model.tokenizer.ends)[:1]
    else:
        tokens = text
        wrong = next((token for token in tokens if token >= model.vocabulary), None)
        if wrong is not None:
            raise ApiError(400, f"prompt: expected tokens below {model.vocabulary}, got {wrong}", "prompt",
                           "invalid_value")
    if not tokens:
        raise ApiError(400, "the prompt is empty and the model has no token to start a text; give it some words",
                       "prompt")
    return Prompt(tokens, Manner(reasons=False, stops=stops, continues=bool(text)), schema)


def check_length(model: Loaded, characters: int) -> None:
    """Raises ContextFull where a text is too long whatever its tokens are: cutting it into them would take its time."""
    least = characters // max(1, model.longest)
    if least > model.context:
        raise ContextFull(f"the prompt has more than {least} tokens and the context holds {model.context}")


def room_for(model: Loaded, prompt: Prompt, asked: int | None, most: int) -> int:
    """The most tokens of an answer. Raises ContextFull where there is no room for one."""
    room = model.context - len(prompt.tokens)
    if room < 1:
        raise ContextFull(f"the prompt has {len(prompt.tokens)} tokens and the context holds {model.context}, with the "
                          "answer; shorten the conversation")
    return min(room, most, most if asked is None else asked)


def constraints(model: Loaded, prompt: Prompt, count: int, number: int) -> list[Constraint | None]:
    """For each of some answers, what holds its tokens to the schema. Raises ApiError where none can meet it."""
    if prompt.schema is None:
        return [None] * number
    where = prompt.schema_of
    if prompt.manner.stops:
        raise unsupported("stop", "expected stop or a schema, got both: JSON that is cut off is none")
    try:
        form = JsonForm(compiled(prompt.schema, where), model.tokenizer, model.vocabulary, model.trie)
        return [form.begin(count) for _ in range(number)]
    except FormatError as error:
        raise ApiError(400, str(error), where, "invalid_schema") from None
    except MinigradError as error:
        raise ApiError(400, str(error).replace("ask for more with --count or --context", "ask for more max_tokens"),
                       where, "invalid_schema") from None


def _settings(source: str, asked: Asked) -> dict[str, Any]:
    """The template's own settings, with what the client says of thinking and of effort. Raises ApiError for those that
    this template does not know."""
    settings = dict(asked.settings)
    effort = settings.pop("reasoning_effort", None)
    if effort is not None and "reasoning_effort" in source:
        settings["reasoning_effort"] = effort
    elif effort is not None and "enable_thinking" in source:
        settings["enable_thinking"] = effort != "none"
    elif effort not in (None, "none"):
        raise unsupported("reasoning_effort", "this model's chat template knows no reasoning_effort")
    unknown = next((key for key in settings if key not in source), None)
    if unknown is not None:
        raise unsupported("chat_template_kwargs", f"this model's chat template knows no {unknown}")
    if asked.think is not None and "enable_thinking" in source:
        settings["enable_thinking"] = asked.think
    elif asked.think and THINK not in source:
        raise unsupported("think", "this model's chat template knows no thinking")
    return settings


def _without_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: CallForm
                   ) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they are explained in the system message, and calls and
    what they gave are text."""
    found: list[dict[str, Any]] = []
    for message in messages:
        text = message["content"]
        if message["role"] == "tool":
            found.append({"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"})
        elif message.get("tool_calls"):
            calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
            found.append({"role": "assistant", "content": f"{text}\n{form.written(calls)}".strip()})
        else:
            found.append({"role": message["role"], "content": text})
    if tools:
        system = found.pop(0)["content"] + "\n\n" if found[0]["role"] == "system" else ""
        found.insert(0, {"role": "system", "content": system + instructions(tools)})
    return found


def _ends_with(model: Loaded, tokens: list[int], mark: str) -> bool:
    names = {token: name for name, token in model.tokenizer.special.items() if name in MARKS}
    tail = "".join([names.get(token) or model.tokenizer.token_bytes(token).decode(errors="replace")
                    for token in tokens[-12:]])
    return tail.rstrip().endswith(mark)


def _words(model: Loaded, text: str) -> list[int]:
    """The tokens of a text in which the marks of control tokens are those."""
    special = model.tokenizer.special
    for mark in MARKS:
        if mark in special and mark in text:
            before, _, after = text.partition(mark)
            return [*_words(model, before), special[mark], *_words(model, after)]
    return model.tokenizer.encode(text) if text else []
