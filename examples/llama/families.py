"""The families of models as data: how each is called, what its tensors are called, what it has besides LLaMA."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.llama.config import Mixer
from minigrad.errors import FormatError
from minigrad.state.fields import brief

Names = Mapping[str, tuple[str, str]]
"""Our name of a tensor -> its name in a GGUF file and in a Hugging Face folder."""

GGUF, HF = range(2)


def _only(names: Names, *chosen: str) -> dict[str, tuple[str, str]]:
    return {ours: names[ours] for ours in chosen}


def _weights(**names: tuple[str, str]) -> dict[str, tuple[str, str]]:
    return {ours: (f"{gguf}.weight", f"{hf}.weight") for ours, (gguf, hf) in names.items()}


# Of each layer, behind "blk.N." and "model.layers.N.".
_NORMS = _weights(attention_norm=("attn_norm", "input_layernorm"), feed_norm=("ffn_norm", "post_attention_layernorm"))
_ATTENTION = _weights(query=("attn_q", "self_attn.q_proj"), key=("attn_k", "self_attn.k_proj"),
                      value=("attn_v", "self_attn.v_proj"), attention_out=("attn_output", "self_attn.o_proj"))
_FEED = _weights(gate=("ffn_gate", "mlp.gate_proj"), up=("ffn_up", "mlp.up_proj"), down=("ffn_down", "mlp.down_proj"))
_BIASES = {"query_bias": ("attn_q.bias", "self_attn.q_proj.bias"), "key_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
           "value_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
           "attention_out_bias": ("attn_output.bias", "self_attn.o_proj.bias")}
_HEAD_NORMS = _weights(query_norm=("attn_q_norm", "self_attn.q_norm"), key_norm=("attn_k_norm", "self_attn.k_norm"))
_EXPERTS = _weights(router=("ffn_gate_inp", "mlp.gate"), experts_gate=("ffn_gate_exps", "mlp.experts.*.gate_proj"),
                    experts_up=("ffn_up_exps", "mlp.experts.*.up_proj"),
                    experts_down=("ffn_down_exps", "mlp.experts.*.down_proj"))
_SANDWICH = _weights(post_attention_norm=("post_attention_norm", "post_attention_layernorm"),
                     feed_norm=("ffn_norm", "pre_feedforward_layernorm"),
                     post_feed_norm=("post_ffw_norm", "post_feedforward_layernorm"))
_FUSED = _weights(qkv=("attn_qkv", "self_attn.qkv_proj"), gate_up=("ffn_up", "mlp.gate_up_proj"))
_GPT_OSS = {"feed_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
            "sinks": ("attn_sinks.weight", "self_attn.sinks"), "router": ("ffn_gate_inp.weight", "mlp.router.weight"),
            "router_bias": ("ffn_gate_inp.bias", "mlp.router.bias"),
            "experts_gate_bias": ("ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"),
            "experts_up_bias": ("ffn_up_exps.bias", "mlp.experts.up_proj_bias"),
            "experts_down_bias": ("ffn_down_exps.bias", "mlp.experts.down_proj_bias")}
_LFM2 = _weights(attention_norm=("attn_norm", "operator_norm"), feed_norm=("ffn_norm", "ffn_norm"),
                 gate=("ffn_gate", "feed_forward.w1"), up=("ffn_up", "feed_forward.w3"),
                 down=("ffn_down", "feed_forward.w2"), attention_out=("attn_output", "self_attn.out_proj"),
                 query_norm=("attn_q_norm", "self_attn.q_layernorm"), key_norm=("attn_k_norm", "self_attn.k_layernorm"),
                 convolution=("shortconv.conv", "conv.conv"), convolution_in=("shortconv.in_proj", "conv.in_proj"),
                 convolution_out=("shortconv.out_proj", "conv.out_proj"))
_GATED_DELTA = {
    "delta_qkv": ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    "delta_gate": ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    "delta_beta": ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    "delta_alpha": ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    "delta_qkvz": ("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    "delta_ba": ("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    "convolution": ("ssm_conv1d.weight", "linear_attn.conv1d.weight"), "rate": ("ssm_a", "linear_attn.A_log"),
    "time_step": ("ssm_dt.bias", "linear_attn.dt_bias"), "state_scale": ("ssm_norm.weight", "linear_attn.norm.weight"),
    "state_out": ("ssm_out.weight", "linear_attn.out_proj.weight"),
    "feed_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight")}
_SHARED = _weights(shared_gate=("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
                   shared_up=("ffn_up_shexp", "mlp.shared_expert.up_proj"),
                   shared_down=("ffn_down_shexp", "mlp.shared_expert.down_proj"),
                   shared_scale=("ffn_gate_inp_shexp", "mlp.shared_expert_gate"))
_MAMBA2 = {
    "attention_norm": ("attn_norm.weight", "norm.weight"), "state_in": ("ssm_in.weight", "mixer.in_proj.weight"),
    "convolution": ("ssm_conv1d.weight", "mixer.conv1d.weight"),
    "convolution_bias": ("ssm_conv1d.bias", "mixer.conv1d.bias"), "rate": ("ssm_a", "mixer.A_log"),
    "time_step": ("ssm_dt.bias", "mixer.dt_bias"), "skip": ("ssm_d", "mixer.D"),
    "state_scale": ("ssm_norm.weight", "mixer.norm.weight"), "state_out": ("ssm_out.weight", "mixer.out_proj.weight")}
LLAMA = {**_NORMS, **_ATTENTION, **_FEED}

# Of the whole model; the last is behind nothing in Hugging Face's, the others behind "model.".
_OUTER = _weights(embedding=("token_embd", "embed_tokens"), norm=("output_norm", "norm"), output=("output", "lm_head"))
_MAMBA2_OUTER = {**_OUTER, **_weights(embedding=("token_embd", "embeddings"), norm=("output_norm", "norm_f"))}
_LFM2_OUTER = {**_OUTER, **_weights(norm=("token_embd_norm", "embedding_norm"))}


@dataclass(frozen=True)
class Family:
    """A row of the table.

    `architecture` is what GGUF files call it, `types` are the `model_type`s of Hugging Face's. `names` are of a layer's
    tensors, `outer` of the others; `optional` ones may be missing, and those that a layer has no use for are not asked
    for. `interleaved`: GGUF files have the two elements of a rotary pair side by side. `norm_offset` is added to the
    norms of Hugging Face's folders. Of every `windows` layers the last one looks at all tokens (0: all have the window,
    if there is one), and layers with one have the rotary base `window_base`, if given; every `plain`-th layer has no
    rotary embedding (0: all have one). Queries of a GGUF file with `wide_scale_layers` layers are divided by the square
    root of width / heads, not of the size of a head. `truncated_yarn`: see `yarn_factors`. `recurrent` is the kind of
    its layers with a state, of which every `interval`-th is one with attention (0: none); `tiled_heads`: its GGUF files
    have heads that share a key `groups` apart.
    """

    architecture: str
    types: tuple[str, ...]
    names: Names
    outer: Names = field(default_factory=lambda: _OUTER)
    optional: tuple[str, ...] = ()
    interleaved: bool = False
    norm_offset: float = 0.0
    activation: str = "silu"
    scaled_embedding: bool = False
    windows: int = 0
    window_base: float | None = None
    plain: int = 0
    wide_scale_layers: int = 0
    truncated_yarn: bool = True
    recurrent: Mixer | None = None
    interval: int = 0
    tiled_heads: bool = False
    gated_attention: bool = False

    @property
    def attends(self) -> bool:
        """True where some layers have attention."""
        return "attention_out" in self.names

    @property
    def besides(self) -> frozenset[str]:
        """Tensors that its layers must have besides LLaMA's."""
        return frozenset(self.names) - frozenset(LLAMA) - frozenset(self.optional) - _BY_KIND


