"""2,000 damaged files of models, tokenizers, templates, schemas and conversations: each is loaded, or refused by one
error in one line, within bounds on time and memory.

`python test/support/file_outcomes.py 20000` reads more of them.
"""
from __future__ import annotations

from pathlib import Path

import pytest
from support.family_samples import FAMILIES, TEXTS
from support.file_outcomes import ALL, CHAT, OPTIONS, READERS, chat_outcome, outcome, outcomes
from support.file_samples import tokenizer, write

from minigrad import config

FINE = {"loaded", "refused"}


@pytest.mark.parametrize("name", ALL)
def test_whole_files_are_loaded(name: str, tmp_path: Path) -> None:
    write(ALL[name](), tmp_path)
    with config(device="NUMPY"):
        assert outcome(READERS[name], tmp_path) == "loaded"
        if name in CHAT:
            vocabulary = tmp_path / "tok.bin"
            vocabulary.write_bytes(tokenizer())
            assert {chat_outcome(tmp_path, tmp_path / CHAT[name], vocabulary, *more) for more in OPTIONS} == {"loaded"}


@pytest.mark.parametrize("name", ALL)
def test_damaged_files_are_loaded_or_refused(name: str) -> None:
    found = list(outcomes(name, range(60 if name in TEXTS else 200)))
    assert [(number, result) for number, result in found if result not in FINE] == []
    assert {result for _, result in found} == FINE  # neither all whole nor all beyond recognition


@pytest.mark.parametrize("name", CHAT)
def test_chat_says_in_one_line_what_is_wrong_with_a_file(name: str) -> None:
    found = list(outcomes(name, range(3 if name in FAMILIES else 40), through_chat=True))
    assert [(number, result) for number, result in found if result not in FINE] == []
