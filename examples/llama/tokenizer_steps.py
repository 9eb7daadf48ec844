"""The steps that a tokenizer.json names: normalising text, cutting it into words, and making bytes of pieces.

A step that is not here is refused by its name.
"""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from examples.llama.bpe import Cut
from examples.llama.byte_bpe import DIGIT, DIGITS, SPLITS, byte_names, named_bytes, split_words
from minigrad.errors import FormatError
from minigrad.state.fields import Fields, brief

_T = TypeVar("_T")
Normalizer = Callable[[str], str]

_LONG = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _LONG % r"\p{N}{1,3}": "llama-bpe", _LONG % r"\p{N}": "qwen2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2"}
"""The expressions that a Split may have; these cut all of a text, so that what they match is what is kept."""

_WHITE = "".join([chr(code) for code in range(0x3001) if chr(code).isspace() and not 0x1C <= code < 0x20])
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def only(fields: Fields, *known: str) -> None:
    """Refuses an option that is not one of these, unless it is off."""
    for key in fields:
        if key not in known and fields.content[key] not in (None, False, "", 0):
            raise refused(fields, f"the option {brief(key)}")


def refused(fields: Fields, what: str) -> FormatError:
    """The error for what is not implemented."""
    return FormatError(f"{fields.source}: the tokenizer needs {what}, which is not implemented; use a model whose "
                       "tokenizer does without")


def steps_of(content: Fields, part: str, inner: str, table: Mapping[str, Callable[[Fields], _T]]) -> list[_T]:
    """The functions for each step of a part, by the function in `table` that reads the step; Sequences may be
    nested."""
    made, waiting = [], [content.inner(part)] if part in content else []
    while waiting:
        step = waiting.pop()
        kind = step.text("type")
        if kind == "Sequence":
            waiting += [Fields(each, step.source) for each in reversed(step.items(inner, dict))]
        elif kind in table:
            made.append(table[kind](step))
        else:
            raise refused(content, f"the {part} {brief(kind)}")
    return made


# Normalizers: text to text


def one_after_another(steps: list[Normalizer]) -> Normalizer:
    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalize


def _form(form: Any) -> Callable[[Fields], Normalizer]:
    return lambda step: lambda text: unicodedata.normalize(form, text)


def _replace(step: Fields) -> Normalizer:
    old, new = _plain_pattern(step), step.text("content")
    return lambda text: text.replace(old, new)


def _plain_pattern(step: Fields) -> str:
    only(step, "type", "pattern", "content")
    pattern = step.inner("pattern")
    if "Regex" in pattern or not pattern.text("String"):
        raise refused(step, f"a Replace of the expression {brief(pattern.text('Regex', ''))}")
    return pattern.text("String")


def _prepend(step: Fields) -> Normalizer:
    start = step.text("prepend")
    return lambda text: start + text if text else text


def _strip(step: Fields) -> Normalizer:
    left, right = step.flag("strip_left"), step.flag("strip_right")

    def strip(text: str) -> str:
        text = text.lstrip(_WHITE) if left else text
        return text.rstrip(_WHITE) if right else text

    return strip


