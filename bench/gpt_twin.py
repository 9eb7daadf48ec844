"""The run of examples/gpt/train.py at its defaults in PyTorch: the same data, order of batches, recipe and validation.

    python bench/gpt_twin.py input.txt [STEPS] [THREADS]

Prints the seconds of training and the validation loss. Initial values are drawn from the same distributions.
"""
from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

if __spec__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from minigrad.data import Characters, DataLoader, RandomSampler, TextTokens

BLOCK, BATCH, LAYERS, HEADS, WIDTH = 64, 12, 4, 4, 128


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                inner = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * LAYERS) if inner else 0.02)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def batches(data: TextTokens, count: int, seed: int) -> Any:
    loader = DataLoader(data, BATCH, sampler=RandomSampler(data, replacement=True, num_samples=count * BATCH),
                        generator=seed, device="NUMPY")
    return ([torch.from_numpy(t.numpy().astype(np.int64)) for t in pair] for pair in loader)


def main(path: str, steps: int, threads: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    text = Path(path).read_text(encoding="utf-8")
    vocabulary = Characters(text)
    tokens = vocabulary.encode(text)
    cut = len(tokens) * 9 // 10
    training, held = TextTokens(tokens[:cut], BLOCK), TextTokens(tokens[cut:], BLOCK)
    model = GPT(len(vocabulary))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min((k + 1) / 100, 1) * (
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(max((k - 100) / (steps - 100), 0), 1)))))

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x).reshape(-1, len(vocabulary)), y.reshape(-1))

    start = time.perf_counter()
    for step, (x, y) in enumerate(batches(training, steps, 0)):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        loss.item()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}, {time.perf_counter() - start:.1f} s", flush=True)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        sampler = RandomSampler(held, replacement=True, num_samples=64 * BATCH, generator=1)
        found = [loss_of(*(torch.from_numpy(t.numpy().astype(np.int64)) for t in pair)).item()
                 for pair in DataLoader(held, BATCH, sampler=sampler, device="NUMPY")]
    print(f"torch {torch.__version__}, {threads} threads: validation loss {np.mean(found):.4f}; {seconds:.1f} s of "
          "training")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000, int(sys.argv[3]) if len(sys.argv) > 3 else 2)
