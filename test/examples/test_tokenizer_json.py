"""tokenizer.json: every option is right, by what Hugging Face's tokenizers 0.23 makes of it, or refused by its name.

    python test/examples/test_tokenizer_json.py      writes tokenizer_goldens.json anew, with that library
"""
from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS
from support.tokenizer_cases import KINDS, REFUSED, RIGHT, TEXT, byte_file

from examples.llama.tokenizer_files import load_tokenizer
from minigrad.errors import FormatError

GOLDENS = TESTS / "support" / "tokenizer_goldens.json"
needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed")


def load(content: dict[str, Any], folder: Path, settings: dict[str, Any] | None = None) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder)


def reference(content: dict[str, Any]) -> Any:
    """The library's tokenizer, for which names of control tokens are text, as for ours."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(json.dumps(content))
    made.encode_special_tokens = True
    return made


@pytest.mark.parametrize("case", RIGHT)
def test_options_are_right(case: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDENS.read_text(encoding="utf-8"))[case]
    tokenizer = load(RIGHT[case], tmp_path)
    assert tokenizer.encode(TEXT) == golden["ids"]
    assert tokenizer.decode(golden["ids"]) == golden["text"]
    assert tokenizer.encode("") == [] and tokenizer.bos == golden["bos"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    with pytest.raises(FormatError, match=message) as caught:
        load(content, tmp_path)
    assert "\n" not in str(caught.value) and "tokenizer.json" in str(caught.value)


def test_every_kind_of_step_is_in_a_case() -> None:
    def kinds(part: Any) -> set[str]:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        own = {part["type"]} if isinstance(part, dict) and "type" in part else set()
        return own.union(*map(kinds, inner))

    contents = [*RIGHT.values(), *(content for content, _ in REFUSED.values())]
    for part, names in KINDS.items():
        assert set().union(*(kinds(content[part]) for content in contents)) == set(names)


@needs_tokenizers
@pytest.mark.parametrize("case", RIGHT)
def test_random_texts_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    tokenizer, theirs = load(RIGHT[case], tmp_path), reference(RIGHT[case])
    choice = random.Random(case)
    for _ in range(40):
        start = [choice.randrange(len(TEXT)) for _ in range(choice.randrange(12))]
        text = "".join([TEXT[at:at + choice.randrange(1, 9)] for at in start])
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert (tokenizer.encode(text), tokenizer.decode(ids)) == (ids, theirs.decode(ids)), repr(text)


BOS = [({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, 0), ({"bos_token": "<s>"}, None),
       ({"bos_token": "<s>", "add_bos_token": True}, 0), ({"bos_token": {"content": "<s>"}, "add_bos_token": True}, 0),
       ({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, None),
       ({"bos_token": "missing", "add_bos_token": True}, None)]


@pytest.mark.parametrize("settings, bos", BOS)
def test_the_configuration_beside_it(settings: dict[str, Any], bos: int | None, tmp_path: Path) -> None:
    tokenizer = load(byte_file(), tmp_path, {**settings, "eos_token": "<s>"})
    assert tokenizer.bos == bos and tokenizer.ends == {0}


def write_goldens() -> None:
    goldens = {}
    for case, content in RIGHT.items():
        made = reference(content)
        ids = made.encode(TEXT, add_special_tokens=False).ids
        start = made.encode("", add_special_tokens=True).ids
        goldens[case] = {"ids": ids, "text": made.decode(ids), "bos": start[0] if start else None}
    lines = [f"{json.dumps(case)}: {json.dumps(golden, separators=(',', ':'))}" for case, golden in goldens.items()]
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_goldens()
