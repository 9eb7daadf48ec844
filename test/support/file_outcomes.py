"""Reads damaged files within bounds on time and memory, and says what became of it.

    python test/support/file_outcomes.py COUNT [SEED [FORMAT ...]]

damages COUNT files and prints the outcomes by format (those whose names contain one of FORMAT; all if there is none);
one of them is made again by mutated(ALL[format](), random.Random(number))
"""
from __future__ import annotations

import contextlib
import io
import math
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

from support import family_samples
from support.family_samples import FAMILIES, TEXTS
from support.file_mutations import mutated
from support.file_samples import SAMPLES, scratch, tokenizer, write
from support.tokenizer_samples import TOKENIZERS, read_tokenizer

from examples.llama import chat
from examples.llama.checkpoint import Checkpoint
from examples.llama.model import Llama
from examples.llama.weights import load_checkpoint
from minigrad import Tensor, config
from minigrad.errors import MinigradError
from minigrad.state import gguf_load, safe_load, torch_load

SECONDS, BYTES = 2, 64 << 20
"""The limits of reading a file of 200 KB: seconds of the processor, and memory beyond what there was. Templates have a
limit of their own, and get three times as long."""


def read_torch(folder: Path) -> None:
    pending, seen = [torch_load(folder / "a.pth")], set()
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            if int(value.numel()) < 10_000:
                value.numpy()
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value.values() if isinstance(value, dict) else value)


def read_safetensors(folder: Path) -> None:
    for tensor in safe_load(folder / "a.safetensors").values():
        tensor.numpy()


def read_gguf(folder: Path) -> None:
    for tensor in gguf_load(folder / "a.gguf")[1].values():
        tensor.numpy()
        tensor.stored()


def load_model(path: Path) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    Llama(checkpoint.config, checkpoint.tensors, 64)
    return checkpoint


READERS: dict[str, Callable[[Path], Any]] = {
    "torch zip": read_torch, "torch stream": read_torch, "safetensors": read_safetensors, "gguf": read_gguf,
    "hugging face": load_model, "meta": load_model, "gguf model": lambda folder: load_model(folder / "model.gguf"),
    "llama2c 0": lambda folder: load_model(folder / "model.bin"),
    "llama2c 1": lambda folder: load_model(folder / "model.bin"), **dict.fromkeys(TOKENIZERS, read_tokenizer),
    **family_samples.READERS}
ALL = {**SAMPLES, **TOKENIZERS, **TEXTS}


class TooSlow(BaseException):
    """The time is over; no reader catches it."""


@contextlib.contextmanager
def bounded(seconds: float = SECONDS, nbytes: int = BYTES) -> Iterator[None]:
    """Inside, TooSlow is raised when so many seconds are over and MemoryError when more bytes than that are added."""
    def over(*_: object) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGPROF, over)
    try:
        if pages:
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + nbytes, hard))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, previous)


def outcome(read: Callable[[Path], Any], folder: Path, seconds: float = SECONDS, nbytes: int = BYTES) -> str:
    """"loaded", "refused" by an error of ours in one line, or what else happened, with where it did."""
    try:
        with bounded(seconds, nbytes):
            read(folder)
    except MinigradError as error:
        return "refused" if str(error).isprintable() else f"an error of several lines: {error}"
    except FileNotFoundError:
        return "refused"
    except (Exception, TooSlow) as error:
        calls = traceback.extract_tb(error.__traceback__)
        at = [call for call in calls if "/minigrad/" in call.filename or "/llama/" in call.filename][-1:] or calls
        return f"{type(error).__name__} at {Path(at[-1].filename).name}:{at[-1].lineno}: {str(error)[:100]}"
    return "loaded"


def chat_outcome(folder: Path, model: Path, tokenizer: Path, *more: str) -> str:
    """As `outcome`, of `chat.py` with `more` options."""
    out, err = io.StringIO(), io.StringIO()
    code = -1

    def talk(_: Path) -> None:
        nonlocal code
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = chat.main(["--model", str(model), "--tokenizer", str(tokenizer), "--prompt", "a", "--count", "2",
                              "--context", "64", "--device", "NUMPY", *more])

    found = outcome(talk, folder, 10 * SECONDS, 8 * BYTES)
    if found != "loaded" or (code == 0 and not err.getvalue()):
        return found
    lines = err.getvalue().splitlines()
    return "refused" if code == 1 and len(lines) == 1 and lines[0].startswith("chat.py: ") else f"{code}: {lines}"


CHAT = {"hugging face": ".", "meta": ".", "gguf model": "model.gguf", "llama2c 0": "model.bin",
        "llama2c 1": "model.bin", **{name: "model.gguf" if "gguf" in name else "." for name in FAMILIES}}
"""The file that `chat.py` is given, for each format."""
OPTIONS = [[], ["--temperature", "1"], ["--quantize-activations"], ["--weights-dtype", "Q8_0"],
           ["--weights-dtype", "float16", "--temperature", "0.5"]]


def vocabulary_of(name: str, folder: Path) -> Path:
    """Writes a tokenizer for a sample of this format; returns its file."""
    if name in FAMILIES:
        return family_samples.vocabulary(folder)
    path = folder / "tok.bin"
    path.write_bytes(tokenizer())
    return path


def outcomes(name: str, numbers: Iterable[int], through_chat: bool = False) -> Iterator[tuple[int, str]]:
    """Damages a sample of this format once for each number, reads it, and yields the number and the outcome."""
    sample = (FAMILIES[name] if name in FAMILIES else ALL[name])()
    with scratch() as parent, config(device="NUMPY"):
        vocabulary = vocabulary_of(name, Path(parent))
        for number in numbers:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                write(mutated(sample, random.Random(number)), Path(folder))
                if through_chat:
                    model, options = Path(folder, CHAT[name]), OPTIONS[number % len(OPTIONS)]
                    yield number, chat_outcome(Path(folder), model, vocabulary, *options)
                else:
                    yield number, outcome(READERS[name], Path(folder), SECONDS if name not in TEXTS else 3 * SECONDS)


def main(count: int, seed: int, chosen: list[str]) -> None:
    warnings.simplefilter("error")
    start = time.perf_counter()
    kinds = [(name, through_chat) for through_chat, names in ((False, READERS), (True, CHAT)) for name in names
             if not chosen or any([part in name for part in chosen])]
    first = seed * 1_000_000
    numbers = range(first, first + math.ceil(count / len(kinds)))
    for name, through_chat in kinds:
        found: dict[str, list[int]] = {}
        for number, result in outcomes(name, numbers, through_chat):
            found.setdefault(result, []).append(number)
        for result, of in sorted(found.items()):
            print(f"{len(of):6} {name}{' by chat.py' if through_chat else ''}: {result}"
                  + ("" if result in ("loaded", "refused") else f" (file {of[0]})"), flush=True)
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0]), sys.argv[3:])
