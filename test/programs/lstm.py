"""A language model of words by an LSTM, trained through time by plain gradient steps; and a rate that goes down."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class RNNModel(nn.Module):
    """An encoder, a recurrent module, and a decoder."""

    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.2, tie_weights=False):
        super(RNNModel, self).__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            if nhid != ninp:
                raise ValueError("When using the tied flag, nhid must be equal to emsize")
            self.decoder.weight = self.encoder.weight
        self.init_weights()
        self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-initrange, initrange)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return F.log_softmax(decoded.view(-1, self.ntoken), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        if self.rnn_type == "LSTM":
            return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))
        return weight.new_zeros(self.nlayers, bsz, self.nhid)


class Corpus:
    def __init__(self, lines):
        self.word2idx, ids = {}, []
        for line in lines:
            for word in [*line.split(), "<eos>"]:
                ids.append(self.word2idx.setdefault(word, len(self.word2idx)))
        self.train = np.array(ids, dtype=np.int64)


def batchify(data, bsz):
    nbatch = len(data) // bsz
    return np.ascontiguousarray(data[:nbatch * bsz].reshape(bsz, -1).T)


def get_batch(source, i, bptt=10):
    seq_len = min(bptt, len(source) - 1 - i)
    data, target = source[i:i + seq_len], source[i + 1:i + 1 + seq_len]
    return torch.from_numpy(data), torch.from_numpy(target).view(-1)


def repackage_hidden(h):
    """Wraps hidden states in new tensors, detached from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


rng = np.random.default_rng(5)
words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
corpus = Corpus([" ".join(words[(start + 3 * k) % 10] for k in range(7)) for start in rng.integers(0, 10, 128)])


def build():
    return RNNModel("LSTM", len(corpus.word2idx), 16, 16, 2, tie_weights=True)


def evaluate(model, data_source, criterion):
    model.eval()
    total_loss, hidden = 0.0, model.init_hidden(4)
    with torch.no_grad():
        for i in range(0, len(data_source) - 1, 10):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(model, epochs=2):
    torch.manual_seed(1111)
    criterion, lr, losses = nn.NLLLoss(), 2.0, []
    train_data = batchify(corpus.train, 4)
    val_data = train_data[:41]
    for epoch in range(epochs):
        model.train()
        hidden, total_loss = model.init_hidden(4), 0.0
        for batch, i in enumerate(range(0, len(train_data) - 11, 10)):
            data, targets = get_batch(train_data, i)
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            total_loss += loss.item()
            losses.append(loss.item())
            if batch % 10 == 9:
                cur_loss, total_loss = total_loss / 10, 0.0
                print("| epoch {:3d} | {:5d} batches | lr {:02.2f} | loss {:5.2f} | ppl {:8.2f}".format(
                    epoch, batch + 1, lr, cur_loss, math.exp(cur_loss)))
        losses.append(evaluate(model, val_data, criterion))
        lr /= 2.0
    return losses


if __name__ == "__main__":
    train(build())
