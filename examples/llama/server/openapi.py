"""The description of the API, as OpenAPI has it, from the bodies that requests are read by."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from examples.llama.server import wire

BODIES: dict[str, tuple[type[BaseModel], str, str]] = {
    "/v1/chat/completions": (wire.Chat, "Answer a conversation", "text/event-stream"),
    "/v1/completions": (wire.Completion, "Continue a text", "text/event-stream"),
    "/v1/embeddings": (wire.Embeddings, "Embed texts", ""),
    "/api/chat": (wire.OllamaChat, "Answer a conversation, as Ollama has it", "application/x-ndjson"),
    "/api/generate": (wire.OllamaGenerate, "Answer a question, as Ollama has it", "application/x-ndjson"),
    "/api/embed": (wire.OllamaEmbed, "Embed texts, as Ollama has it", ""),
    "/api/show": (wire.OllamaShow, "Describe a model, as Ollama has it", "")}
GETS = {"/v1/models": "List the models", "/v1/models/{name}": "Describe a model",
        "/api/tags": "List the models, as Ollama has it", "/api/ps": "List the models that are loaded",
        "/api/version": "Say which version this is", "/health": "Say that the server answers",
        "/openapi.json": "Say what can be asked"}
VERSION = "0"
with suppress(PackageNotFoundError):  # run from a folder where nothing is installed
    VERSION = version("minigrad")
STATUSES = {"400": "The request is wrong", "401": "There is no valid API key", "403": "The host or origin is wrong",
            "404": "There is no such model", "408": "The request came too slowly", "413": "The body is too large",
            "429": "Too many requests wait", "503": "The model cannot be loaded now"}


def description(models: Sequence[str]) -> dict[str, Any]:
    """All paths with the schemas of what they take, of a server with these models."""
    kinds = [kind for kind, _, _ in BODIES.values()]
    schemas, shared = models_json_schema([(kind, "validation") for kind in kinds],
                                         ref_template="#/components/schemas/{model}")
    for body in shared.get("$defs", {}).values():
        if "model" in body.get("properties", {}):
            body["properties"]["model"] = {"type": "string", "enum": list(models), "title": "Model"}
    named = {kind: schemas[kind, "validation"] for kind in kinds}
    error = {"type": "object", "required": ["error"]}
    failures = {status: {"description": text, "content": {"application/json": {"schema": error}}}
                for status, text in STATUSES.items()}
    paths: dict[str, Any] = {}
    for path, (kind, summary, stream) in BODIES.items():
        paths[path] = {"post": {
            "summary": summary, "requestBody": {"required": True, "content": {"application/json": {
                "schema": named[kind]}}}, "responses": {"200": _success(stream), **failures}}}
    for path, summary in GETS.items():
        parameters = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {"get": {"summary": summary, "responses": {"200": _success(""), **failures},
                               **({"parameters": parameters} if "{name}" in path else {})}}
    text = {"description": "Lines of text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    paths["/metrics"] = {"get": {"summary": "Counts for Prometheus", "responses": {"200": text, **failures}}}
    return {"openapi": "3.1.0", "info": {"title": "minigrad", "version": VERSION}, "paths": paths,
            "components": {"schemas": shared.get("$defs", {}),
                           "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
            "security": [{"key": []}, {}]}


def _success(stream: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {"description": "The answer", "content": {**content, **({stream: {"schema": {}}} if stream else {})}}
