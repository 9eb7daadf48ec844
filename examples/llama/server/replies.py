"""Responses that end when their client goes away: JSON that is still being made, and streams of events or lines."""
from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from examples.llama.server.errors import ApiError
from examples.llama.server.running import Run, unless_gone

Value = Mapping[str, Any]


def dumped(value: Any) -> bytes:
    """JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class Json(Response):
    """A value as it is."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumped(content)


class Whole(Response):
    """The value that `work` makes of a run, as JSON."""

    def __init__(self, run: Run, work: Callable[[], Awaitable[Value]]):
        self.run, self.work, self.background = run, work, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it. Raises ApiError before anything is sent."""
        async def made() -> Value:
            return await self.work()
        try:
            value = await unless_gone(receive, made())
        finally:
            await self.run.close()
        await Json(value)(scope, receive, send)


class Stream(Response):
    """The values of an iterator as server-sent events, which end with [DONE], or as lines of JSON.

    An error after the start is the last value.
    """

    def __init__(self, run: Run, values: AsyncIterator[Value], events: bool, failed: Callable[[ApiError], Value]):
        self.run, self.values, self.events, self.failed = run, values, events, failed
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them as they come."""
        kind = b"text/event-stream" if self.events else b"application/x-ndjson"
        headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]

        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def work() -> None:
            try:
                async for value in self.values:
                    await body(self._written(value))
            except ApiError as error:
                await body(self._written(self.failed(error)))
            await body(b"data: [DONE]\n\n" if self.events else b"", False)

        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await unless_gone(receive, work())
        finally:
            await self.run.close()

    def _written(self, value: Value) -> bytes:
        return b"data: " + dumped(value) + b"\n\n" if self.events else dumped(value) + b"\n"
