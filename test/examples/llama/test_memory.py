"""What a model takes, said before it is loaded; models from the Hub."""
from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from support.file_outcomes import bounded
from support.model_files import gguf_string, write_gguf

from examples.llama import chat, hub, memory
from examples.llama.assistant import default_model
from examples.llama.memory import BESIDE, Needs, TooLarge, check, free_memory, needs_of
from examples.llama.weights import load_checkpoint
from minigrad.errors import FormatError


def test_needs_are_those_of_the_loaded_model(data_dir: Path) -> None:
    """Of the weights and, for 2,048 tokens, of keys and values in float32."""
    try:
        path = default_model()
    except FormatError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
    needs = needs_of(path, 2048, None)
    config = load_checkpoint(path).config
    assert needs is not None and needs.context == 2048
    assert needs.cache == 2 * config.layers * config.kv_heads * config.head_size * 2048 * 4
    assert 0.97 < needs.weights / path.stat().st_size < 1
    assert needs_of(path, 1 << 20, None).context == config.context  # type: ignore[union-attr]
    folder = needs_of(data_dir / "llm" / "stories260K" / "hf", 100, None)
    assert folder is not None and folder.cache == 2 * 5 * 4 * 8 * 100 * 4
    assert folder.weights == (data_dir / "llm" / "stories260K" / "hf" / "model.safetensors").stat().st_size
    halved = needs_of(data_dir / "llm" / "stories260K" / "hf", 100, "float16", "float16")
    assert halved is not None and 2 * halved.cache == folder.cache and 0.45 < halved.weights / folder.weights < 0.55


def test_what_has_no_products_is_counted_as_float32(tmp_path: Path) -> None:
    numbers = {"embedding_length": 256, "block_count": 2, "attention.head_count": 4}
    metadata = [("general.architecture", 8, gguf_string("llama")),
                *((f"llama.{key}", 4, struct.pack("<I", value)) for key, value in numbers.items())]
    write_gguf(tmp_path / "a.gguf", metadata, [("w", (2, 256), 2, bytes(2 * 8 * 18)), ("v", (256,), 2,
                                                                                       bytes(8 * 18))])
    needs = needs_of(tmp_path / "a.gguf", 10, None)
    assert needs is not None and needs.weights == 2 * 8 * 18 + 4 * 256 and needs.elements == 2 * 256
    assert needs.token == 2 * 2 * 4 * 64 * 4


def test_what_fits_is_said() -> None:
    gb = 10**9
    needs = Needs(weights=4 * gb, elements=gb, token=10**6, context=8192)
    check(needs, None)
    check(needs, needs.total)
    with pytest.raises(TooLarge, match=r"does not fit: weights 4.0 GB, keys and values of 8192 tokens 8.2 GB: about "
                                       r"12.4 GB of memory, and 9.4 GB are free, 3.0 GB too few; what fits: "
                                       r"--context 4096 or --weights-dtype Q4_1$"):
        check(needs, needs.total - 3 * gb)
    small = Needs(weights=4 * gb, elements=gb, token=1000, context=8192)
    with pytest.raises(TooLarge, match=r"2.0 GB too few; what fits: --weights-dtype float16$"):
        check(small, small.total - 2 * gb)
    with pytest.raises(TooLarge, match=r"what fits: --weights-dtype Q4_0$"):
        check(small, BESIDE + 600 * 10**6)
    with pytest.raises(TooLarge, match=r"what fits: a smaller model$"):
        check(small, BESIDE)
    for context in (512, 4096):  # what is proposed does fit
        check(Needs(needs.weights, needs.elements, needs.token, context), needs.total - 3 * gb)


def test_the_chat_does_not_load_what_does_not_fit(data_dir: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 20)
    arguments = ["--model", str(data_dir / "llm" / "stories260K" / "stories260K.bin"), "--prompt", "x"]
    assert chat.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and "what fits: a smaller model" in captured.err


def test_free_memory_and_sizes() -> None:
    free = free_memory()
    assert free is None or 1 << 20 < free < 1 << 50
    with bounded(nbytes=64 << 20):  # a limit of the process
        free = free_memory()
        assert sys.platform != "linux" or (free is not None and free <= 64 << 20)
    assert (memory.size(0), memory.size(5 * 10**8), memory.size(1.25 * 10**9)) == ("0 MB", "500 MB", "1.2 GB")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"hidden_size": "x"}', '{"hidden_size": 1e400}'])