_BY_KIND = frozenset({**_EXPERTS, **_SHARED, **_GATED_DELTA, **_MAMBA2}) | {
    "qkv", "gate_up", "convolution_in", "convolution_out"}
"""Tensors that the model asks for where a layer is of their kind."""

FAMILIES = (
    Family("llama", ("llama", "mistral"), {**LLAMA, **_BIASES, **_EXPERTS}, optional=tuple(_BIASES), interleaved=True),
    Family("qwen2", ("qwen2",), {**LLAMA, **_BIASES}, optional=("attention_out_bias",)),
    Family("qwen3", ("qwen3",), {**LLAMA, **_HEAD_NORMS, **_BIASES}, optional=tuple(_BIASES)),
    Family("smollm3", ("smollm3",), {**LLAMA, **_BIASES}, optional=tuple(_BIASES), interleaved=True, plain=4),
    Family("phi3", ("phi3",), {**_NORMS, **_FUSED, **_only(LLAMA, "attention_out", "down")}),
    Family("gemma2", ("gemma2",), {**LLAMA, **_SANDWICH}, norm_offset=1.0, activation="gelu", scaled_embedding=True,
           windows=2, wide_scale_layers=46),
    Family("gemma3", ("gemma3_text", "gemma3"), {**LLAMA, **_SANDWICH, **_HEAD_NORMS}, norm_offset=1.0,
           activation="gelu", scaled_embedding=True, windows=6, window_base=10000.0, wide_scale_layers=62),
    Family("qwen3moe", ("qwen3_moe",), {**LLAMA, **_HEAD_NORMS, **_EXPERTS, **_BIASES}, optional=tuple(_BIASES)),
    Family("gpt-oss", ("gpt_oss",), {**_NORMS, **_ATTENTION, **_BIASES, **_EXPERTS, **_GPT_OSS}, activation="clamped",
           windows=2, truncated_yarn=False),
    Family("lfm2", ("lfm2",), {**LLAMA, **_LFM2}, outer=_LFM2_OUTER, optional=("query_norm", "key_norm")),
    Family("qwen3next", ("qwen3_next",), {**LLAMA, **_HEAD_NORMS, **_EXPERTS, **_SHARED, **_GATED_DELTA},
           norm_offset=1.0, gated_attention=True, recurrent="gated delta", interval=4),
    Family("qwen35", ("qwen3_5_text", "qwen3_5"), {**LLAMA, **_HEAD_NORMS, **_GATED_DELTA}, norm_offset=1.0,
           gated_attention=True, recurrent="gated delta", interval=4, tiled_heads=True),
    Family("qwen35moe", ("qwen3_5_moe_text", "qwen3_5_moe"),
           {**LLAMA, **_HEAD_NORMS, **_EXPERTS, **_SHARED, **_GATED_DELTA}, norm_offset=1.0, gated_attention=True,
           recurrent="gated delta", interval=4, tiled_heads=True),
    Family("mamba2", ("mamba2",), _MAMBA2, outer=_MAMBA2_OUTER, optional=("convolution_bias",),
           recurrent="state space"),
)


def family_of(name: str, kind: int, source: Path) -> Family:
    """The row of a GGUF file's architecture or of a folder's model type. Raises FormatError where there is none."""
    for family in FAMILIES:
        if name in ((family.architecture,) if kind == GGUF else family.types):
            return family
    known = ", ".join([text for family in FAMILIES
                       for text in ((family.architecture,) if kind == GGUF else family.types)])
    what = "architecture" if kind == GGUF else "type"
    raise FormatError(f"{source}: the model's {what} is {brief(name)}, of which the layers are not written here; known "
                      f"are {known}; use one of these")
