"""Byte-pair encoding by the `tokenizers` library: from a tokenizer.json, and built from a GGUF file's metadata."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.llama.tokenizer import Kind, Tokenizer
from minigrad.errors import FormatError
from minigrad.state.fields import MAX_COUNT, Fields, brief, one_line, read_json, wrong

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SUFFIX|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SUFFIX"
          r"|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_DIGIT = r"\p{N}"
# How each kind of vocabulary cuts text, one expression inside the other, and the names that GGUF files give it.
SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2 gpt2 default olmo phi-2 jais mpt": (_GPT2,),
    "smollm starcoder refact command-r codeshell granite": (_DIGIT, _GPT2),
    "llama-bpe llama3 llama-v3 dbrx smaug-bpe falcon3 falcon-h1 lfm2 pixtral": (_LLAMA3.replace("DIGITS", "1,3"),),
    "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez": (_LLAMA3.replace("DIGITS", "1"),),
    "qwen35": (_MARKS,),
    "gpt-4o llama4 kanana2": (_CASES.replace("DIGITS", "1,3").replace("SUFFIX", _SUFFIX + "?"),),
    "tekken": (_CASES.replace("DIGITS", "1").replace("SUFFIX", ""),)}
_STARTS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "tekken")
"""Kinds whose texts start with BOS and whose words are taken whole where they are a piece, unless the file says."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_names() -> list[str]:
    """The printable character that stands for each byte in GPT-2's vocabulary files."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


BYTE_NAMES = _byte_names()
_NAMED = {name: byte for byte, name in enumerate(BYTE_NAMES)}


def named_bytes(piece: str) -> bytes:
    """The bytes that a piece stands for; its own where it is not written in their names."""
    found = [_NAMED.get(character, -1) for character in piece]
    return piece.encode(errors="replace") if -1 in found else bytes(found)


class BPETokenizer(Tokenizer):
    """A tokenizer of the library; `piece_bytes` says what the pieces of its vocabulary stand for."""

    def __init__(self, library: Any, piece_bytes: Callable[[str], bytes], named: Mapping[str, str], bos: int | None,
                 leading_space: bool = False):
        self.library, self.bos, self.leading_space, self.named = library, bos, leading_space, dict(named)
        library.encode_special_tokens = True  # so that their names in a text are text
        if hasattr(library.model, "dropout"):
            library.model.dropout = None
        library.no_truncation()
        library.no_padding()
        added = library.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        self.strip_after = frozenset([token.content for token in added.values() if token.special and token.rstrip])
        vocabulary = library.get_vocab(with_added_tokens=True)
        self.size = 1 + max([*vocabulary.values(), *added], default=-1)
        self.bytes = {number: piece_bytes(piece) for piece, number in vocabulary.items()}
        for number, token in added.items():
            plain = token.content.encode(errors="replace")
            if token.normalized:  # it is found in what is normalised, and is written so
                normal = library.normalizer
                plain = piece_bytes(token.content if normal is None else normal.normalize_str(token.content))
            self.bytes[number] = b"" if token.special else plain
        self.ends = self._find_ends(vocabulary.get(named.get("eos_token", ""), -1))

    def encode(self, text: str) -> list[int]:
        return self.library.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids

    def token_bytes(self, token: int) -> bytes:
        return self.bytes.get(token, b"")


@contextmanager
def _reading(source: str | Path) -> Iterator[None]:
    """Inside, what the library says is an error in one line."""
    try:
        yield
    except ImportError:
        raise FormatError(f'{source}: its tokenizer needs tokenizers: pip install "minigrad[chat]"') from None
    except FormatError:
        raise
    except BaseException as error:  # the library's panics are no Exceptions
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = one_line(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise FormatError(f"{source}: expected a tokenizer: {brief(reason)[1:-1]}; get the tokenizer again") from None


# tokenizer.json


def json_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, with BOS and EOS by the tokenizer_config.json beside it. Raises FormatError.
    """
    content = read_json(path)
    _check(content)
    piece_bytes, leading_space = _decoder(content)
    with _reading(path):
        from tokenizers import Tokenizer as Library
        library = Library.from_str(path.read_text(encoding="utf-8"))
        named, adds, llama = _settings(path)
        bos = library.token_to_id(named.get("bos_token", "")) if adds is not False else None
        if adds is None:
            start = library.encode("", add_special_tokens=True).ids
            # LLaMA's tokenizers add BOS even where the file does not say; those of GPT-2's kind do not.
            bos = start[0] if start else bos if llama else None
        return BPETokenizer(library, piece_bytes, named, bos, leading_space)


