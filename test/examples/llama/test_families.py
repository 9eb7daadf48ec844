"""A tiny model of each family: the logits that transformers computes, from both kinds of files, on every device.

The files are made by test/support/make_tiny_models.py.
"""
from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in, quick_devices

from examples.llama.checkpoint import Checkpoint, converted
from examples.llama.experts import ROWS, blocks_of
from examples.llama.families import HF, family_of
from examples.llama.generate import Session
from examples.llama.model import Llama
from examples.llama.sampling import Sampler
from examples.llama.speculation import PromptLookup, Speculation
from examples.llama.weights import load_checkpoint
from minigrad import Tensor, Variable, config
from minigrad.errors import FormatError, MinigradError
from minigrad.state import QuantizedTensor, safe_load, safe_save

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = sorted(path.name for path in MODELS.iterdir())
RECURRENT = ("qwen3next", "qwen35", "mamba2")
FORMS = {"folder": "", "gguf": "model.gguf"}
TOLERANCE = 1e-3
CONTEXT = 48


def goldens(name: str) -> dict[str, np.ndarray]:
    """Tokens and the logits that transformers gave for them."""
    with np.load(MODELS / name / "logits.npz") as found:
        return dict(found)


def load(name: str, form: str, context: int = CONTEXT) -> Llama:
    checkpoint = load_checkpoint(MODELS / name / FORMS[form])
    return Llama(checkpoint.config, checkpoint.tensors, context)


def all_logits(model: Llama, tokens: np.ndarray) -> np.ndarray:
    return model.logits(model.hidden(Tensor(tokens.astype(np.int32)), 0)).numpy()


def fed(model: Llama, tokens: list[int], start: int) -> list[np.ndarray]:
    """The last logits of a prompt of `start` tokens, and those of each further token."""
    session = Session(model)
    return [session.feed(tokens[:start]), *[session.feed([token]) for token in tokens[start:]]]


@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("name", NAMES)
@one_in(3, CPU_DRIVERS)
def test_logits(name: str, device: str) -> None:
    """Of a prompt, and token by token behind it: beyond the window and the original context. Both forms have the same
    programs, so that on OpenCL, where compiling takes long, one of them is enough."""
    golden = goldens(name)
    tokens, steps = golden["tokens"], golden["steps"]
    with config(device=device):
        for form in FORMS if not device.startswith("CL") else ("folder",):
            found = fed(load(name, form), tokens.tolist(), len(tokens) - len(steps) + 1)
            np.testing.assert_allclose(found, steps, atol=TOLERANCE, err_msg=form)


@pytest.mark.parametrize("device", [name for name in devices() if not name.startswith("CL")])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_every_position(name: str, device: str) -> None:
    """In a cache beyond the original context, and in one within it."""
    golden = goldens(name)
    with config(device=device):
        for form in FORMS:
            found = all_logits(load(name, form), golden["tokens"])
            np.testing.assert_allclose(found, golden["whole"], atol=TOLERANCE, err_msg=form)
        short = all_logits(load(name, "folder", 16), golden["tokens"][:12])
        np.testing.assert_allclose(short, golden["short"], atol=TOLERANCE)


def without(checkpoint: Checkpoint, feature: str) -> Llama | None:
    """The model with one feature of its family left out; None where it has no such feature."""
    c, tensors = checkpoint.config, checkpoint.tensors
    kinds = c.kinds
    plain: dict[str, Any] = {
        "window": [replace(kind, window=None) for kind in kinds], "layers without rope": [
            replace(kind, rope=0) if kind.rope is None and kind.mixer == "attention" else kind for kind in kinds],
        "second rope": [replace(kind, rope=0) if kind.rope == 1 else kind for kind in kinds]}
    fields: dict[str, Any] = {
        "attention_cap": None, "output_cap": None, "embedding_scale": 1.0, "attention_scale": None,
        "ropes": tuple([replace(rope, factors=None, long_factors=None) for rope in c.ropes])}
    if feature in plain:
        changed = replace(c, kinds=tuple(plain[feature]))
    elif feature in fields:
        changed = replace(c, **{feature: fields[feature]})
    elif feature == "scale of ropes":
        changed = replace(c, ropes=tuple([replace(rope, scale=1.0) for rope in c.ropes]))
    elif feature == "activation":
        changed = replace(c, activation="silu")
    elif feature == "chosen_only":
        changed = replace(c, experts=c.experts and replace(c.experts, chosen_only=False))
    elif feature == "shared":
        changed = replace(c, experts=c.experts and replace(c.experts, shared=0))
    else:
        changed = c
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("." + feature)}
        if len(tensors) == len(checkpoint.tensors):
            return None
        changed = replace(c, besides=c.besides - {feature})
    return None if changed == c and tensors is checkpoint.tensors else Llama(changed, tensors, CONTEXT)


