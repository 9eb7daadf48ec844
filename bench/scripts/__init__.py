"""Twelve kinds of public training scripts, each written once for either framework (bench/frameworks.py), with random
data and sizes at which a step of torch takes 5 to 400 ms."""
from collections.abc import Callable

from bench.frameworks import Program
from bench.scripts.graphs import graph_attention
from bench.scripts.images import dcgan, diffusion, style_transfer, vae
from bench.scripts.sequences import lstm_language_model, rnn_classifier, seq2seq, text_cnn
from bench.scripts.transformers import clip, gpt, vit

SCRIPTS: dict[str, Callable[..., Program]] = {
    "style transfer": style_transfer, "dcgan": dcgan, "clip": clip, "text cnn": text_cnn,
    "lstm language model": lstm_language_model, "seq2seq": seq2seq, "diffusion u-net": diffusion,
    "graph attention": graph_attention, "gpt": gpt, "vit": vit, "vae": vae, "rnn classifier": rnn_classifier,
}

__all__ = ["SCRIPTS"]
