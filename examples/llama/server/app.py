"""The server as an ASGI application: all paths, the page, and what stands before them."""
from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from examples.llama.server import ollama_api, openai_api, openapi
from examples.llama.server.guard import Guard, Rules
from examples.llama.server.metrics import Metrics
from examples.llama.server.models import Models
from examples.llama.server.replies import Json
from examples.llama.server.service import Defaults, Limits, Service

FOLDER = Path(__file__).parent / "page"
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
          "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
          "require-trusted-types-for 'script'; trusted-types 'none'")
"""Lets the page run and fetch what comes from here, and make no HTML of text."""


def make_app(models: Models, limits: Limits, defaults: Defaults, rules: Rules, end_seconds: float) -> ASGIApp:
    """The application; when it ends, engines have `end_seconds` to finish."""
    def stats() -> Mapping[str, Mapping[str, float]]:
        return {entry.name: entry.loaded.engine.stats() for entry in models.entries.values()
                if entry.loaded is not None}

    metrics = Metrics(stats)
    service = Service(models, limits, defaults, metrics)
    described = openapi.description(list(models.entries))

    async def health(request: Request) -> Response:
        return Json({"status": "ok"})

    async def schema(request: Request) -> Response:
        return Json(described)

    async def counts(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        await models.close(end_seconds)

    pages = _page_routes()
    listed = [*openai_api.routes(service), *ollama_api.routes(service), Route("/health", health),
              Route("/openapi.json", schema), Route("/metrics", counts)]
    router = Router([*listed, *pages], redirect_slashes=False, lifespan=lifespan)
    return Guard(router, rules, metrics, [route.path for route in [*listed, *pages]], [each.path for each in pages],
                 limits.send_seconds)


def _page_routes() -> list[Route]:
    """The page's files, read once: no path leads to any other file."""
    return [_file_route(path, FOLDER / (path or "index.html"))
            for path in ("", *sorted([each.name for each in FOLDER.iterdir() if each.name != "index.html"]))]


def _file_route(name: str, path: Path) -> Route:
    data = path.read_bytes()
    kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}

    async def give(request: Request) -> Response:
        return Response(data, media_type=kind, headers=headers)
    return Route(f"/{name}", give)
