"""Bodies of requests: what clients may ask for, with the bounds of every field.

A field that is not here is an error, and so is a value that cannot be met. Those said to have no effect are for the
services of others: they name who asks, and change no answer.
"""
from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_CHOICES = 16
Text = Annotated[str, Field(max_length=10_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=16)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Nothing = Annotated[dict[str, Any], Field(max_length=0)]
Token = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Tokens = Annotated[list[Token], Field(min_length=1)]


class Body(BaseModel):
    """An object whose fields are all known and of the right type: "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Sampling(Body):
    """The choice of tokens; what is absent or null is the server's own default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Common(Sampling):
    """Fields that OpenAI's chats and completions have in common. `user` has no effect."""

    model: Name
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Annotated[str, Field(max_length=1000)] | Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Nothing | None = None
    user: Text | None = None

    def stops(self) -> list[str]:
        return [] if not self.stop else [self.stop] if isinstance(self.stop, str) else self.stop

    @model_validator(mode="after")
    def _options_are_of_streams(self) -> Common:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for streams; expected them with stream: true")
        return self


# Conversations


class TextPart(Body):
    type: Literal["text"]
    text: Text


class CalledFunction(Body):
    name: Name
    arguments: Text | dict[str, Any] = "{}"


class ToolCall(Body):
    id: Text | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class Message(Body):
    """`name` has no effect: templates have no place for it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("expected content, or tool_calls of the assistant")
        return self

    def text(self) -> str:
        parts = self.content or ""
        return parts if isinstance(parts, str) else "".join([part.text for part in parts])


class Function(Body):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    """`name`, `description` and `strict` have no effect: every answer meets the schema."""

    name: Text | None = None
    description: Text | None = None
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> Format:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("expected json_schema with the type json_schema, and only there")
        if self.json_schema is not None and self.json_schema.json_schema is None:
            raise ValueError("expected a schema in json_schema")
        return self

    def schema_asked(self) -> Any:
        """The schema of answers; None for any text."""
        if self.json_schema is not None:
            return self.json_schema.json_schema
        return {"type": "object"} if self.type == "json_object" else None


class Chat(Common):
    """/v1/chat/completions. Without effect: metadata, prompt_cache_key, safety_identifier, service_tier, store."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Format | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    chat_template_kwargs: dict[Name, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Chat:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: expected logprobs: true beside it")
        named = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice: expected tools beside it")
        if named is not None and named not in [tool.function.name for tool in self.tools or ()]:
            raise ValueError(f"tool_choice: there is no tool {json.dumps(named)[:80]} among tools")
        return self


class Completion(Common):
    """/v1/completions."""

    prompt: Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1, max_length=MOST_CHOICES)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [list(self.prompt)] if isinstance(self.prompt[0], int) else list(self.prompt)

    @model_validator(mode="after")
    def _fields_agree(self) -> Completion:
        if len(self.prompts()) * (self.n or 1) > MOST_CHOICES:
            raise ValueError(f"prompt: expected at most {MOST_CHOICES} answers, of all prompts together")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo: log-probabilities of prompts are not computed; expected echo or logprobs")
        return self


class Embeddings(Body):
    """/v1/embeddings; `user` has no effect."""

    model: Name
    input: Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: Text | None = None

    def texts(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        return [list(self.input)] if isinstance(self.input[0], int) else list(self.input)


# Ollama's


class Options(Body):
    """Ollama's options that this server has."""

    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    num_predict: Annotated[int, Field(ge=-2, le=1 << 31)] | None = None
    num_ctx: Count | None = None
    num_keep: int | None = None
    stop: Stops | None = None


class OllamaBody(Body):
    """`keep_alive` has no effect: models stay until others need their memory."""

    model: Name
    stream: bool | None = None
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | None = None
    keep_alive: Text | float | None = None

    def schema_asked(self) -> Any:
        return {"type": "object"} if self.format == "json" else self.format or None


class OllamaCall(Body):
    id: Text | None = None
    function: OllamaFunction


class OllamaFunction(Body):
    name: Name
    arguments: dict[str, Any] = {}
    index: int | None = None


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: Text | None = None
    tool_call_id: Text | None = None
    images: Annotated[list[Any], Field(max_length=0)] | None = None


class OllamaChat(OllamaBody):
    """/api/chat."""

    messages: Annotated[list[OllamaMessage], Field(min_length=1, max_length=10_000)]
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None


class OllamaGenerate(OllamaBody):
    """/api/generate."""

    prompt: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    template: Annotated[str, Field(max_length=0)] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None
    images: Annotated[list[Any], Field(max_length=0)] | None = None


class OllamaEmbed(Body):
    """/api/embed; `keep_alive` has no effect."""

    model: Name
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2048)]
    truncate: bool | None = None
    options: Options | None = None
    keep_alive: Text | float | None = None
    dimensions: Count | None = None


class OllamaShow(Body):
    """/api/show; older clients say `name`."""

    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None

    def named(self) -> str:
        return self.model or self.name or ""