FEATURES = ("window", "layers without rope", "second rope", "attention_cap", "output_cap", "embedding_scale",
            "attention_scale", "ropes", "scale of ropes", "activation", "chosen_only", "query_bias", "key_bias",
            "value_bias", "attention_out_bias", "query_norm", "key_norm", "sinks", "router_bias", "experts_gate_bias",
            "experts_up_bias", "experts_down_bias", "post_attention_norm", "post_feed_norm", "convolution_bias",
            "shared")


def test_every_feature_matters() -> None:
    """A model that left one out would be far from the goldens."""
    seen = set()
    with config(device="NUMPY"):
        for name in NAMES:
            golden = goldens(name)
            checkpoint = load_checkpoint(MODELS / name)
            for feature in FEATURES:
                model = without(checkpoint, feature)
                if model is None:
                    continue
                seen.add(feature)
                far = np.abs(all_logits(model, golden["tokens"]) - golden["whole"]).max()
                # A bias of the keys adds the same to all scores of a query, but for what turning makes of it.
                assert far > 1e-2, (name, feature, far)
    assert seen == set(FEATURES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(name: str) -> None:
    """Every tensor of a family that is not optional is asked for."""
    checkpoint = load_checkpoint(MODELS / name)
    family = family_of(json.loads((MODELS / name / "config.json").read_text())["model_type"], HF, MODELS)
    for full in sorted(checkpoint.tensors):
        ours = full.split(".")[-1]
        if ours in family.optional or ours == "output":
            continue
        fewer = {key: tensor for key, tensor in checkpoint.tensors.items() if key != full}
        with pytest.raises(FormatError, match=r"the model has no tensor for (layers|embedding|norm)"):
            Llama(checkpoint.config, fewer, CONTEXT)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    """A model of a family with something besides is not run without it."""
    shutil.copy(MODELS / "qwen3" / "config.json", tmp_path)
    tensors = safe_load(MODELS / "qwen3" / "model.safetensors")
    extra = {**tensors, "model.layers.1.self_attn.gate.weight": tensors["model.norm.weight"],
             "model.layers.1.self_attn.rotary_emb.inv_freq": tensors["model.norm.weight"]}
    safe_save(extra, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"the tensor 'model.layers.1.self_attn.gate.weight' has no place in a model "
                                          r"of the family 'qwen3'"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("name", RECURRENT)
@one_in(3, CPU_DRIVERS)
def test_a_recurrent_state_that_goes_back_starts_again(name: str, device: str) -> None:
    """Whatever was in the cache, and however a feed ended, the logits are those of the tokens."""
    tokens = goldens(name)["tokens"].tolist()
    with config(device=device):
        model = load(name, "folder")
        session, wanted = Session(model), Session(load(name, "folder")).feed(tokens[:14])
        session.feed(tokens[20:30])
        assert session.resume(tokens[:14]) == tokens[:14] and session.position == 0
        np.testing.assert_allclose(session.feed(tokens[:14]), wanted, atol=1e-5)
        assert session.resume(tokens[:14]) == tokens[:14]  # one token back is as far as all
        session.feed(tokens[:10])
        assert session.resume(tokens[:14]) == tokens[10:14]  # and none is not
        np.testing.assert_allclose(session.feed(tokens[10:14]), wanted, atol=1e-5)
        with pytest.raises(KeyboardInterrupt), session._whole():
            raise KeyboardInterrupt
        assert session.resume(tokens[:14]) == tokens[:14]
        np.testing.assert_allclose(session.feed(tokens[:14]), wanted, atol=1e-5)


@pytest.mark.parametrize("name", RECURRENT)
def test_nothing_is_guessed_with_a_recurrent_state(name: str) -> None:
    """Answers with and without speculation are the same, and several tokens are not verified at once."""
    prompt = [5, 6, 7, 8] * 3
    with config(device="NUMPY"):
        answers = []
        for guesses in (None, Speculation(PromptLookup(), hit_rate=1.0, seconds={1: 1.0, 4: 1.0, 12: 1.0})):
            session = Session(load(name, "folder"))
            answers.append(list(session.generate(prompt, Sampler(), 12, frozenset(), guesses)))
            assert guesses is None or guesses.proposed == 0
        assert answers[0] == answers[1]
        with pytest.raises(MinigradError, match="expected one token to verify, got 2; a recurrent state cannot go"):
            session.verify([1, 2])


def test_which_models_are_recurrent() -> None:
    assert [name for name in NAMES if load(name, "gguf").recurrent] == sorted(RECURRENT)


@pytest.mark.parametrize("changes, message", [
    ({"linear_num_key_heads": 3}, "heads divisible by groups of keys"),
    ({"linear_value_head_dim": 1 << 20}, "states of at most 1048576 elements"),
    ({"linear_key_head_dim": 7}, "delta_qkv; expected|no tensor for|has shape"),
    ({"full_attention_interval": 2, "layer_types": None}, "the tensor|no tensor for")])
def test_sizes_of_a_state_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    fields = json.loads((MODELS / "qwen3next" / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps({k: value for k, value in fields.items() if value is not None}))
    shutil.copy(MODELS / "qwen3next" / "model.safetensors", tmp_path)
    with pytest.raises(FormatError, match=message):
        checkpoint = load_checkpoint(tmp_path)
        Llama(checkpoint.config, checkpoint.tensors, CONTEXT)


@pytest.mark.parametrize("changes, message", [
    ({"model_type": "mamba"}, "type is 'mamba', of which the layers are not written here; known are llama, mistral"),
    ({"hidden_act": "relu"}, "the activation is 'relu'; expected 'silu'"),
    ({"layer_types": ["full_attention", "linear_attention"] * 2}, "a layer is of kind 'linear_attention'"),
    ({"layer_types": ["full_attention", "mamba"] * 2}, "'mamba'; expected one of full_attention, sliding_attention;"),
    ({"layer_types": ["conv"] * 4}, "a layer is of kind 'conv'; expected one of"),
    ({"layer_types": ["full_attention"]}, "a list of 4 of str"),
    ({"num_experts": 8}, "the model has 8 experts; expected none in this family"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "scaled by 'dynamic'; expected one of 'default'")])
def test_configurations_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    fields = json.loads((MODELS / "qwen3" / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(fields))
    shutil.copy(MODELS / "qwen3" / "model.safetensors", tmp_path)
    with pytest.raises(FormatError, match=message):
        load_checkpoint(tmp_path)


def test_configurations_of_older_files(tmp_path: Path) -> None:
    """The base and the scaling apart from each other, the pattern of windows as a number."""
    for name in ("llama", "gemma3", "phi3-longrope"):
        golden = goldens(name)
        fields = json.loads((MODELS / name / "config.json").read_text())
        ropes = fields.pop("rope_parameters")
        if name == "gemma3":
            fields["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
            fields["sliding_window_pattern"] = 6
            ropes = ropes["full_attention"]
        fields.pop("layer_types", None)
        fields["rope_theta"] = ropes.pop("rope_theta")
        fields["partial_rotary_factor"] = ropes.pop("partial_rotary_factor", 1.0)
        fields["rope_scaling"] = {"type" if key == "rope_type" else key: value for key, value in ropes.items()}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        shutil.copy(MODELS / name / "model.safetensors", tmp_path)
        with config(device="NUMPY"):
            checkpoint = load_checkpoint(tmp_path)
            found = all_logits(Llama(checkpoint.config, checkpoint.tensors, CONTEXT), golden["tokens"])
        np.testing.assert_allclose(found, golden["whole"], atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("kind", ["Q8_0", "MXFP4"])
@one_in(2, CPU_DRIVERS)
def test_experts_of_blocks(kind: str, device: str) -> None:
    """A prompt and single tokens, as with the values that the blocks stand for; of a token's blocks only those of the
    chosen experts are read."""
    tokens, rng = goldens("gpt-oss")["tokens"][:20], np.random.default_rng(0)
    with config(device=device):
        checkpoint = load_checkpoint(MODELS / "gpt-oss")
        blocks: dict[str, Any] = dict(checkpoint.tensors)
        values = dict(blocks)
        for name, tensor in checkpoint.tensors.items():
            if name.split(".")[-1] in ("experts_gate", "experts_up", "experts_down"):
                blocks[name] = random_experts(rng, kind, tensor.shape)
                values[name] = Tensor(blocks[name].dequantize().numpy())
        found, wanted = [fed(Llama(checkpoint.config, tensors, CONTEXT), tokens.tolist(), 16)
                         for tensors in (blocks, values)]
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("kind", ["float32", "Q8_0"])
@one_in(2, CPU_DRIVERS)
def test_a_prompt_of_experts_is_its_tokens_one_by_one(kind: str, device: str) -> None:
    """In pieces of odd lengths, where each token chooses one expert and none another one."""
    tokens = goldens("gpt-oss")["tokens"].tolist()[:21]
    with config(device=device):
        checkpoint = load_checkpoint(MODELS / "gpt-oss")
        tensors = converted(checkpoint.tensors, kind)
        for name in [name for name in tensors if name.endswith("router_bias")]:
            tensors[name] = Tensor(np.array([9e3, 0, 0, -9e3], np.float32))
        whole, single = [Session(Llama(checkpoint.config, tensors, CONTEXT)) for _ in range(2)]
        start = 0
        for length in (2, 13, 5, 1):
            found = whole.feed(tokens[start:start + length])
            wanted = [single.feed([token]) for token in tokens[start:start + length]][-1]
            np.testing.assert_allclose(found, wanted, atol=1e-4)
            start += length


@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("count, used", [(1, 1), (5, 2), (32, 4), (3, 3)])
@one_in(3, CPU_DRIVERS)
def test_blocks_have_one_expert_each(count: int, used: int, device: str) -> None:
    """Each token meets the experts that it chose, in rows of its own; of known and of symbolic length."""
    rng, length = np.random.default_rng(0), Variable("length", 2, 70)
    for n in (1, 2, 3, 37, 70):
        chosen = np.argsort(rng.random((n, count)), axis=1)[:, :used].astype(np.int32)
        padded = np.concatenate([chosen, np.zeros((70 - n, used), np.int32)])
        with config(device=device):
            known, symbolic = Tensor(chosen), Tensor(padded)
            for given in (known, symbolic[:length.bind(n)]) if n > 1 else (known,):
                blocks = blocks_of(given, count)
                experts, tokens, places = [t.numpy() for t in (blocks.experts, blocks.tokens, blocks.places)]
                assert len(np.unique(places)) == n * used
                np.testing.assert_array_equal(experts[places // tokens.shape[1]], chosen)
                np.testing.assert_array_equal(tokens.reshape(-1)[places], np.repeat(np.arange(n)[:, None], used, 1))
                assert (experts < count).all() and (tokens < n).all()
                assert len(experts) <= n * used / ROWS + min(count, n * used)


def test_experts_of_one_tensor_with_gate_above_up(tmp_path: Path) -> None:
    """As in the folders of Qwen3.5 with experts."""
    stored = dict(safe_load(MODELS / "qwen3next" / "model.safetensors"))
    for layer in range(4):
        inside = f"model.layers.{layer}.mlp.experts."
        parts = {part: [stored.pop(f"{inside}{number}.{part}.weight").float().numpy() for number in range(4)]
                 for part in ("gate_proj", "up_proj", "down_proj")}
        both = np.concatenate([np.stack(parts["gate_proj"]), np.stack(parts["up_proj"])], axis=1)
        stored[f"{inside}gate_up_proj"] = Tensor(both)
        stored[f"{inside}down_proj"] = Tensor(np.stack(parts["down_proj"]))
    shutil.copy(MODELS / "qwen3next" / "config.json", tmp_path)
    safe_save(stored, tmp_path / "model.safetensors")
    golden = goldens("qwen3next")
    with config(device="NUMPY"):
        checkpoint = load_checkpoint(tmp_path)
        found = all_logits(Llama(checkpoint.config, checkpoint.tensors, CONTEXT), golden["tokens"])
    np.testing.assert_allclose(found, golden["whole"], atol=TOLERANCE)


def test_experts_are_converted_with_the_other_matrices() -> None:
    """To blocks, and from blocks to halves; biases and routers stay as they are."""
    tensors = load_checkpoint(MODELS / "gpt-oss").tensors
    blocks = converted(tensors, "Q8_0")
    halves = converted(blocks, "float16")
    for name, tensor in tensors.items():
        experts = name.split(".")[-1] in ("experts_gate", "experts_up", "experts_down")
        assert experts <= (getattr(blocks[name], "kind", "") == "Q8_0"), name
        half = halves[name]
        assert isinstance(tensor, Tensor) and isinstance(half, Tensor), name
        if name.endswith(("_bias", "router")):
            assert blocks[name] is tensor, name
        if experts:
            np.testing.assert_allclose(half.numpy(), tensor.float().numpy(), atol=2e-2)


def random_experts(rng: np.random.Generator, kind: str, shape: tuple[Any, ...]) -> QuantizedTensor:
    """Blocks of 32 with scales of about 1/16 of the largest code."""
    bytes_of = {"Q8_0": 32, "MXFP4": 16}[kind]
    count = int(np.prod(shape)) // 32
    codes = rng.integers(0, 256, (count, bytes_of), dtype=np.uint8)
    scales = np.full((count, 1), 0.002, np.float16).view(np.uint8) if kind == "Q8_0" else rng.integers(
        122, 125, (count, 1), dtype=np.uint8)
    return QuantizedTensor.from_blocks(kind, shape, np.concatenate([scales, codes], axis=1).reshape(-1))


def test_experts_in_the_form_of_gpt_oss(tmp_path: Path) -> None:
    """Two neighbours of a row in a byte, scales apart from them, rows of gate and up in turns."""
    rng, tensors = np.random.default_rng(0), safe_load(MODELS / "gpt-oss" / "model.safetensors")
    stored, levels = dict(tensors), np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for name in tensors:
        if name.endswith(("gate_up_proj", "down_proj")) and ".experts." in name:
            count, columns, rows = [int(n) for n in tensors[name].shape]
            codes = rng.integers(0, 16, (count, rows, columns // 32, 32), dtype=np.uint8)
            powers = rng.integers(122, 126, (count, rows, columns // 32), dtype=np.uint8)
            values = (levels[codes] * 2.0 ** (powers[..., None].astype(int) - 127)).reshape(count, rows, columns)
            tensors[name] = Tensor(values.swapaxes(1, 2).astype(np.float32))
            del stored[name]
            stored[f"{name}_blocks"] = Tensor(codes[..., ::2] | codes[..., 1::2] << 4)
            stored[f"{name}_scales"] = Tensor(powers)
    logits = []
    for kind, form in (("blocks", stored), ("values", tensors)):
        folder = tmp_path / kind
        folder.mkdir()
        shutil.copy(MODELS / "gpt-oss" / "config.json", folder)
        safe_save(form, folder / "model.safetensors")
        with config(device="NUMPY"):
            checkpoint = load_checkpoint(folder)
            assert (getattr(checkpoint.tensors["layers.0.experts_up"], "kind", "") == "MXFP4") == (kind == "blocks")
            model = Llama(checkpoint.config, checkpoint.tensors, CONTEXT)
            logits.append(all_logits(model, np.arange(3, 20)))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)


def test_the_weights_that_a_token_reads() -> None:
    """Of six experts two."""
    checkpoint = load_checkpoint(MODELS / "qwen3moe")
    sizes = {name: tensor.nbytes() for name, tensor in checkpoint.tensors.items()}
    experts = sum([size for name, size in sizes.items() if ".experts_" in name])
    assert load("qwen3moe", "folder").weight_bytes() == sum(sizes.values()) - sizes["embedding"] - experts * 4 // 6
