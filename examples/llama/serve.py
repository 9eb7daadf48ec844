"""Serve language models: OpenAI's API, Ollama's, and a page to chat on.

    python examples/llama/serve.py                                  SmolLM2-135M-Instruct, on http://127.0.0.1:8000
    python examples/llama/serve.py --model FILE_OR_FOLDER           GGUF, safetensors, Meta's .pth, llama2.c's .bin
    python examples/llama/serve.py --model small=a.gguf --model large=b.gguf --memory 6GB
    python examples/llama/serve.py --host 0.0.0.0 --api-key-file keys.txt     for the house

It answers on this machine only unless --host says more. SIGTERM and Ctrl-C finish what is being answered.
"""
from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

if not __package__:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.llama import memory
from examples.llama.chat import add_loading, at_least
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.config import config
from minigrad.errors import FormatError

UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", action="append", metavar="[NAME=]MODEL",
        help="file or folder, or hf:OWNER/NAME[:FILE]; may be repeated: the first is loaded at once, others when "
             "somebody asks for them (default: SmolLM2-135M-Instruct)")
    add("--memory", type=size,
        help="most memory for models, such as 6GB: unused ones make room for others (default: what is free)")
    add("--cache-memory", type=size, metavar="SIZE",
        help="of keys and values of all conversations, per model (default: 1GB, at most a quarter of --memory)")
    add("--keep-cache", type=Path, metavar="FOLDER",
        help="write what the cache holds of conversations there at the end, and take it up at the start")
    add_loading(parser)
    add("--exact", action="store_true",
        help="multiply quantised weights as floats; by default in integers, which is faster, above all with many "
             "clients, and rounds what they are multiplied with")
    _add_network(parser)
    _add_limits(parser)
    add("--temperature", type=at_least(float, 0), default=0.7, help="where a request does not say (default: 0.7)")
    add("--top-p", type=at_least(float, 0, 1), default=0.95, help="where a request does not say (default: 0.95)")
    add("--log-requests", action="store_true", help="a line for each request: address, path, status, seconds")
    add("--debug", action="store_true", help="show the traceback of an error, which may have parts of requests")
    options = parser.parse_args(arguments)
    options.prompt, options.timing = None, False  # a model says what it takes
    options.quantize_activations = False  # the engine decides
    return options


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("who may ask").add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is the whole house (default: 127.0.0.1)")
    add("--port", type=at_least(int, 0, 65535), default=8000, help="0 takes a free one (default: 8000)")
    add("--api-key", action="append", default=[], metavar="KEY", help="ask for this key; others on this machine may "
        "see it in the list of processes")
    add("--api-key-file", type=Path, metavar="FILE", help="ask for one of the keys in a file, one a line")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name under which this machine is known, besides its own")
    add("--allow-origin", action="append", default=[], metavar="URL",
        help="pages of this origin may ask, such as http://nas:3000; * allows all")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add("--max-tokens", type=at_least(int, 1), default=1 << 31, metavar="N",
        help="most tokens of an answer (default: what the context has room for)")
    add("--max-body", type=size, default=4 << 20, metavar="SIZE", help="of a request (default: 4MB)")
    add("--receive-timeout", type=at_least(float, 0.1), default=30.0, metavar="SECONDS",
        help="for the head of a request, and for its body (default: 30)")
    add("--answer-timeout", type=at_least(float, 0.1), default=600.0, metavar="SECONDS",
        help="an answer ends then, as if its tokens had run out (default: 600)")
    add("--connections", type=at_least(int, 1), default=256, metavar="N", help="open at once (default: 256)")
    add("--running", type=at_least(int, 1), default=16, metavar="N",
        help="requests that are answered at once, per model (default: 16)")
    add("--queue", type=at_least(int, 1), default=64, metavar="N",
        help="requests that wait for a place, per model; others are told to come later (default: 64)")
    add("--end-timeout", type=at_least(int, 0), default=30, metavar="SECONDS",
        help="for what is being answered when the server is to end (default: 30)")


def size(text: str) -> int:
    """Bytes of `6GB`, `512MB` or a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB|)", text.strip().upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 512MB or 6GB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def read_keys(options: argparse.Namespace) -> tuple[str, ...]:
    """The API keys that are named. Raises FormatError, OSError."""
    keys = list(options.api_key)
    if options.api_key_file is not None:
        lines = [line.strip() for line in options.api_key_file.read_text(encoding="utf-8").splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise FormatError(f"{options.api_key_file}: expected API keys, one a line; found none")
        keys += found
    if not all(keys):
        raise FormatError("--api-key: expected a key, got an empty text")
    return tuple(keys)


def run(options: argparse.Namespace) -> int | None:
    try:
        from examples.llama.server import main
    except ModuleNotFoundError as error:
        raise FormatError(f'{error.name} is missing: pip install "minigrad[serve]"') from None
    keys = read_keys(options)
    if options.memory is None:
        options.memory = memory.free_memory()
    with config(**{"device": options.device} if options.device else {}):
        return main.serve(options, keys)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return finish("serve.py", options.debug, lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