def _check(content: Fields) -> None:
    """Ids within reason: the library makes room for them."""
    model = content.inner("model")
    vocabulary = model.content.get("vocab")
    if isinstance(vocabulary, dict):
        for piece, token in vocabulary.items():
            if type(token) is not int or not 0 <= token < MAX_COUNT:
                raise wrong(model.source, f"the id of {brief(piece)}", f"an integer from 0 to {MAX_COUNT - 1}", token)
    for each in content.items("added_tokens", dict, default=()):
        Fields(each, f"{content.source}: an added token").count("id", 0)


def _settings(path: Path) -> tuple[dict[str, str], bool | None, bool]:
    """(Names of control tokens that templates use, whether texts start with BOS: None where this is not said, whether
    it is one of LLaMA's).
    """
    config = path.with_name("tokenizer_config.json")
    settings = read_json(config) if config.is_file() else Fields({}, config)
    named = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        inside = isinstance(settings.content.get(key), Mapping)
        name = settings.inner(key).text("content") if inside else settings.text(key, "")
        if name:
            named[key] = name
    llama = settings.text("tokenizer_class", "").startswith("Llama")
    return named, settings.flag("add_bos_token") if "add_bos_token" in settings else None, llama


def _decoder(content: Fields) -> tuple[Callable[[str], bytes], bool]:
    """The bytes of a piece, and whether a text's first space is not of the text. Refuses what joins pieces otherwise.
    """
    steps, waiting = [], [content.inner("decoder")] if "decoder" in content else []
    while waiting:
        step = waiting.pop()
        if step.text("type") == "Sequence":
            waiting += [Fields(each, step.source) for each in reversed(step.items("decoders", dict))]
        else:
            steps.append(step)
    kinds = [step.text("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return named_bytes, False
    replaced, space, known = [], False, bool(kinds)
    for kind, step in zip(kinds, steps, strict=True):
        if kind == "Replace" and "String" in step.inner("pattern"):
            replaced.append((step.inner("pattern").text("String"), step.text("content")))
        elif kind == "Metaspace":
            replaced.append((step.text("replacement"), " "))
            space |= step.text("prepend_scheme", "always") != "never"
        elif kind == "Strip" and (step.text("content"), step.count("start", 0)) == (" ", 1):
            space = True
        else:
            known &= kind in ("ByteFallback", "Fuse")
    if not known or "" in dict(replaced):
        raise FormatError(f"{content.source}: the tokenizer puts pieces together by {brief(kinds)}; expected ByteLevel "
                          "or pieces as they are written; use a model with such a tokenizer")

    def written(piece: str) -> bytes:
        for old, new in replaced:
            piece = piece.replace(old, new)
        byte = _BYTE.fullmatch(piece) if "ByteFallback" in kinds else None
        return bytes([int(byte[1], 16)]) if byte else piece.encode(errors="replace")

    return written, space


# GGUF


def gguf_bpe(fields: Fields, pieces: list[str], kinds: list[int], named: Mapping[str, str], bos: int) -> Tokenizer:
    """The tokenizer of kind "gpt2" with these pieces. `bos` is -1 where there is none. Raises FormatError."""
    split = fields.text("pre", "default")
    patterns = next((found for names, found in SPLITS.items() if split in names.split()), None)
    if patterns is None:
        raise FormatError(f"{fields.source}: it cuts words as {brief(split)}; expected one of "
                          f"{', '.join(' '.join(SPLITS).split())}; use a model with one of these, or name a "
                          "tokenizer.json with --tokenizer")
    merges = [tuple(line.split(" ")) for line in fields.items("merges", str, default=())]
    lost = next((merge for merge in merges if len(merge) != 2), None)
    if lost is not None:
        raise wrong(fields.source, "a merge", "two pieces", " ".join(lost))
    with _reading(fields.source):
        from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Library
        vocabulary = {piece: token for token, piece in enumerate(pieces)}
        library = Library(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split in _STARTS))
        cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        library.decoder = decoders.ByteLevel()
        for kind in (Kind.CONTROL, Kind.USER_DEFINED):
            library.add_tokens([AddedToken(piece, special=kind == Kind.CONTROL, normalized=False)
                                for piece, of in zip(pieces, kinds, strict=True) if of == kind])
        starts = bos >= 0 and fields.flag("add_bos_token", split in _STARTS)
        return BPETokenizer(library, named_bytes, named, bos if starts else None)
