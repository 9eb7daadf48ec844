"""The chat example: golden texts from every weight format and on every device, sampling, conversations, bad input."""
from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import devices
from support.model_files import View, gguf_string, write_gguf, write_torch_zip

from examples.llama import chat
from examples.llama.checkpoint import Checkpoint
from examples.llama.generate import ContextFull, Sampler, Session
from examples.llama.model import Llama
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from examples.llama.weights import _rope_factors, load_checkpoint
from minigrad import Tensor
from minigrad.config import config
from minigrad.engine.stats import stats
from minigrad.errors import FormatError
from minigrad.state import gguf_load, safe_load, safe_save
from minigrad.state.fields import Fields

COMPILED = [name for name in devices() if name != "NUMPY"]
FAST = [name for name in COMPILED if name != "CL:rusticl"]  # where a model of 135 million weights is no wait


@pytest.fixture
def stories(data_dir: Path) -> Path:
    return data_dir / "llm" / "stories260K"


@pytest.fixture
def golden(stories: Path) -> list[int]:
    """Ids of the golden text, BOS first."""
    return json.loads((stories / "golden_greedy.json").read_text())["greedy_ids"]


@pytest.fixture
def arrays(stories: Path) -> dict[str, np.ndarray]:
    """The weights of stories260K under llama2.c's names, rotary pairs side by side; the layer is the first axis."""
    data = np.fromfile(stories / "stories260K.bin", np.float32, offset=28)
    layers, width, hidden, keys = 5, 64, 172, 32
    shapes = {"embedding": (512, width), "attention_norm": (layers, width), "wq": (layers, width, width),
              "wk": (layers, keys, width), "wv": (layers, keys, width), "wo": (layers, width, width),
              "ffn_norm": (layers, width), "w1": (layers, hidden, width), "w2": (layers, width, hidden),
              "w3": (layers, hidden, width), "norm": (width,)}
    out, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        out[name] = data[at:at + size].reshape(shape)
        at += size
    return out


def greedy(checkpoint: Checkpoint, prompt: list[int], count: int) -> list[int]:
    """The prompt and `count` more ids, the best one each time."""
    session = Session(Llama(checkpoint.config, checkpoint.tensors))
    return prompt + list(session.generate(prompt, Sampler(), count, frozenset()))


# stories260K


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("file, count", [("stories260K.bin", 200), ("hf", 200), ("stories260K_v1.bin", 30),
                                         ("hf/model.safetensors", 30)])
def test_stories_golden_text(stories: Path, golden: list[int], device: str, file: str, count: int) -> None:
    with config(device=device):
        assert greedy(load_checkpoint(stories / file), [1], count) == golden[:count + 1]


@pytest.mark.parametrize("device", devices())
def test_prompts_of_any_length_continue_the_golden_text(stories: Path, golden: list[int], device: str) -> None:
    """Prefill in one go, in parts, and token by token leave the same cache."""
    with config(device=device):
        checkpoint = load_checkpoint(stories / "stories260K.bin")
        session = Session(Llama(checkpoint.config, checkpoint.tensors))
        for cuts in ([60], [2, 60], [1, 2, 3, 40, 41, 60], [59, 60]):
            session.position = 0
            for start, stop in zip([0, *cuts], cuts, strict=False):
                logits = session.feed(golden[start:stop])
            assert session.position == 60
            assert int(logits.argmax()) == golden[60]


def test_logits_of_the_first_token(stories: Path) -> None:
    checkpoint = load_checkpoint(stories / "hf")
    logits = Session(Llama(checkpoint.config, checkpoint.tensors)).feed([1])
    expected = json.loads((stories / "golden_greedy.json").read_text())["first_logits_head"]
    np.testing.assert_allclose(logits[:len(expected)], expected, atol=1e-3)


# The same weights in the other formats


def layered(arrays: dict[str, np.ndarray], names: dict[str, str], pattern: str) -> Iterator[tuple[str, np.ndarray]]:
    for layer in range(5):
        for ours, theirs in names.items():
            yield pattern.format(layer, theirs), arrays[ours][layer]


META = {"attention_norm": "attention_norm", "ffn_norm": "ffn_norm", "wq": "attention.wq", "wk": "attention.wk",
        "wv": "attention.wv", "wo": "attention.wo", "w1": "feed_forward.w1", "w2": "feed_forward.w2",
        "w3": "feed_forward.w3"}