NORMALIZERS: dict[str, Callable[[Fields], Normalizer]] = {
    **{form: _form(form) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "Lowercase": lambda step: lambda text: "".join([c.lower() for c in text]),  # each by itself: no final sigma
    "StripAccents": lambda step: lambda text: "".join([c for c in text if unicodedata.category(c)[0] != "M"]),
    "Replace": _replace, "Prepend": _prepend, "Strip": _strip}


# Pre-tokenizers: text to words


def one_inside_another(steps: list[Cut]) -> Cut:
    def cut(text: str, first: bool) -> list[str]:
        words = [text]
        for step in steps:
            words = [part for at, word in enumerate(words) for part in step(word, first and at == 0) if part]
        return words

    return cut


def _byte_level(step: Fields) -> Cut:
    only(step, "type", "add_prefix_space", "trim_offsets", "use_regex")
    prefix, patterns = step.flag("add_prefix_space", False), SPLITS["gpt-2"] if step.flag("use_regex", True) else ()

    def cut(text: str, _: bool) -> list[str]:
        text = " " + text if prefix and not text.startswith(" ") else text
        return [byte_names(word) for word in split_words(text, patterns)]

    return cut


def _digits(step: Fields) -> Cut:
    pattern = DIGIT if step.flag("individual_digits", False) else DIGITS
    return lambda text, _: split_words(text, (pattern,))


def _split(step: Fields) -> Cut:
    pattern = step.inner("pattern")
    name = _PATTERNS.get(pattern.text("Regex", ""))
    if name is None:
        raise refused(step, f"a Split by {brief(pattern.text('Regex', pattern.text('String', '')))}")
    behavior = step.text("behavior"), step.flag("invert", False)
    if behavior not in (("Isolated", False), ("Removed", True)):
        raise refused(step, f"a Split that is {behavior[0]!r}, inverted {behavior[1]}")
    return lambda text, _: split_words(text, SPLITS[name])


def _metaspace(step: Fields) -> Cut:
    only(step, "type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep")
    space, split = step.text("replacement"), step.flag("split", True)
    scheme = step.text("prepend_scheme", "always" if step.flag("add_prefix_space", True) else "never")
    if scheme not in ("always", "first", "never") or len(space) != 1:
        raise refused(step, f"a Metaspace of {brief(space)}, {brief(scheme)}")
    word = re.compile(f"{re.escape(space)}?[^{re.escape(space)}]*")

    def cut(text: str, first: bool) -> list[str]:
        text = text.replace(" ", space)
        if not text.startswith(space) and (scheme == "always" or (first and scheme == "first")):
            text = space + text
        return word.findall(text) if split else [text]

    return cut


CUTS: dict[str, Callable[[Fields], Cut]] = {
    "ByteLevel": _byte_level, "Digits": _digits, "Split": _split, "Metaspace": _metaspace}


# Decoder: pieces to bytes


def decoder_of(content: Fields) -> tuple[Callable[[str], bytes], bool]:
    """The bytes of a piece, and whether a text's first space is not of the text."""
    steps = steps_of(content, "decoder", "decoders", _DECODERS)
    if not steps:
        raise refused(content, "pieces put together without a decoder")
    kinds = [kind for kind, _ in steps]
    if kinds == ["ByteLevel"]:
        return named_bytes, False
    order = "".join([kind[0] for kind in kinds])
    if not re.fullmatch("R*B?F?|R*B?FS", order) or "ByteLevel" in kinds:
        raise refused(content, f"the decoders {', '.join(kinds)}")
    return _written([pair for kind, pair in steps if kind == "Replace"], "B" in order), "S" in order


def _written(replaced: list[tuple[str, str]], fallback: bool) -> Callable[[str], bytes]:
    """Pieces as they are written but for some strings, and with `fallback` for bytes as <0x0A>."""
    def piece_bytes(piece: str) -> bytes:
        for old, new in replaced:
            piece = piece.replace(old, new)
        byte = _BYTE.fullmatch(piece) if fallback else None
        return bytes([int(byte[1], 16)]) if byte else piece.encode(errors="replace")

    return piece_bytes


def _strip_one_space(step: Fields) -> tuple[str, tuple[str, str]]:
    if (step.text("content"), step.count("start", 0), step.count("stop", 0)) != (" ", 1, 0):
        raise refused(step, "a decoder that strips other than one space at the start")
    return "Strip", ("", "")


_DECODERS: dict[str, Callable[[Fields], tuple[str, tuple[str, str]]]] = {
    **{kind: lambda step: (step.text("type"), ("", "")) for kind in ("ByteLevel", "ByteFallback", "Fuse")},
    "Replace": lambda step: ("Replace", (_plain_pattern(step), step.text("content"))), "Strip": _strip_one_space}
