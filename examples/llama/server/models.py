"""The models that a server has by name: loaded when one is asked for, within a budget of memory."""
from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from examples.llama import memory
from examples.llama.assistant import find_model, find_tokenizer, load_model
from examples.llama.checkpoint import Checkpoint
from examples.llama.constraint import Trie
from examples.llama.server.cache_file import load_cache, save_cache
from examples.llama.server.errors import ApiError
from examples.llama.server.requests import Engine
from examples.llama.server.start import CACHE_BYTES, start_engine
from examples.llama.templates import Template, template_of
from examples.llama.tokenizer import Tokenizer
from minigrad.errors import FormatError, MinigradError
from minigrad.state.fields import Fields, brief

DEFAULT_NAME = "SmolLM2-135M-Instruct"
_NAME = re.compile(r"[\w.-]+(?::[\w.-]+)?")


@dataclass
class Loaded:
    """A model with what is needed to speak with it; `save` keeps its cache for the next start, where that is wanted."""

    tokenizer: Tokenizer
    template: Template | None
    engine: Engine
    vocabulary: int
    family: str = ""
    save: Callable[[], object] = lambda: None

    @property
    def context(self) -> int:
        return self.engine.context

    @cached_property
    def trie(self) -> Trie:
        return Trie(self.tokenizer, self.vocabulary)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.tokenizer.token_bytes(token)) for token in range(self.tokenizer.size))


@dataclass
class Entry:
    """A model by its name: where it is, the bytes it takes, and whether it is loaded and used."""

    name: str
    path: Path
    needs: int
    created: int
    loaded: Loaded | None = None
    loading: asyncio.Task[None] | None = None
    users: int = 0
    last: float = field(default_factory=time.monotonic)


def name_of(text: str | None) -> tuple[str, str | None]:
    """(name, file or folder) of what --model says: NAME=PATH, or PATH, whose last part is the name then."""
    if text is None:
        return DEFAULT_NAME, None
    name, equals, path = text.partition("=")
    if not equals or "/" in name:
        path, last = text, text.removeprefix("hf:").rstrip("/").replace(":", "/").split("/")[-1]
        name = last[:-5] if last.lower().endswith(".gguf") else last
        name = re.sub(r"[^\w.-]+", "-", name).strip("-") or "model"
    if not _NAME.fullmatch(name) or not path:
        raise FormatError(f"expected --model NAME=PATH with a name of letters, digits, '.', '-' and '_', got "
                          f"{brief(text)}")
    return name, path


def load(path: Path, options: argparse.Namespace, file: Path | None = None) -> Loaded:
    """Reads a model and begins its engine, with the cache in `file` if it is there; raises MinigradError, OSError where
    it cannot be, TooLarge before it is read."""
    needs = needs_of(path, options)
    checkpoint, model = load_model(path, options, 0 if needs is None else needs.context)
    tokenizer = find_tokenizer(checkpoint, None)
    if tokenizer.size > checkpoint.config.vocabulary:
        raise FormatError(f"{path}: the tokenizer has {tokenizer.size} tokens and the model "
                          f"{checkpoint.config.vocabulary}; expected the one that the model was trained with")
    template = _template(checkpoint, tokenizer)
    room = cache_bytes(0 if needs is None else needs.token * model.capacity, options)
    engine = start_engine(model, room, options.running, options.queue, exact=options.exact)
    loaded = Loaded(tokenizer, template, engine, checkpoint.config.vocabulary, _family(checkpoint))
    if file is not None:
        if file.is_file():
            _told(lambda: load_cache(engine, file))
        loaded.save = lambda: _told(lambda: save_cache(engine, file))
    return loaded


def _told(work: Callable[[], object]) -> None:
    """Does what a server can do without: a failure is a line."""
    try:
        work()
    except (MinigradError, OSError) as error:
        print(f"serve.py: {error}", file=sys.stderr)


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Template | None:
    described = Fields(checkpoint.metadata, checkpoint.source)
    source = described.text("tokenizer.chat_template") if "tokenizer.chat_template" in described else None
    return template_of(source, tokenizer)


def _family(checkpoint: Checkpoint) -> str:
    found = checkpoint.metadata.get("general.architecture", checkpoint.metadata.get("model_type", "llama"))
    return found if isinstance(found, str) else "llama"