GGUF = {"attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "wq": "attn_q", "wk": "attn_k", "wv": "attn_v",
        "wo": "attn_output", "w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}


def shard(name: str, array: np.ndarray, index: int, count: int) -> np.ndarray:
    """The part of a tensor that one of `count` processes held when Meta trained."""
    if array.ndim == 1:
        return array
    axis = 1 if any(word in name for word in ("wo", "w2", "tok_embeddings")) else 0
    return np.ascontiguousarray(np.split(array, count, axis)[index])


@pytest.mark.parametrize("shards", [1, 2])
def test_meta_folder(tmp_path: Path, arrays: dict[str, np.ndarray], golden: list[int], shards: int) -> None:
    tensors = {"tok_embeddings.weight": arrays["embedding"], "norm.weight": arrays["norm"],
               "output.weight": arrays["embedding"], **dict(layered(arrays, META, "layers.{}.{}.weight"))}
    for index in range(shards):
        parts = {name: shard(name, array, index, shards) for name, array in tensors.items()}
        write_torch_zip(tmp_path / f"consolidated.{index:02}.pth", {
            name: View(part.reshape(-1), 0, part.shape, tuple(s // 4 for s in part.strides))
            for name, part in parts.items()})
    params = {"dim": 64, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "vocab_size": -1, "norm_eps": 1e-5}
    (tmp_path / "params.json").write_text(json.dumps(params))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config.hidden == 172 and checkpoint.config.vocabulary == 512
    assert greedy(checkpoint, golden[:20], 20) == golden[:40]


def test_gguf_file(tmp_path: Path, stories: Path, arrays: dict[str, np.ndarray], golden: list[int]) -> None:
    tensors = {"token_embd.weight": arrays["embedding"], "output_norm.weight": arrays["norm"],
               **dict(layered(arrays, GGUF, "blk.{}.{}.weight"))}
    numbers = {"embedding_length": 64, "feed_forward_length": 172, "block_count": 5, "attention.head_count": 8,
               "attention.head_count_kv": 4, "context_length": 512, "rope.dimension_count": 8}
    tokenizer: Any = load_tokenizer(stories / "tok512.bin")
    vocabulary = tokenizer.processor
    pieces = [vocabulary.id_to_piece(i) for i in range(512)]
    scores = [vocabulary.get_score(i) for i in range(512)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 253
    metadata = [("general.architecture", 8, gguf_string("llama")),
                *((f"llama.{key}", 4, struct.pack("<I", value)) for key, value in numbers.items()),
                ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
                ("tokenizer.ggml.model", 8, gguf_string("llama")),
                ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 512) + b"".join(map(gguf_string, pieces))),
                ("tokenizer.ggml.scores", 9, struct.pack("<IQ512f", 6, 512, *scores)),
                ("tokenizer.ggml.token_type", 9, struct.pack("<IQ512i", 5, 512, *kinds)),
                ("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
                ("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 2))]
    write_gguf(tmp_path / "a.gguf", metadata, [(name, a.shape, 0, a.tobytes()) for name, a in tensors.items()])
    checkpoint = load_checkpoint(tmp_path / "a.gguf")
    assert greedy(checkpoint, golden[:20], 20) == golden[:40]
    tokenizer = gguf_tokenizer(checkpoint.metadata, checkpoint.source)
    assert tokenizer.encode("Once upon a time") == golden[1:1 + len(tokenizer.encode("Once upon a time"))]


def test_sharded_hf_folder_in_bfloat16(tmp_path: Path, stories: Path, golden: list[int]) -> None:
    """Weights stay in the file's type; rounding them to bfloat16 moves the logits a little."""
    exact = safe_load(stories / "hf" / "model.safetensors")
    rounded = {name: tensor.bfloat16() for name, tensor in exact.items()}
    names = list(rounded)
    weight_map: dict[str, str] = {}
    for part, chosen in enumerate((names[:9], names[9:])):
        file = f"model-{part}.safetensors"
        safe_save({name: rounded[name] for name in chosen}, tmp_path / file)
        weight_map |= dict.fromkeys(chosen, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text((stories / "hf" / "config.json").read_text())
    template = [{"name": "tool", "template": "x"}, {"name": "default", "template": "<|user|>"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.metadata == {"tokenizer.chat_template": "<|user|>"}
    session = Session(Llama(checkpoint.config, checkpoint.tensors))
    reference = load_checkpoint(stories / "hf")
    expected = Session(Llama(reference.config, reference.tensors)).feed(golden[:50])
    logits = session.feed(golden[:50])
    assert 0 < np.abs(logits - expected).max() < 0.3
    assert session.model.weight_bytes() == 2 * sum(t.numpy().size for t in exact.values())


def test_untied_output(tmp_path: Path, stories: Path, arrays: dict[str, np.ndarray], golden: list[int]) -> None:
    """A llama2.c file with a negative vocabulary size has an output matrix at its end."""
    whole = bytearray((stories / "stories260K.bin").read_bytes())
    whole[20:24] = struct.pack("<i", -512)
    permuted = np.roll(arrays["embedding"], 1, axis=0)
    (tmp_path / "a.bin").write_bytes(whole + permuted.tobytes())
    checkpoint = load_checkpoint(tmp_path / "a.bin")
    session = Session(Llama(checkpoint.config, checkpoint.tensors))
    assert int(session.feed(golden[:30]).argmax()) == golden[30] + 1


def test_llama3_rope_factors(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    factors = _rope_factors(Fields(scaling, tmp_path), 500000.0, 128)
    assert factors is not None
    for pair, factor in enumerate(factors):
        wavelength = 2 * np.pi * 500000.0 ** (pair / 64)
        if wavelength < 8192 / 4:
            assert factor == 1
        elif wavelength > 8192:
            assert factor == 8
        else:
            assert 1 <= factor <= 8
    assert _rope_factors(Fields({}, tmp_path), 1e4, 64) is None
    assert _rope_factors(Fields({"type": "linear", "factor": 2}, tmp_path), 1e4, 8) == (2.0,) * 4
    with pytest.raises(FormatError, match="scaled by 'yarn'; expected 'llama3' or 'linear'"):
        _rope_factors(Fields({"type": "yarn"}, tmp_path), 1e4, 64)


# SmolLM2


@pytest.fixture(scope="module")
def smollm() -> Path:
    try:
        return chat.default_model()
    except FormatError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")


@pytest.fixture
def smollm_goldens(data_dir: Path) -> Any:
    return np.load(data_dir / "llm" / "smollm2-135m-instruct" / "golden_logits.npz")


@pytest.mark.parametrize("device", FAST)
def test_smollm_golden_answers(smollm: Path, data_dir: Path, smollm_goldens: Any, device: str) -> None:
    lines = (data_dir / "llm" / "smollm2-135m-instruct" / "golden_greedy.jsonl").read_text().splitlines()
    with config(device=device):
        checkpoint = load_checkpoint(smollm)
        tokenizer = gguf_tokenizer(checkpoint.metadata, smollm)
        session = Session(Llama(checkpoint.config, checkpoint.tensors, 512))
        for index, answer in enumerate(map(json.loads, lines)):
            session.position = 0
            logits = session.feed(answer["prompt_ids"])
            assert np.abs(logits - smollm_goldens[f"last_logits{index}"]).max() < 1e-2
            session.position = 0
            tokens = list(session.generate(answer["prompt_ids"], Sampler(), 100, tokenizer.ends))
            assert tokens == answer["out_ids"] and tokenizer.decode(tokens) == answer["text"]


@pytest.mark.parametrize("device", FAST)
@pytest.mark.parametrize("integers", [False, True], ids=["exact", "quantize_activations"])
def test_smollm_likelihood(smollm: Path, smollm_goldens: Any, device: str, integers: bool) -> None:
    """Mean of -log p over the tokens of a text, each given those before it."""
    tokens = smollm_goldens["shakespeare512"].astype(np.int32)
    with config(device=device):
        checkpoint = load_checkpoint(smollm)
        model = Llama(replace(checkpoint.config, quantize_activations=integers), checkpoint.tensors, 512)
        hidden = model.hidden(Tensor(tokens), 0)[:-1]
        scores = model.logits(hidden).log_softmax(-1)
        loss = -scores.gather(1, Tensor(tokens[1:]).reshape(-1, 1)).mean().item()
    assert abs(loss - float(smollm_goldens["shakespeare512_nll"])) < (0.02 if integers else 0.002)


# Sampling


def test_sampler() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert Sampler().choose(logits) == 0

    def shares(**options: Any) -> np.ndarray:
        sampler = Sampler(temperature=options.pop("temperature", 1.0), seed=1, **options)
        return np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000

    np.testing.assert_allclose(shares(), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(shares(top_k=2), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.75), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.81), [0.526, 0.316, 0.158, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.0), [1, 0, 0, 0])
    np.testing.assert_allclose(shares(temperature=0.5)[0], 0.25 / 0.365, atol=0.03)
    first, second = Sampler(1.0, seed=7), Sampler(1.0, seed=7)
    assert [first.choose(logits) for _ in range(20)] == [second.choose(logits) for _ in range(20)]
    assert Sampler(1e-9, seed=0).choose(logits) == 0  # no overflow


# Conversations


def run_chat(*arguments: str, capsys: pytest.CaptureFixture) -> tuple[int, str, str]:
    code = chat.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_chat_continues_a_text(stories: Path, capsys: pytest.CaptureFixture) -> None:
    text = json.loads((stories / "golden_greedy.json").read_text())["text"]
    model = str(stories / "stories260K.bin")
    assert run_chat("--model", model, "--prompt", "", "--count", "200", capsys=capsys) == (0, text + "\n", "")
    code, out, err = run_chat("--model", str(stories / "hf"), "--tokenizer", str(stories / "tok512.bin"), "--prompt",
                              "Once upon a time", "--count", "20", "--timing", capsys=capsys)
    assert code == 0 and text.startswith("Once upon a time" + out.rstrip("\n"))
    assert "compiled in" in err and "tok/s" in err and "GB/s of weights" in err


def test_chat_is_a_script(stories: Path, tmp_path: Path) -> None:
    command = [sys.executable, chat.__file__, "--model", str(stories / "stories260K.bin"), "--count", "5", "--prompt"]
    done = subprocess.run([*command, "One day"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("\n") and len(done.stdout) > 5
    done = subprocess.run([*command, "One day", "--tokenizer", "none"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("chat.py: none: there is no such")


def test_chat_is_reproducible_with_a_seed(stories: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--model", str(stories / "stories260K.bin"), "--prompt", "", "--count", "30", "--temperature", "1",
                 "--top-k", "40", "--top-p", "0.9", "--seed"]
    first = run_chat(*arguments, "1", capsys=capsys)
    assert first == run_chat(*arguments, "1", capsys=capsys) != run_chat(*arguments, "2", capsys=capsys)


def test_chat_reads_questions_until_the_end(stories: Path, capsys: pytest.CaptureFixture,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    questions = iter(["Once upon", "Lily"])

    def read(_: str) -> str:
        try:
            return next(questions)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    code, out, _ = run_chat("--model", str(stories / "stories260K.bin"), "--count", "5", capsys=capsys)
    assert code == 0 and len(out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", None)  # as where it is closed
    assert run_chat("--model", str(stories / "stories260K.bin"), capsys=capsys)[:2] == (0, "")


@pytest.fixture
def turns(stories: Path, monkeypatch: pytest.MonkeyPatch) -> chat.Chat:
    """A chat in Zephyr's format, which needs no control tokens but </s>, with a model that never heard of it."""
    options = chat.parse_arguments(["--model", str(stories / "stories260K.bin"), "--count", "6", "--context", "200"])
    made = chat.Chat(options)
    made.template = chat.templates.ZEPHYR
    return made


def test_a_conversation_keeps_its_cache(turns: chat.Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two turns the model is where it would be, had it seen everything in one go."""
    fed: list[int] = []
    results: list[np.ndarray] = []
    feed = turns.session.feed

    def spy(tokens: list[int]) -> np.ndarray:
        fed.extend(tokens)
        results.append(feed(tokens))
        return results[-1]

    monkeypatch.setattr(turns.session, "feed", spy)
    turns.answer("Hello there")
    first = len(fed)
    turns.answer("Tell me a story about a big dog")
    assert turns.session.position == len(fed) and fed.count(1) == 1 and fed[0] == 1
    assert fed[first:first + len(turns.unfed)] == turns.unfed == [2, *turns.tokenizer.encode("\n")]
    np.testing.assert_allclose(Session(turns.session.model).feed(fed), results[-1], atol=1e-4)


@pytest.mark.parametrize("device", COMPILED)
def test_a_second_turn_of_another_length_compiles_nothing(stories: Path, golden: list[int], device: str) -> None:
    with config(device=device):
        checkpoint = load_checkpoint(stories / "stories260K.bin")
        session = Session(Llama(checkpoint.config, checkpoint.tensors))
        for _ in range(2):
            list(session.generate(golden[:9], Sampler(), 5, frozenset()))
        before = stats.snapshot()
        for length in (2, 30, 101):
            list(session.generate(golden[:length], Sampler(), 20, frozenset()))
        after = stats.snapshot() - before
    assert (after.programs, after.schedules) == (0, 0)


def test_the_end_of_the_context(turns: chat.Chat, capsys: pytest.CaptureFixture) -> None:
    turns.options.count = 1000
    turns.answer("Hello")
    assert "(stopped: the conversation fills the context of 200 tokens)" in capsys.readouterr().err
    with pytest.raises(ContextFull, match=r"would have .* tokens and the cache holds 200; .*--context"):
        turns.answer("More")
    assert turns.session.position == 200


def test_ctrl_c_stops_an_answer(turns: chat.Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.options.count = 50
    add = chat.StreamDecoder.add
    calls = []

    def press(decoder: Any, token: int) -> str:
        calls.append(token)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return add(decoder, token)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us ignoring it
    monkeypatch.setattr(chat.StreamDecoder, "add", press)
    turns.answer("Hello")
    assert len(calls) == 3
    monkeypatch.undo()
    turns.answer("Are you still there?")  # and the conversation goes on
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), chat.interruptible() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed
        os.kill(os.getpid(), signal.SIGINT)


# Bad input


def bad(tmp_path: Path, stories: Path) -> dict[str, tuple[list[str], str]]:
    """Arguments and what the one line must say."""
    whole = (stories / "stories260K.bin").read_bytes()
    (tmp_path / "short.bin").write_bytes(whole[:5000])
    (tmp_path / "long.bin").write_bytes(whole + b"1234")
    (tmp_path / "v2.bin").write_bytes(b"24ka\2\0\0\0" + bytes(300))
    (tmp_path / "text.bin").write_bytes(b"this is not a model, it is a text of some length")
    (tmp_path / "short.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "model.onnx").write_bytes(b"x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    good, other = str(stories / "stories260K.bin"), str(stories.parents[1] / "tokenizers" / "tokenizer.model.v1")
    return {"missing": (["--model", "none.gguf"], "there is no such model"),
            "short": (["--model", str(tmp_path / "short.bin")], "truncated or corrupt: the array"),
            "long": (["--model", str(tmp_path / "long.bin")], "corrupt: expected 1056540 bytes"),
            "version": (["--model", str(tmp_path / "v2.bin")], "expected version 1 of llama2.c's format, got 2"),
            "text": (["--model", str(tmp_path / "text.bin")], "expected a model of llama2.c"),
            "gguf": (["--model", str(tmp_path / "short.gguf")], "truncated or corrupt"),
            "kind": (["--model", str(tmp_path / "model.onnx")], "expected a file that ends in .gguf"),
            "bert": (["--model", str(folder)], "the model's type is 'bert'; expected 'llama'"),
            "tokenizer": (["--model", str(stories / "hf")], "expected tokenizer.model or tokenizer.json"),
            "vocabulary": (["--model", good, "--tokenizer", other], "the tokenizer has 32000 tokens and the model 512"),
            "device": (["--model", good, "--device", "TPU"], "expected a device CPU, NUMPY, CL")}


@pytest.mark.parametrize("case", ["missing", "short", "long", "version", "text", "gguf", "kind", "bert", "tokenizer",
                                  "vocabulary", "device"])
def test_bad_input_is_one_line(tmp_path: Path, stories: Path, capsys: pytest.CaptureFixture, case: str) -> None:
    arguments, message = bad(tmp_path, stories)[case]
    code, out, err = run_chat(*arguments, "--prompt", "x", capsys=capsys)
    assert code == 1 and out == "" and message in err
    assert err.startswith("chat.py: ") and len(err.splitlines()) == 1
    with pytest.raises(Exception, match=r"."):
        chat.main([*arguments, "--prompt", "x", "--debug"])


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--temperature", "-1"], ["--top-k", "x"], ["--seed", "-5"],
                                       ["--nonsense"]])
def test_bad_options(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as error:
        chat.main(arguments)
    assert error.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_wrong_shapes_name_the_tensor(stories: Path) -> None:
    checkpoint = load_checkpoint(stories / "stories260K.bin")
    checkpoint.tensors["layers.2.key"] = checkpoint.tensors["layers.2.query"]
    with pytest.raises(FormatError, match=r"layers.2.key has shape \[64, 64\]; expected \[32, 64\]"):
        Llama(checkpoint.config, checkpoint.tensors)
    del checkpoint.tensors["layers.2.key"]
    with pytest.raises(FormatError, match=r"no tensor for layers.2.key"):
        Llama(checkpoint.config, checkpoint.tensors)


def test_gguf_without_weights_or_of_another_kind(data_dir: Path) -> None:
    for name, message in (("phi-3", "architecture is 'phi3'; expected 'llama'"), ("gpt-2", "'gpt2'")):
        with pytest.raises(FormatError, match=message):
            load_checkpoint(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    assert gguf_load(data_dir / "tokenizers" / "ggml-vocab-phi-3.gguf")[1] == {}
