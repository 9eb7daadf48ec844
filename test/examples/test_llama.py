"""The language model example: golden texts from every weight format and on every device, bad input."""
from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in, quick_devices
from support.model_files import View, gguf_string, write_gguf, write_torch_zip

from examples.llama.assistant import default_model
from examples.llama.caches import Cache
from examples.llama.checkpoint import Checkpoint
from examples.llama.generate import Session
from examples.llama.model import Llama
from examples.llama.rope_scaling import read_rope
from examples.llama.sampling import Sampler
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from examples.llama.weights import load_checkpoint
from minigrad import Tensor
from minigrad.config import config
from minigrad.engine.stats import stats
from minigrad.errors import FormatError
from minigrad.state import gguf_load, safe_load, safe_save
from minigrad.state.fields import Fields

COMPILED = [name for name in devices() if name != "NUMPY"]
FAST = [name for name in quick_devices() if name != "NUMPY"]  # where a model of 135 million weights is no wait


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
@one_in(3, CPU_DRIVERS)
def test_stories_golden_text(stories: Path, golden: list[int], device: str, file: str, count: int) -> None:
    count = min(count, 50) if device == "NUMPY" else count  # a second for 15 of them
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
    factors = read_rope(Fields(scaling, tmp_path), 500000.0, 128, 8192).factors
    assert factors is not None
    for pair, factor in enumerate(factors):
        wavelength = 2 * np.pi * 500000.0 ** (pair / 64)
        if wavelength < 8192 / 4:
            assert factor == 1
        elif wavelength > 8192:
            assert factor == 8
        else:
            assert 1 <= factor <= 8
    assert read_rope(Fields({}, tmp_path), 1e4, 64, 8192).factors is None
    assert read_rope(Fields({"type": "linear", "factor": 2}, tmp_path), 1e4, 8, 8192).factors == (2.0,) * 4
    with pytest.raises(FormatError, match="scaled by 'dynamic'; expected one of 'default', 'linear', 'llama3', 'yarn'"):
        read_rope(Fields({"type": "dynamic"}, tmp_path), 1e4, 64, 8192)


# SmolLM2


@pytest.fixture(scope="module")
def smollm() -> Path:
    try:
        return default_model()
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
@pytest.mark.parametrize("options, most", [({}, 0.002), ({"quantize_activations": True}, 0.02),
                                           ({"cache": "int8"}, 0.01)], ids=["exact", "quantize_activations", "int8"])
@one_in(2, CPU_DRIVERS)
def test_smollm_likelihood(smollm: Path, smollm_goldens: Any, device: str, options: Any, most: float) -> None:
    """Mean of -log p over the tokens of a text, each given those before it."""
    tokens = smollm_goldens["shakespeare512"].astype(np.int32)
    with config(device=device):
        checkpoint = load_checkpoint(smollm)
        model = Llama(replace(checkpoint.config, **options), checkpoint.tensors, 512)
        hidden = model.hidden(Tensor(tokens), 0)[:-1]
        scores = model.logits(hidden).log_softmax(-1)
        loss = -scores.gather(1, Tensor(tokens[1:]).reshape(-1, 1)).mean().item()
    assert abs(loss - float(smollm_goldens["shakespeare512_nll"])) < most


# Sessions


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


# Bad input


def test_wrong_shapes_name_the_tensor(stories: Path) -> None:
    checkpoint = load_checkpoint(stories / "stories260K.bin")
    checkpoint.tensors["layers.2.key"] = checkpoint.tensors["layers.2.query"]
    with pytest.raises(FormatError, match=r"layers.2.key has shape \[64, 64\]; expected \[32, 64\]"):
        Llama(checkpoint.config, checkpoint.tensors)
    del checkpoint.tensors["layers.2.key"]
    with pytest.raises(FormatError, match=r"no tensor for layers.2.key"):
        Llama(checkpoint.config, checkpoint.tensors)


def test_gguf_without_weights_or_of_another_kind(data_dir: Path) -> None:
    for name, message in (("phi-3", "it holds only a vocabulary"),
                          ("gpt-2", "architecture is 'gpt2', .* known are llama")):
        with pytest.raises(FormatError, match=message):
            load_checkpoint(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    assert gguf_load(data_dir / "tokenizers" / "ggml-vocab-phi-3.gguf")[1] == {}


@pytest.mark.parametrize("device", devices())
def test_keys_and_values_in_fewer_bits(device: str, data_dir: Path) -> None:
    """Half or a quarter of the cache's memory; scores are those of float32 but for the rounding, in pieces and token by
    token. The model's heads have 8 numbers, which a scale is for."""
    tokens, found = [1, *range(400, 440)], {}
    with config(device=device):
        checkpoint = load_checkpoint(data_dir / "llm" / "stories260K" / "hf")
        for cache in ("float32", "float16", "int8"):
            model = Llama(replace(checkpoint.config, cache=cache), checkpoint.tensors, 64)
            assert {t.dtype.name for t in model.caches()} == {cache} | ({"float16"} if cache == "int8" else set())
            session = Session(model)
            found[cache] = np.stack([session.feed(tokens), session.feed([7]), session.feed([9])])
    assert 0 < np.abs(found["float16"] - found["float32"]).max() < 0.02
    different = np.abs(found["int8"] - found["float32"])
    assert 0 < different.mean() < 0.03 * found["float32"].std() and different.max() < 0.1 * found["float32"].std()


@pytest.mark.parametrize("device", devices())
def test_rows_in_bytes_are_multiples_of_their_scales(device: str) -> None:
    """The nearest ones, and zero where all of a row is; rows that were not put are left alone."""
    sizes = np.float32(10) ** np.arange(-3, 2, dtype=np.float32)[:, None]
    rows = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32) * sizes
    rows[1, 2] = 0
    with config(device=device):
        cache = Cache(2, 9, 8, "int8")
        cache.put(3, Tensor(rows))
        found, rest = cache.get(3, 8).numpy(), cache.get(0, 3).numpy()
    scales = np.abs(rows).max(-1, keepdims=True) / 127
    assert (np.abs(found - rows) <= scales * 0.57).all()  # half a step, and the scale is rounded to a float16
    assert (found[1, 2] == 0).all() and (rest == 0).all()
