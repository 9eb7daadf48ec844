"""Networks of attention."""
# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from bench.frameworks import Program, normal, trained


def _encoder(m: Any, width: int, heads: int, layers: int) -> Any:
    layer = m.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                         norm_first=True)
    return m.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _image_tower(m: Any, size: int, patch: int, width: int, heads: int, layers: int, outputs: int) -> Any:
    """From images [N, 3, size, size] to [N, outputs], by the place of a token of its own."""
    count = (size // patch) ** 2

    class Tower(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = m.nn.Conv2d(3, width, patch, patch)
            self.token = m.nn.Parameter(m.M.zeros(1, 1, width))
            self.places = m.nn.Parameter(m.M.randn(1, count + 1, width) * 0.02)
            self.body, self.norm = _encoder(m, width, heads, layers), m.nn.LayerNorm(width)
            self.head = m.nn.Linear(width, outputs)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = m.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
            return self.head(self.norm(self.body(x))[:, 0])

    return Tower()


def vit(m: Any, batch: int = 16, size: int = 32, patch: int = 4, width: int = 128, layers: int = 4) -> Program:
    """Classes of images, from patches."""
    model = _image_tower(m, size, patch, width, 4, layers, 10)
    step = trained(m.optim.AdamW(model.parameters(), lr=3e-4), lambda x, y: m.F.cross_entropy(model(x), y))
    return Program([model], step, lambda rng: (normal(rng, batch, 3, size, size), rng.integers(0, 10, batch)))


def clip(m: Any, batch: int = 16, length: int = 24, vocabulary: int = 2000, width: int = 96) -> Program:
    """Images and texts in one space: each finds its own among those of the batch."""
    class Texts(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = m.nn.Embedding(vocabulary, width)
            self.places = m.nn.Parameter(m.M.randn(length, width) * 0.01)
            self.body, self.norm = _encoder(m, width, 4, 2), m.nn.LayerNorm(width)
            self.head = m.nn.Linear(width, 64, bias=False)

        def forward(self, words: Any) -> Any:
            x = self.norm(self.body(self.embedding(words) + self.places))
            return self.head(x[m.M.arange(x.shape[0]), words.argmax(dim=-1)])

    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.images, self.texts = _image_tower(m, 32, 8, width, 4, 2, 64), Texts()
            self.scale = m.nn.Parameter(m.M.ones(()) * 2.6593)

        def forward(self, images: Any, words: Any) -> Any:
            a, b = m.F.normalize(self.images(images), dim=-1), m.F.normalize(self.texts(words), dim=-1)
            return self.scale.exp() * a @ b.t()

    model = Model()

    def loss_of(images: Any, words: Any) -> Any:
        scores, own = model(images, words), m.M.arange(images.shape[0])
        return (m.F.cross_entropy(scores, own) + m.F.cross_entropy(scores.t(), own)) / 2

    step = trained(m.optim.AdamW(model.parameters(), lr=5e-4), loss_of)
    return Program([model], step, lambda rng: (normal(rng, batch, 3, 32, 32),
                                               rng.integers(0, vocabulary, (batch, length))))


def gpt(m: Any, batch: int = 8, length: int = 64, vocabulary: int = 256, width: int = 128, heads: int = 4,
        layers: int = 4) -> Program:
    """The next character; attention of our own with a mask, as in the small public ones."""
    class Block(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = m.nn.LayerNorm(width), m.nn.LayerNorm(width)
            self.qkv, self.out = m.nn.Linear(width, 3 * width, bias=False), m.nn.Linear(width, width)
            self.mlp = m.nn.Sequential(m.nn.Linear(width, 4 * width), m.nn.GELU(), m.nn.Linear(4 * width, width))
            self.register_buffer("mask", m.M.tril(m.M.ones(length, length)).view(1, 1, length, length))

        def forward(self, x: Any) -> Any:
            n, t, c = x.shape
            q, k, v = (part.view(n, t, heads, c // heads).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).split(width, dim=2))
            scores = (q @ k.transpose(-2, -1)) * (c // heads) ** -0.5
            scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = (m.F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(n, t, c)
            x = x + self.out(y)
            return x + self.mlp(self.norm2(x))

    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = m.nn.Embedding(vocabulary, width), m.nn.Embedding(length, width)
            self.blocks = m.nn.Sequential(*[Block() for _ in range(layers)])
            self.norm, self.head = m.nn.LayerNorm(width), m.nn.Linear(width, vocabulary, bias=False)

        def forward(self, words: Any) -> Any:
            x = self.words(words) + self.places(m.M.arange(words.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    model = Model()

    def loss_of(words: Any, targets: Any) -> Any:
        return m.F.cross_entropy(model(words).view(-1, vocabulary), targets.view(-1))

    step = trained(m.optim.AdamW(model.parameters(), lr=3e-4), loss_of)
    return Program([model], step, lambda rng: (rng.integers(0, vocabulary, (batch, length)),
                                               rng.integers(0, vocabulary, (batch, length))))
