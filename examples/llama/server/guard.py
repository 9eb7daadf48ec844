"""ASGI middleware before all paths: who may ask, from which pages, and what is said of errors.

A page of some other site can have a browser send requests to a server on this machine, or have its own name lead here
(DNS rebinding). So the name that a request gives as its host has to be one of this machine, and the origin of a page
the same, unless it was allowed.
"""
from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from examples.llama.server import ollama_api
from examples.llama.server.errors import ApiError
from examples.llama.server.metrics import Metrics
from examples.llama.server.replies import Json
from examples.llama.server.running import ClientGone

OPEN = ("/health", "/openapi.json")
"""Paths that need no key, besides the page's files: they tell nothing of models and requests."""
KEPT_OUT = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin"}

ROUTED = {404: ("there is no such path", "not_found"), 405: ("this path takes another method", "method_not_allowed")}


@dataclass(frozen=True)
class Rules:
    """API keys (none: everybody may), names of this host and origins of pages that are allowed besides ("*": all)."""

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log: bool = False
    debug: bool = False


class Guard:
    """Lets requests through to `app` by the rules. Who takes nothing of a response for `send_seconds` is given up."""

    def __init__(self, app: ASGIApp, rules: Rules, metrics: Metrics, paths: Sequence[str], page: Sequence[str],
                 send_seconds: float):
        self.app, self.rules, self.metrics, self.send_seconds = app, rules, metrics, send_seconds
        self.paths, self.open = frozenset(paths), frozenset([*OPEN, *page])
        self.keys = [_digest(key) for key in rules.keys]
        name = socket.gethostname().lower()
        short = name.partition(".")[0]
        self.hosts = frozenset(["localhost", name, short, f"{short}.local", *map(str.lower, rules.hosts)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Whatever goes wrong is an error in the API's form."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, began, status = Headers(scope=scope), time.monotonic(), 499
        origin = headers.get("origin")

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in {**KEPT_OUT, **self._shared(origin)}.items():
                    added.setdefault(name, value)
            try:
                async with asyncio.timeout(self.send_seconds):
                    await send(message)
            except TimeoutError:
                raise ClientGone from None

        self.metrics.active.inc()
        try:
            await self._admitted(scope, headers, receive, sending)
        except ClientGone:
            status = 499  # what nginx says of clients that did not wait
        finally:
            self.metrics.active.dec()
            self._note(scope, status, time.monotonic() - began)

    async def _admitted(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._check_host(headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                return await Json({})(scope, receive, sending)
            self._check_key(scope, headers)
            await self.app({**scope, "app": self}, receive, sending)
        except ApiError as error:
            await self._fail(error, scope, receive, sending)
        except HTTPException as error:  # of the router
            text, code = ROUTED.get(error.status_code, ("the request is wrong", None))
            await self._fail(ApiError(error.status_code, text, code=code, headers=error.headers), scope, receive,
                             sending)
        except ClientGone:
            raise
        except Exception as error:
            self._report(error)
            if begun:
                raise ClientGone from None  # nothing more can be said
            await self._fail(ApiError(500, "the server failed; its log has the place"), scope, receive, sending)

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        form = ollama_api.failed(error) if scope["path"].startswith(ollama_api.PREFIX) else error.body()
        await Json(form, error.status, error.headers)(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        if name is None or not (name in self.hosts or "*" in self.hosts or _is_address(name)):
            raise ApiError(403, "the host that the request names is not this one; --allow-host adds a name",
                           code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and not self._allowed(origin) and urlsplit(origin).netloc != host:
            raise ApiError(403, "pages of this origin may not ask this server; --allow-origin adds one",
                           code="wrong_origin")

    def _allowed(self, origin: str) -> bool:
        return origin in self.rules.origins or "*" in self.rules.origins

    def _shared(self, origin: str | None) -> dict[str, str]:
        """Headers that let pages of an allowed origin read responses."""
        if origin is None or not self._allowed(origin):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Max-Age": "600",
                "Access-Control-Allow-Headers": "authorization, content-type",
                "Access-Control-Allow-Methods": "GET, POST"}

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if not self.keys or (scope["path"] in self.open and scope["method"] in ("GET", "HEAD")):
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else "")
        if not any([hmac.compare_digest(given, known) for known in self.keys]):  # all of them, whichever it is
            raise ApiError(401, "expected a header Authorization: Bearer with an API key of this server",
                           code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        if self.rules.log:
            client = (scope.get("client") or ["?"])[0]
            print(f"{client} {scope['method']} {scope['path']!r} {status} {seconds:.2f} s", file=sys.stderr)

    def _report(self, error: Exception) -> None:
        """Says where it failed; what an exception says may be of the request."""
        if self.rules.debug:
            traceback.print_exception(error)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            print(f"serve.py: {type(error).__name__} in {frame.filename}:{frame.lineno}; --debug shows more",
                  file=sys.stderr)


def _digest(key: str) -> bytes:
    """Of one length for every key, so that comparing takes one time."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _host_name(host: str) -> str | None:
    """The name or address in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    """Says whether it is a number: no foreign name can lead here then."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