def test_headers_that_are_wrong_say_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "a.gguf").write_text(text)
    assert needs_of(tmp_path, 10, None) is None and needs_of(tmp_path / "a.gguf", 10, "Q8_0") is None
    assert needs_of(tmp_path / "none", 10, None) is None


# The Hub


class Hub:
    """Stands where huggingface_hub does: repositories as lists of files, which are made empty in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        import huggingface_hub

        self.folder, self.repositories, self.asked = folder, {}, []  # type: ignore[var-annotated]
        self.error: Exception | None = None
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda _, name: self.files(name))

    def files(self, repository: str) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.repositories[repository]

    def download(self, repository: str, file: str) -> str:
        self.asked.append((repository, file))
        if file not in self.files(repository):
            raise FileNotFoundError(f"{file} is not there\nmore")
        (self.folder / file).touch()
        return str(self.folder / file)

    def snapshot(self, repository: str, allow_patterns: Any = None, local_files_only: bool = False) -> str:
        self.asked.append((repository, local_files_only))
        for file in [] if local_files_only else self.files(repository):
            (self.folder / file).touch()
        return str(self.folder)


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    pytest.importorskip("huggingface_hub")
    return Hub(tmp_path, monkeypatch)


FOUND = [(["a.Q8_0.gguf", "a.Q4_K_M.gguf", "README.md"], "a.Q4_K_M.gguf"), (["x.gguf"], "x.gguf"),
         (["m-f16.gguf", "m-q8_0.gguf"], "m-q8_0.gguf"),
         (["config.json", "model.safetensors", "a.Q4_0.gguf"], "")]


@pytest.mark.parametrize("files, taken", FOUND)
def test_models_from_the_hub(files: list[str], taken: str, fake_hub: Hub, tmp_path: Path) -> None:
    fake_hub.repositories["me/model.v1"] = files
    assert hub.fetch_model("hf:me/model.v1") == (tmp_path / taken if taken else tmp_path)
    assert hub.fetch_model(f"hf:me/model.v1:{files[0]}") == tmp_path / files[0]


def test_the_hub_cannot_be_reached(fake_hub: Hub, tmp_path: Path) -> None:
    """What was downloaded before is taken; otherwise there is one line."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    fake_hub.error = ConnectionError("no network\nat all")
    (tmp_path / "a.gguf").touch()
    assert hub.fetch_model("hf:me/model") == tmp_path / "a.gguf"
    with pytest.raises(FormatError, match=r"^hf:me/model:b.gguf: cannot be downloaded: no network; check the name"):
        hub.fetch_model("hf:me/model:b.gguf")
    fake_hub.error = LocalEntryNotFoundError("x")
    with pytest.raises(FormatError, match="is not downloaded and the Hub cannot be reached"):
        hub.fetch_model("hf:me/model:b.gguf")


BAD = [("hf:", "expected hf:owner/name"), ("hf:../x", "cannot be|expected"), ("hf:a/b/c", "expected hf:owner/name"),
       ("hf:me/none", "expected a .gguf file, or config.json and .safetensors, among its 1 files"),
       ("hf:me/parts", "a-00001-of-00002.gguf is a part of a model"), ("hf:me/none:x.gguf", "x.gguf is not there;")]


@pytest.mark.parametrize("name, message", BAD)
def test_names_that_are_no_models(name: str, message: str, fake_hub: Hub) -> None:
    fake_hub.repositories = {"me/none": ["x.bin"], "me/parts": ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"],
                             "../x": []}
    with pytest.raises(FormatError, match=message) as caught:
        hub.fetch_model(name)
    assert str(caught.value).isprintable()


def test_the_library_of_the_hub_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
                                                 ) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert chat.main(["--model", "hf:me/model", "--prompt", "x"]) == 1
    assert capsys.readouterr().err == (
        'chat.py: hf:me/model: downloads need huggingface_hub: pip install "minigrad[chat]"\n')


def test_conversations_have_no_other_keys(tmp_path: Path) -> None:
    from examples.llama.conversation import Conversation

    talk = Conversation("Be kind.")
    talk.add("a\udc80", "é")
    talk.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["messages"][1] == {
        "role": "assistant", "content": "é"}
