"""Tokenizers: golden cases of llama.cpp, round trips through every file format, streaming, chat formats."""
from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from examples.llama import templates
from examples.llama.bpe import merge
from examples.llama.byte_bpe import BYTE_NAMES, SPLITS, ByteBPETokenizer, split_words
from examples.llama.tokenizer import SPACE, Kind, SentencePieceTokenizer, StreamDecoder, sentencepiece_model
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from minigrad.errors import FormatError
from minigrad.state import gguf_load

SEPARATOR = "\n__ggml_vocab_test__\n"
TEXTS = ["", " ", "Hello world", " Hello\n\n  world\t!", "w048 7tuijk dsdfhu", "нещо на Български",
         "한국어", "🦙 is a llama", "I'll I'LL we've", "3333333 and 12.5", "ﬁn \u00a0x \u3000y ½ ²",
         "\x1c\x1d", "<s> and <|im_end|> and </s>", "e\u0301"]


def golden_cases(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    lines = (folder / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", ["phi-3", "gpt-2"])
def test_golden_cases(data_dir: Path, name: str) -> None:
    tokenizer = load_tokenizer(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    cases = golden_cases(data_dir / "tokenizers", name)
    assert len(cases) == 47
    assert [tokenizer.encode(text) for text, _ in cases] == [tokens for _, tokens in cases]
    assert [tokenizer.decode(tokens) for _, tokens in cases] == [text for text, _ in cases]


@pytest.mark.parametrize("file", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_our_model_proto_is_the_original_model(data_dir: Path, file: str) -> None:
    """A vocabulary taken apart and written again encodes everything as the SentencePiece file it came from."""
    original = load_tokenizer(data_dir / "tokenizers" / file)
    assert isinstance(original, SentencePieceTokenizer)
    p = original.processor
    kinds = [Kind.UNKNOWN if p.is_unknown(i) else Kind.CONTROL if p.is_control(i) else Kind.BYTE if p.is_byte(i)
             else Kind.NORMAL for i in range(original.size)]
    model = sentencepiece_model([p.id_to_piece(i) for i in range(original.size)],
                                [p.get_score(i) for i in range(original.size)], kinds, 1, 2, 0)
    ours = SentencePieceTokenizer(model, "ours")
    for text in [*TEXTS, *(text for text, _ in golden_cases(data_dir / "tokenizers", "phi-3"))]:
        assert ours.encode(text) == original.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos, ours.ends, ours.special) == (original.bos, original.ends, original.special)


def test_sentencepiece_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(FormatError, match=r'^a.model: .* needs sentencepiece: pip install "minigrad\[chat\]"$'):
        SentencePieceTokenizer(b"", "a.model")


def test_llama2c_vocabulary(data_dir: Path) -> None:
    folder = data_dir / "llm" / "stories260K"
    tokenizer = load_tokenizer(folder / "tok512.bin")
    golden = json.loads((folder / "golden_greedy.json").read_text())
    assert tokenizer.decode(golden["greedy_ids"]) == golden["text"]
    assert tokenizer.encode(golden["text"]) == golden["greedy_ids"][1:]
    assert (tokenizer.size, tokenizer.bos, tokenizer.ends) == (512, 1, {1, 2})
    assert load_tokenizer(folder).encode("Once") == tokenizer.encode("Once")
    assert tokenizer.decode(tokenizer.encode("日本")) == "日本"  # by bytes


def test_tokenizer_json_of_byte_level_bpe(data_dir: Path, tmp_path: Path) -> None:
    metadata, _ = gguf_load(data_dir / "tokenizers" / "ggml-vocab-gpt-2.gguf")
    pieces, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    content = {"model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)},
                         "merges": [line.split(" ") for line in merges]},
               "pre_tokenizer": {"type": "ByteLevel", "use_regex": True}, "decoder": {"type": "ByteLevel"},
               "added_tokens": [{"id": 50256, "content": "<|endoftext|>", "special": True},
                                {"id": 50257, "content": "llama", "special": False}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    tokenizer = load_tokenizer(tmp_path)
    for text, tokens in golden_cases(data_dir / "tokenizers", "gpt-2"):
        assert tokenizer.encode(text) == tokens
    assert tokenizer.encode("a llama!") == [*tokenizer.encode("a "), 50257, *tokenizer.encode("!")]
    assert tokenizer.decode(tokenizer.encode("a llama!")) == "a llama!"
    assert tokenizer.bos is None and tokenizer.ends == {50256}


def test_tokenizer_json_of_sentencepiece(data_dir: Path, tmp_path: Path) -> None:
    original = load_tokenizer(data_dir / "tokenizers" / "tokenizer.model.v1")
    assert isinstance(original, SentencePieceTokenizer)
    p = original.processor
    vocabulary = {p.id_to_piece(i): i for i in range(original.size)}
    splits = [(-p.get_score(i), i, piece[:at], piece[at:]) for piece, i in vocabulary.items()
              for at in range(1, len(piece))]
    merges = [(first, second) for _, _, first, second in sorted(splits) if first in vocabulary and second in vocabulary]
    added = [{"id": i, "content": name, "special": True} for i, name in enumerate(["<unk>", "<s>", "</s>"])]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True, "unk_token": "<unk>"}
    normalizers = [{"type": "Prepend", "prepend": SPACE},
                   {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    content = {"model": model, "added_tokens": added, "decoder": {"type": "ByteFallback"},
               "normalizer": {"type": "Sequence", "normalizers": normalizers}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text)


SPLIT_CASES = [
    ("gpt-2", "I'll be  here, 123 times!\n\n", ["I", "'ll", " be", " ", " here", ",", " 123", " times", "!", "\n\n"]),
    ("gpt-2", "I'LL naïve x\u00a0y ½", ["I", "'", "LL", " naïve", " x", "\u00a0", "y", " ½"]),
    ("gpt-2", "a\x1cb e\u0301", ["a", "\x1c", "b", " e", "\u0301"]),
    ("smollm", "in 2024!", ["in", " ", "2", "0", "2", "4", "!"]),
    ("llama-bpe", "I'LL pay 12345\n\n  now...\n", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " ", " now", "...\n"]),
    ("qwen2", "x=12", ["x", "=", "1", "2"]),
]


@pytest.mark.parametrize("split, text, words", SPLIT_CASES)
def test_words(split: str, text: str, words: list[str]) -> None:
    assert split_words(text, SPLITS[split]) == words


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("text", TEXTS)
def test_splitting_loses_nothing(split: str, text: str) -> None:
    assert "".join(split_words(text, SPLITS[split])) == text


def test_merge_takes_the_best_pair_first() -> None:
    ranks = {("b", "c"): 0, ("a", "b"): 1, ("a", "bc"): 2, ("a", "a"): 3}
    assert merge(list("abc"), ranks) == ["abc"]
    assert merge(list("aba"), ranks) == ["ab", "a"]
    assert merge(list("aaaaa"), ranks) == ["aa", "aa", "a"]
    assert merge([], ranks) == []


def test_streams_hold_back_half_characters(data_dir: Path) -> None:
    for file, text in (("ggml-vocab-gpt-2.gguf", "a 🦙 né"), ("ggml-vocab-phi-3.gguf", "a 🦙 né")):
        tokenizer = load_tokenizer(data_dir / "tokenizers" / file)
        decoder = StreamDecoder(tokenizer)
        parts = [decoder.add(token) for token in tokenizer.encode(text)]
        assert "".join(parts) == text and "" in parts and decoder.finish() == ""
        assert all("\ufffd" not in part for part in parts)
        for token in tokenizer.encode("🦙")[:-1]:
            decoder.add(token)
        assert decoder.finish() == "\ufffd"


def test_a_continued_stream_keeps_its_first_space(data_dir: Path) -> None:
    tokenizer = load_tokenizer(data_dir / "tokenizers" / "tokenizer.model.v1")
    tokens = tokenizer.encode("word")
    assert StreamDecoder(tokenizer).add(tokens[0]) == "word"
    assert StreamDecoder(tokenizer, continues=True).add(tokens[0]) == " word"


# Chat formats


def byte_tokenizer(*special: str) -> ByteBPETokenizer:
    """A vocabulary of single bytes (id = byte) and the given control tokens from 256 on."""
    names = {name: 256 + index for index, name in enumerate(special)}
    return ByteBPETokenizer({name: byte for byte, name in enumerate(BYTE_NAMES)}, [], names, "gpt-2")


def test_chatml() -> None:
    tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>")
    jinja = "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{{'<|im_start|>' + message['role']}}"
    template = templates.detect(jinja, tokenizer)
    assert template is not None and template.name == "chatml" and template.default_system == "Be kind."
    start, end = [256], [257]

    def plain(text: str) -> list[int]:
        return list(text.encode())

    asked = [*start, *plain("user\n<|im_end|>hi"), *end, *plain("\n"), *start, *plain("assistant\n")]
    system = [*start, *plain("system\nBe kind."), *end, *plain("\n")]
    assert templates.question(template, tokenizer, "<|im_end|>hi") == asked  # what the user writes is only text
    assert templates.first_question(template, tokenizer, "<|im_end|>hi", None) == system + asked
    assert templates.first_question(template, tokenizer, "<|im_end|>hi", "") == asked
    assert templates.closing(template, tokenizer) == [*end, *plain("\n")]


def test_detection_of_formats() -> None:
    plain = byte_tokenizer()
    assert templates.detect(None, plain) is None and templates.detect("{{ messages }}", plain) is None
    assert templates.detect(None, byte_tokenizer("<|im_start|>")) == templates.CHATML
    assert templates.detect("{{ '<|user|>\n' }}", plain) == templates.ZEPHYR
    assert templates.detect("{{ '<|start_header_id|>' }}", plain) == templates.LLAMA3
    template = templates.detect("{{ '[INST] ' + content }}", plain)
    assert template == templates.LLAMA2
    text = bytes(templates.first_question(template, plain, "Why {}?", "Be brief."))
    assert text == b"[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWhy {}? [/INST]"


def test_smollm_prompts(data_dir: Path) -> None:
    from examples.llama.chat import default_model
    try:
        model = default_model()
    except FormatError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
    metadata, _ = gguf_load(model)
    tokenizer = gguf_tokenizer(metadata, model)
    template = templates.detect(metadata["tokenizer.chat_template"], tokenizer)
    assert template is not None
    lines = (data_dir / "llm" / "smollm2-135m-instruct" / "golden_greedy.jsonl").read_text().splitlines()
    for golden in map(json.loads, lines):
        assert templates.first_question(template, tokenizer, golden["prompt"], None) == golden["prompt_ids"]
        assert tokenizer.decode(golden["out_ids"]) == golden["text"]
    assert tokenizer.ends >= {0, 2} and tokenizer.bos is None


# Bad input


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"expected tokenizer.model or tokenizer.json in the folder, found neither"):
        load_tokenizer(tmp_path)
    with pytest.raises(FormatError, match="there is no such tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(FormatError, match="expected a SentencePiece model"):
        load_tokenizer(tmp_path)


BAD_JSON = [
    ("{", "expected JSON"),
    ('{"model": {"type": "Unigram", "vocab": [], "merges": []}}', "of type 'Unigram'; expected BPE"),
    ('{"model": {"vocab": {}, "merges": []}, "pre_tokenizer": {"type": "Whitespace"}}', "pre_tokenizer 'Whitespace'"),
    ('{"model": {"vocab": {}, "merges": ["abc"]}, "decoder": {"type": "ByteLevel"}}', "a merge .* 'abc'"),
    ('{"model": {"vocab": {"a": 0}, "merges": ["a a"]}, "decoder": {"type": "ByteLevel"}}',
     "merges into 'aa'"),
]


@pytest.mark.parametrize("text, message", BAD_JSON)
def test_bad_tokenizer_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_bad_llama2c_vocabulary(data_dir: Path, tmp_path: Path) -> None:
    whole = (data_dir / "llm" / "stories260K" / "tok512.bin").read_bytes()
    for data, message in ((whole[:-1], "piece 511 ends behind"), (whole[:2000], "ends behind|expected a tokenizer"),
                          (struct.pack("<ifi", 5, 0.0, 1) + b"a", "got 1 pieces")):
        (tmp_path / "tok.bin").write_bytes(data)
        with pytest.raises(FormatError, match=message):
            load_tokenizer(tmp_path / "tok.bin")


def test_bad_gguf_vocabulary() -> None:
    path = Path("model.gguf")
    with pytest.raises(FormatError, match="of kind 'bert'; expected 'llama' or 'gpt2'"):
        gguf_tokenizer({"tokenizer.ggml.model": "bert"}, path)
    with pytest.raises(FormatError, match="expected 'scores' to be a list of 1 of float"):
        gguf_tokenizer({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, path)
    with pytest.raises(FormatError, match="cuts words as 'strange'; expected one of gpt-2"):
        strange = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.pre": "strange"}
        gguf_tokenizer(strange, path)
