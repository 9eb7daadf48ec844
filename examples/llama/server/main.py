"""Begins a server and ends it: models, sockets, signals."""
from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import uvicorn

from examples.llama.server.app import make_app
from examples.llama.server.connections import bounded
from examples.llama.server.guard import Rules
from examples.llama.server.models import Loaded, Models, check_budget, find_models, load, needs_of
from examples.llama.server.service import Defaults, Limits
from minigrad.errors import FormatError

KEEP_SECONDS = 20
"""That a connection is kept without a request: longer than clients do, which would ask just when it closes."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(options: argparse.Namespace, keys: tuple[str, ...]) -> int:
    """Serves until a signal comes; returns the exit status. Raises MinigradError, OSError where it cannot begin."""
    paths = find_models(options.model or [None])

    kept = options.keep_cache
    if kept is not None:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)  # the tokens of what people said are in there

    def make(name: str, path: Path) -> Loaded:
        return load(path, options, None if kept is None else kept / f"{name}.safetensors")

    def needs(path: Path) -> int:
        found = needs_of(path, options)
        return 0 if found is None else found.total

    models = Models(paths, make, needs, options.memory)
    check_budget(models.entries, options.memory)
    taken = listen(options.host, options.port)  # before a model is read for nothing
    if not keys and options.host not in LOOPBACK:
        print("serve.py: everybody who can reach this machine may use it: --api-key-file asks for a key",
              file=sys.stderr)
    limits = Limits(options.max_body, options.receive_timeout, options.answer_timeout, options.max_tokens)
    rules = Rules(keys, (*options.allow_host, options.host), tuple(options.allow_origin), options.log_requests,
                  options.debug)
    app = make_app(models, limits, Defaults(options.temperature, options.top_p), rules, options.end_timeout)
    config = uvicorn.Config(app, http=bounded(options.connections, options.receive_timeout), ws="none", lifespan="on",
                            log_config=None, log_level="critical", access_log=False, server_header=False,
                            timeout_graceful_shutdown=options.end_timeout, timeout_keep_alive=KEEP_SECONDS, backlog=128)
    with taken:
        models.begin()  # here, where Ctrl-C ends it at once
        return asyncio.run(_serve(uvicorn.Server(config), models, taken))


async def _serve(server: uvicorn.Server, models: Models, taken: socket.socket) -> int:
    host, port = taken.getsockname()[:2]
    print(f"{', '.join(models.entries)}: http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr,
          flush=True)
    # uvicorn sends itself the signal again when it has ended, for those who wait for it; here it has done its work.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    await server.serve(sockets=[taken])
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A socket that nobody else has. Raises FormatError where there is none."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with ExitStack() as failed:
            found = failed.enter_context(socket.socket(family, socket.SOCK_STREAM))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
            failed.pop_all()
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"--host {host} --port {port}: cannot listen there: {reason}; choose another") from None
    return found