class Models:
    """All models of a server. `make` loads one; `budget` is in bytes, None where nobody knows how much there is."""

    def __init__(self, paths: Mapping[str, Path], make: Callable[[str, Path], Loaded], needs: Callable[[Path], int],
                 budget: int | None):
        self.make, self.budget = make, budget
        self.entries = {name: Entry(name, path, needs(path), int(path.stat().st_mtime))
                        for name, path in paths.items()}
        self.lock = asyncio.Lock()

    def begin(self) -> None:
        """Loads the first model. Raises MinigradError, OSError where it cannot be."""
        entry = next(iter(self.entries.values()))
        entry.loaded = self.make(entry.name, entry.path)

    def find(self, name: str) -> Entry:
        """The model of a name, `:latest` behind it means nothing. Raises ApiError where there is none."""
        entry = self.entries.get(name) or self.entries.get(name.removesuffix(":latest"))
        if entry is None:
            raise ApiError(404, f"there is no model {brief(name)}; there are {', '.join(self.entries)}", "model",
                           "model_not_found")
        return entry

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Loaded]:
        """The model of a name, which stays loaded inside. Raises ApiError where it cannot be had."""
        entry = self.find(name)
        entry.users += 1
        try:
            while entry.loaded is None:
                if entry.loading is None:
                    entry.loading = asyncio.create_task(self._load(entry))
                    entry.loading.add_done_callback(_seen)
                await asyncio.shield(entry.loading)  # which goes on when this client goes away
            yield entry.loaded
        finally:
            entry.users -= 1
            entry.last = time.monotonic()

    async def _load(self, entry: Entry) -> None:
        try:
            async with self.lock:
                await self._make_room(entry)
                entry.loaded = await asyncio.to_thread(self.make, entry.name, entry.path)
        except (MinigradError, OSError) as error:
            text = str(error) if isinstance(error, MinigradError) else "its file cannot be read"
            raise ApiError(503, f"the model {entry.name} cannot be loaded: {text.replace(str(entry.path), entry.name)}",
                           "model", "model_not_loaded") from None
        finally:
            entry.loading = None

    async def _make_room(self, entry: Entry) -> None:
        """Unloads models that nobody uses, those used longest ago first, until another one fits the budget."""
        while self.budget is not None and entry.needs + self.taken() > self.budget:
            idle = [each for each in self.entries.values() if each.loaded is not None and not each.users]
            if not idle:
                raise ApiError(503, f"the model {entry.name} has no room beside those that answer just now; try again "
                                    "later", "model", "model_not_loaded", {"Retry-After": "10"})
            await self.unload(min(idle, key=lambda each: each.last), 0)

    def taken(self) -> int:
        """Bytes of all that are loaded."""
        return sum([entry.needs for entry in self.entries.values() if entry.loaded is not None])

    async def unload(self, entry: Entry, seconds: float) -> None:
        """Ends a model's engine, which finishes what runs, at most so long."""
        loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.save)
            await asyncio.to_thread(loaded.engine.close, seconds)

    async def close(self, seconds: float) -> None:
        """Ends all engines."""
        await asyncio.gather(*[self.unload(entry, seconds) for entry in self.entries.values()])


def _seen(task: asyncio.Task[None]) -> None:
    """Takes a task's exception, which nobody else may be there to see."""
    if not task.cancelled():
        task.exception()


def find_models(named: list[str | None]) -> dict[str, Path]:
    """Names and places of the models that are named, downloaded where they are on a Hub. Raises FormatError."""
    found: dict[str, Path] = {}
    for text in named:
        name, where = name_of(text)
        if name in found:
            raise FormatError(f"--model: two models are named {name}; expected NAME=PATH with names that differ")
        found[name] = find_model(where)
        if not found[name].exists():
            raise FormatError(f"{found[name]}: there is no such file or folder; check --model")
    return found


def needs_of(path: Path, options: argparse.Namespace) -> memory.Needs | None:
    """The needs of a model, with a cache for all that run; None where its files do not say."""
    needs = memory.needs_of(path, options.context, options.weights_dtype, options.cache_type)
    if needs is None or not needs.token:
        return needs
    tokens = min(needs.context * options.running, cache_bytes(needs.cache, options) // needs.token)
    return replace(needs, context=max(needs.context, tokens))


def cache_bytes(one: int, options: argparse.Namespace) -> int:
    """Bytes of the cache of all conversations: what --cache-memory says, or a part of the memory that holds `one`."""
    if options.cache_memory is not None:
        return options.cache_memory
    usual = CACHE_BYTES if options.memory is None else min(CACHE_BYTES, options.memory // 4)
    return max(usual, one * 3 // 2)  # of a model with recurrent states a quarter is for these


def check_budget(entries: Mapping[str, Entry], budget: int | None) -> None:
    """Raises TooLarge for a model that does not fit the budget even alone."""
    for entry in entries.values():
        if budget is not None and entry.needs > budget:
            raise memory.TooLarge(f"the model {entry.name} does not fit: it takes about {memory.size(entry.needs)}, "
                                  f"and {memory.size(budget)} may be used; expected a smaller model, --context or "
                                  "--weights-dtype, or more --memory")
