"""Connections that do not wait for ever: at most so many, each with so long for the head of a request."""
from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from examples.llama.server.errors import ApiError


def bounded(most: int, seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with these bounds: `most` connections, `seconds` for the head of a request."""

    class Bounded(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self._refuse(ApiError(503, f"{most} connections are open, and no more are taken; try again later",
                                      code="too_many_connections"))
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self.timer is None:
                self._wait()

        def send_400_response(self, msg: str) -> None:
            self._stop()
            self._refuse(ApiError(400, "this is no HTTP request", code="invalid_http"))

        def _wait(self) -> None:
            self.timer = self.loop.call_later(seconds, self._late)

        def _stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self._refuse(ApiError(408, f"the head of the request did not come within {seconds:g} seconds",
                                  code="head_too_slow"))

        def _refuse(self, error: ApiError) -> None:
            """Says why, and closes."""
            body = json.dumps(error.body()).encode()
            head = (f"HTTP/1.1 {error.status} Refused\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nRetry-After: 5\r\nConnection: close\r\n\r\n")
            if not self.transport.is_closing():
                self.transport.write(head.encode() + body)
                self.transport.close()

    return Bounded
