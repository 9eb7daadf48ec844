"""Chat with a language model.

    python examples/llama/chat.py                                  SmolLM2-135M-Instruct, fetched on first use
    python examples/llama/chat.py --prompt "What is a compiler?"   one answer
    python examples/llama/chat.py --model FILE_OR_FOLDER           GGUF, safetensors, Meta's .pth, llama2.c's .bin
    python examples/llama/chat.py --model hf:OWNER/NAME[:FILE]     from the Hugging Face Hub

Ctrl-C stops an answer; a second one, or one at the prompt, leaves. /help lists what can be typed besides questions.
"""
from __future__ import annotations

import argparse
import math
import signal
import sys
from pathlib import Path

if not __package__:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have started us ignoring it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are imported Ctrl-C ends us without a traceback

from examples.llama.assistant import Assistant
from examples.llama.checkpoint import DTYPES
from examples.llama.memory import CACHE_BITS
from examples.llama.model import DEFAULT_CONTEXT
from examples.llama.schema import SUPPORTED
from examples.llama.terminal import Terminal, load
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.config import config


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="file or folder with the weights, or hf:OWNER/NAME[:FILE] (default: SmolLM2-135M-Instruct)")
    add("--tokenizer", type=Path, help="file or folder (default: the one that comes with the model)")
    add("--prompt", help="answer this and exit")
    add("--system", help="the system message (default: the model's own)")
    add("--load", metavar="FILE", help="take up the conversation that /save wrote")
    add("--count", type=at_least(int, 1), default=512, help="most tokens in an answer (default: 512)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end an answer before this text; may be repeated")
    add("--json-schema", type=Path, metavar="FILE",
        help=f"answer with JSON that this schema takes, of at most --count tokens; supported: {SUPPORTED}")
    _add_sampling(parser)
    add("--draft", metavar="MODEL", help="a smaller model with the same tokens, which guesses what is verified")
    add("--no-speculation", action="store_true",
        help="never guess tokens from the text so far (which changes the speed, not the answers)")
    add_loading(parser)
    add("--quantize-activations", action="store_true",
        help="multiply quantised weights in integers: faster, rounds what they are multiplied with, which changed "
             "SmolLM2's mean negative log-likelihood of a text by at most 0.007 in every format measured")
    add("--timing", action="store_true", help="print speeds after every answer")
    add("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(arguments)
    if options.stop and options.json_schema:
        parser.error("expected --stop or --json-schema, got both: JSON that is cut off is none")
    return options


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Adds options for loading a model and for the device that it runs on."""
    add = parser.add_argument
    add("--context", type=at_least(int, 2), default=DEFAULT_CONTEXT,
        help=f"most tokens in a conversation (default: {DEFAULT_CONTEXT}, at most the model's own)")
    add("--weights-dtype", choices=DTYPES, help="convert weight matrices to this (default: as the file has them)")
    add("--cache-type", choices=tuple(CACHE_BITS), default="float16",
        help="keep keys and values as this (default: float16, half of float32's memory; int8 takes a quarter)")
    add("--device", help="CPU, NUMPY, CL or CL:<index or part of a name>")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the choice of tokens, in this order, as llama.cpp has it").add_argument
    add("--repeat-penalty", type=at_least(float, 1e-3), default=1.0, metavar="X",
        help="divide scores of tokens that were there by X")
    add("--presence-penalty", type=at_least(float), default=0.0, metavar="X", help="subtract X from their scores")
    add("--frequency-penalty", type=at_least(float), default=0.0, metavar="X", help="and X for each time")
    add("--repeat-last", type=at_least(int, -1), default=64, metavar="N",
        help="for the penalties look at the last N tokens (default: 64; -1: all)")
    add("--top-k", type=at_least(int, 0), default=0, metavar="K", help="choose among the K best tokens (0: all)")
    add("--top-p", type=at_least(float, 0, 1), default=1.0, metavar="P",
        help="choose among the best up to a sum of P")
    add("--min-p", type=at_least(float, 0, 1), default=0.0, metavar="P",
        help="choose among those at least P times as probable as the best")
    add("--temperature", type=at_least(float, 0), default=0.0, metavar="T", help="0 takes the best token (default)")
    add("--seed", type=at_least(int, 0), metavar="N", help="of the random choices (default: different every time)")


def at_least(kind: type, least: float = -math.inf, most: float = math.inf):
    def convert(text: str):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {text}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected at most {most}, got {text}")
        return value
    convert.__name__ = kind.__name__  # argparse says "invalid int value"
    return convert


def run(options: argparse.Namespace) -> None:
    with config(**{"device": options.device} if options.device else {}):
        assistant, seconds = load(lambda progress: Assistant(options, progress),
                                  warm=options.timing or options.prompt is None)
        if options.timing:
            print(f"compiled in {seconds:.2f} s", file=sys.stderr)
        terminal = Terminal(assistant)
        if options.load is not None:
            print(terminal.take_up(options.load), file=sys.stderr)
        if options.prompt is not None:
            terminal.answer(options.prompt)
        else:
            terminal.talk()


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return finish("chat.py", options.debug, lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
