"""tokenizer.json, the file of Hugging Face's tokenizers: byte-pair encoding with what stands around it.

Every part that changes tokens is read, or refused by name: what is not known is never left out in silence.
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.llama.bpe import BPETokenizer, Rules
from examples.llama.tokenizer import Tokenizer
from examples.llama.tokenizer_steps import (
    CUTS,
    NORMALIZERS,
    decoder_of,
    one_after_another,
    one_inside_another,
    only,
    refused,
    steps_of,
)
from minigrad.errors import FormatError
from minigrad.state.fields import MAX_COUNT, Fields, brief, read_json, wrong


def json_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, with BOS and EOS by the tokenizer_config.json beside it.

    Raises FormatError for what is broken and, by its name, for what is not implemented.
    """
    content = read_json(path)
    only(content, "version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model",
          "padding")
    padding = content.inner("padding")
    if "padding" in content and (padding.content.get("strategy") != "BatchLongest" or "pad_to_multiple_of" in padding):
        raise refused(content, f"padding by {brief(padding.content.get('strategy'))}")
    model = content.inner("model")
    if (kind := model.text("type", "BPE")) != "BPE":
        raise FormatError(f"{path}: the tokenizer is of type {kind!r}; expected BPE; use a model with such a tokenizer")
    only(model, "type", "vocab", "merges", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
    vocabulary = _vocabulary(model.inner("vocab"))
    tokens = _added_tokens(content, vocabulary)
    normalizers = steps_of(content, "normalizer", "normalizers", NORMALIZERS)
    cuts = steps_of(content, "pre_tokenizer", "pretokenizers", CUTS)
    piece_bytes, leading_space = decoder_of(content)
    rules = Rules(one_after_another(normalizers), one_inside_another(cuts), piece_bytes, leading_space,
                  model.text("unk_token") if "unk_token" in model else None, model.flag("fuse_unk", False),
                  model.flag("byte_fallback", False), model.flag("ignore_merges", False))
    special = tokens["special"]
    bos, eos = _bos_and_eos(path, {**vocabulary, **special}, _first_token(content))
    return BPETokenizer(vocabulary, merges_of(model, "merges"), special, rules, bos, eos, tokens["added"],
                        tokens["late"])


def merges_of(fields: Fields, key: str) -> list[tuple[str, str]]:
    """Merges 'a b', or ['a', 'b'] as newer files have them."""
    merges = []
    for line in fields.items(key, str, list, default=()):
        if isinstance(line, str) and line.startswith("#version"):
            continue
        parts = line.split(" ") if isinstance(line, str) else line
        if len(parts) != 2 or not all([isinstance(part, str) for part in parts]):
            raise wrong(fields.source, "a merge", "two pieces", line)
        merges.append((parts[0], parts[1]))
    return merges


def _vocabulary(fields: Fields) -> dict[str, int]:
    vocabulary = dict(fields.content)
    for piece, token in vocabulary.items():
        _check_id(fields, piece, token)
    return vocabulary


def _check_id(fields: Fields, piece: str, token: Any) -> None:
    if type(token) is not int or not 0 <= token < MAX_COUNT:
        raise wrong(fields.source, f"the id of {brief(piece)}", f"an integer from 0 to {MAX_COUNT - 1}", token)


def _added_tokens(content: Fields, vocabulary: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Control tokens, those found in text, and those found in what is normalised, with their ids."""
    found: dict[str, dict[str, int]] = {"special": {}, "added": {}, "late": {}}
    for each in content.items("added_tokens", dict, default=()):
        token = Fields(each, f"{content.source}: an added token")
        name, number = token.text("content"), token.count("id", 0)
        only(token, "id", "content", "special", "normalized")
        if vocabulary.get(name, number) != number:
            raise wrong(token.source, f"the id of {brief(name)}", f"{vocabulary[name]}, as in the vocabulary", number)
        kind = "special" if token.flag("special", False) else "late" if token.flag("normalized", False) else "added"
        found[kind][name] = number
    return found


# What starts and ends a text


def _first_token(content: Fields) -> tuple[bool, int | None]:
    """(True where the file says how a text starts, the token that it starts with): at most one, and none after the
    text."""
    found = [token for says, token in steps_of(content, "post_processor", "processors", {
        "ByteLevel": lambda step: (False, None), "TemplateProcessing": lambda step: (True, _template(step))}) if says]
    if len(found) > 1:
        raise refused(content, "more than one TemplateProcessing")
    return bool(found), found[0] if found else None


def _template(step: Fields) -> int | None:
    start: list[int] = []
    text = False
    for each in step.items("single", dict):
        part = Fields(each, f"{step.source}: 'single'")
        if "SpecialToken" not in part:
            text = True
            continue
        name = part.inner("SpecialToken").text("id")
        if text:
            raise refused(step, f"the token {brief(name)} after a text")
        start += step.inner("special_tokens").inner(name).items("ids", int)
    if len(start) > 1 or not text or not all([0 <= token < MAX_COUNT for token in start]):
        raise refused(step, f"texts that start with the tokens {brief(start)}")
    return start[0] if start else None


def _bos_and_eos(path: Path, ids: Mapping[str, int], start: tuple[bool, int | None]
                 ) -> tuple[int | None, int | None]:
    """(BOS, EOS) by tokenizer_config.json beside the file, and by the file itself; None for one that is not added."""
    config = path.with_name("tokenizer_config.json")
    settings = read_json(config) if config.is_file() else Fields({}, config)
    names = {}
    for key in ("bos_token", "eos_token"):
        inside = isinstance(settings.content.get(key), Mapping)
        names[key] = settings.inner(key).text("content") if inside else settings.text(key, "")
    bos, eos = (ids.get(name) for name in names.values())
    # LLaMA's tokenizers add BOS unless told not to; those of GPT-2's kind add none unless told to.
    usual = settings.text("tokenizer_class", "").startswith("Llama") or names["bos_token"] == "<|begin_of_text|>"
    says, first = start
    if says and "add_bos_token" not in settings:
        return first, eos
    return bos if settings.flag("add_bos_token", usual) else None, eos
