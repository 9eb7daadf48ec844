"""tokenizer.json: read by Hugging Face's tokenizers; what we add to it are the bytes of each token, BOS and errors."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support.tokenizer_cases import RIGHT, TEXT, byte_file, character_file, sequence, split, step, token

from examples.llama.tokenizer import StreamDecoder
from examples.llama.tokenizer_files import load_tokenizer
from minigrad.errors import FormatError


def load(content: dict[str, Any], folder: Path, settings: dict[str, Any] | None = None) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder)


@pytest.mark.parametrize("case", RIGHT)
def test_tokens_and_their_bytes_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    """Names of control tokens in a text are text; text comes back token by token as the library makes it at once."""
    ours, theirs = load(RIGHT[case], tmp_path), tokenizers.Tokenizer.from_str(json.dumps(RIGHT[case]))
    theirs.encode_special_tokens = True
    ids = theirs.encode(TEXT, add_special_tokens=False).ids
    assert ours.encode(TEXT) == ids and ours.special["<s>"] not in ids
    assert ours.decode(ids) == theirs.decode(ids)
    decoder = StreamDecoder(ours)
    assert "".join([decoder.add(each) for each in ids]) + decoder.finish() == theirs.decode(ids)
    start = theirs.encode("", add_special_tokens=True).ids
    assert ours.encode("") == [] and ours.bos == (start[0] if start else None)


def test_choices_at_random_and_cuts_are_off(tmp_path: Path) -> None:
    """Dropout of merges, truncation and padding are for training."""
    content = byte_file(model={"dropout": 0.9}, padding={
        "strategy": {"Fixed": 10}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<s>"}, truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
                                         "stride": 0})
    assert load(content, tmp_path).encode("Hello the llama") == load(byte_file(), tmp_path).encode("Hello the llama")


_UNDO = sequence("decoder", step("Replace", pattern={"String": "\u2581"}, content=" "), step("BPEDecoder"))
REFUSED = {"no decoder": byte_file(decoder=None), "word pieces": byte_file(decoder=step("WordPiece", prefix="##",
                                                                                       cleanup=True)),
           "two kinds": character_file(decoder=_UNDO)}


@pytest.mark.parametrize("case", REFUSED)
def test_other_decoders_are_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"puts pieces together by .*; expected ByteLevel") as caught:
        load(REFUSED[case], tmp_path)
    assert "\n" not in str(caught.value) and "tokenizer.json" in str(caught.value)


def test_white_space_after_control_tokens(tmp_path: Path) -> None:
    made = load(byte_file(add=[token(0, "<|end|>", special=True, rstrip=True), token(0, "<|user|>", special=True)]),
                tmp_path)
    assert made.strip_after == {"<|end|>"} and {"<|end|>", "<|user|>", "<s>"} == set(made.special)


BOS = [({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, 0), ({"bos_token": "<s>"}, None),
       ({"bos_token": "<s>", "add_bos_token": True}, 0), ({"bos_token": {"content": "<s>"}, "add_bos_token": True}, 0),
       ({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, None),
       ({"bos_token": "missing", "add_bos_token": True}, None)]


@pytest.mark.parametrize("settings, bos", BOS)
def test_the_configuration_beside_it(settings: dict[str, Any], bos: int | None, tmp_path: Path) -> None:
    tokenizer = load(byte_file(), tmp_path, {**settings, "eos_token": "<s>"})
    assert tokenizer.bos == bos and tokenizer.ends == {0} and tokenizer.named["eos_token"] == "<s>"


def test_the_library_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(FormatError, match=r'its tokenizer needs tokenizers: pip install "minigrad\[chat\]"$'):
        load(byte_file(), tmp_path)


def test_a_split_that_the_library_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a tokenizer: "):
        load(byte_file(pre_tokenizer=split("(")), tmp_path)
