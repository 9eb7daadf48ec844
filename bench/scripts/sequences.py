"""Networks of words: recurrent layers and convolutions."""
# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from bench.frameworks import Program, normal, trained


def text_cnn(m: Any, batch: int = 32, length: int = 60, vocabulary: int = 5000, width: int = 100,
             filters: int = 64) -> Program:
    """Embedded words, convolutions of three widths, the maximum of each over the text."""
    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = m.nn.Embedding(vocabulary, width)
            self.convs = m.nn.ModuleList([m.nn.Conv1d(width, filters, k) for k in (3, 4, 5)])
            self.head = m.nn.Linear(3 * filters, 2)

        def forward(self, words: Any) -> Any:
            x = self.embedding(words).transpose(1, 2)
            found = [m.F.relu(conv(x)) for conv in self.convs]
            return self.head(m.cat([m.F.max_pool1d(f, f.shape[2]).squeeze(2) for f in found], dim=1))

    model = Model()
    step = trained(m.optim.Adam(model.parameters(), lr=1e-3), lambda x, y: m.F.cross_entropy(model(x), y))
    return Program([model], step, lambda rng: (rng.integers(0, vocabulary, (batch, length)), rng.integers(0, 2, batch)))


def lstm_language_model(m: Any, batch: int = 16, length: int = 35, vocabulary: int = 2000, width: int = 128) -> Program:
    """The next word from two layers of LSTM, whose state goes on to the next batch; clipped gradients and SGD."""
    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.rnn = m.nn.Embedding(vocabulary, width), m.nn.LSTM(width, width, 2)
            self.head = m.nn.Linear(width, vocabulary)

        def forward(self, words: Any, state: Any) -> Any:
            y, state = self.rnn(self.embedding(words), state)
            return self.head(y), state

    model = Model()
    optimizer = m.optim.SGD(model.parameters(), lr=0.5)

    def step(words: Any, targets: Any, h: Any, c: Any) -> Any:
        optimizer.zero_grad()
        y, _ = model(words, (h, c))
        loss = m.F.cross_entropy(y.view(-1, vocabulary), targets.view(-1))
        loss.backward()
        m.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return Program([model], step, lambda rng: (
        rng.integers(0, vocabulary, (length, batch)), rng.integers(0, vocabulary, (length, batch)),
        normal(rng, 2, batch, width), normal(rng, 2, batch, width)))


def seq2seq(m: Any, batch: int = 16, length: int = 10, vocabulary: int = 1000, width: int = 128) -> Program:
    """A GRU reads, another writes word by word and attends to all that was read; the words to write are given."""
    class Encoder(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = m.nn.Embedding(vocabulary, width), m.nn.GRU(width, width, batch_first=True)

        def forward(self, words: Any) -> Any:
            return self.gru(self.embedding(words))

    class Decoder(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = m.nn.Embedding(vocabulary, width), m.nn.GRU(2 * width, width, batch_first=True)
            self.query, self.key = m.nn.Linear(width, width), m.nn.Linear(width, width)
            self.score, self.out = m.nn.Linear(width, 1), m.nn.Linear(width, vocabulary)

        def forward(self, word: Any, hidden: Any, read: Any) -> Any:
            score = self.score(m.M.tanh(self.query(hidden.permute(1, 0, 2)) + self.key(read))).squeeze(2).unsqueeze(1)
            context = m.M.bmm(m.F.softmax(score, dim=-1), read)
            y, hidden = self.gru(m.cat([self.embedding(word), context], dim=2), hidden)
            return self.out(y), hidden

    encoder, decoder = Encoder(), Decoder()
    optimizers = [m.optim.Adam(part.parameters(), lr=1e-3) for part in (encoder, decoder)]

    def step(source: Any, target: Any) -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        read, hidden = encoder(source)
        found, word = [], m.M.zeros_like(target[:, :1])
        for k in range(length):
            y, hidden = decoder(word, hidden, read)
            found.append(y)
            word = target[:, k].unsqueeze(1)
        loss = m.F.cross_entropy(m.cat(found, dim=1).view(-1, vocabulary), target.view(-1))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return Program([encoder, decoder], step, lambda rng: (rng.integers(0, vocabulary, (batch, length)),
                                                          rng.integers(0, vocabulary, (batch, length))))


def rnn_classifier(m: Any, batch: int = 64, width: int = 128, layers: int = 2) -> Program:
    """Images of 28x28 as sequences of 28 rows: an LSTM, and a layer on what it has seen in the end."""
    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = m.nn.LSTM(28, width, layers, batch_first=True), m.nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            h, c = m.M.zeros(layers, x.shape[0], width), m.M.zeros(layers, x.shape[0], width)
            y, _ = self.lstm(x, (h, c))
            return self.head(y[:, -1, :])

    model = Model()
    step = trained(m.optim.Adam(model.parameters(), lr=1e-2), lambda x, y: m.F.cross_entropy(model(x), y))
    return Program([model], step, lambda rng: (normal(rng, batch, 28, 28), rng.integers(0, 10, batch)))
