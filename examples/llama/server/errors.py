"""Errors that a client gets: a status, one line, and what of the request it is about."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from examples.llama.generate import ContextFull
from examples.llama.server.requests import Busy
from minigrad.errors import FormatError, MinigradError
from minigrad.state.fields import brief, one_line

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's names of kinds of errors; others are of the request below 500 and of the server from there on."""


class ApiError(Exception):
    """Ends a request. `param` names the field that is wrong, `code` the case, for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None,
                 headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, one_line(message), param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """In OpenAI's form."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def unsupported(param: str, message: str) -> ApiError:
    """Of a field that is known and cannot be met."""
    return ApiError(400, message, param, "unsupported_value")


def described(error: MinigradError) -> ApiError:
    """An error of an engine, a template or a schema, as a client gets it."""
    if isinstance(error, Busy):
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": str(max(1, round(
            error.retry_after)))})
    if isinstance(error, ContextFull):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, FormatError):
        return ApiError(400, str(error))
    return ApiError(500, str(error))


_FIELD = re.compile(r"[a-z_0-9]+")


def invalid(error: ValidationError) -> ApiError:
    """Names the first field that is wrong, what was expected there, and what was found."""
    # Of a union every branch complains: the one that got furthest says what was meant.
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['ctx']['error']}", code="invalid_json")
    where = [str(part) for part in first["loc"] if isinstance(part, int) or _FIELD.fullmatch(part)]
    where = [part for part in where if part not in ("str", "int", "float", "bool", "function")] or where[:1]
    param = ".".join(where) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{first['loc'][-1]}: there is no such field here", str(first["loc"][-1]),
                        "unknown_field")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":  # of fields that do not agree; the message may name one
        named, colon, _ = message.partition(": ")
        param = ".".join([*where, named]) if colon and _FIELD.fullmatch(named) else param
        return ApiError(400, message if colon else f"{param or 'the body'}: {message}", param, "invalid_value")
    found = "" if first["type"] == "missing" else f"; got {brief(first['input'])}"
    return ApiError(400, f"{param or 'the body'}: {message[:1].lower()}{message[1:]}{found}", param, "invalid_value")
