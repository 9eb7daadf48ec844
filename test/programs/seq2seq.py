"""Reverses sequences: a bidirectional GRU reads them, another one writes with attention and teacher forcing."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

PAD, SOS, EOS = 0, 1, 2
MAX_LENGTH = 4
device = "cuda" if torch.cuda.is_available() else "cpu"


class ReverseDataset(Dataset):
    def __init__(self, count, vocab=12):
        rng = np.random.default_rng(4)
        self.pairs = [rng.integers(3, vocab, rng.integers(2, MAX_LENGTH)).tolist() for _ in range(count)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return torch.tensor(self.pairs[i] + [EOS]), torch.tensor(self.pairs[i][::-1] + [EOS])


def padded(sequences):
    return torch.stack([F.pad(s, (0, MAX_LENGTH - len(s)), value=PAD) for s in sequences])


def collate(batch):
    src, trg = zip(*batch)
    return padded(src), padded(trg)


class Encoder(nn.Module):
    def __init__(self, vocab, emb_dim, hid_dim):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb_dim, padding_idx=PAD)
        self.rnn = nn.GRU(emb_dim, hid_dim, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(hid_dim * 2, hid_dim)

    def forward(self, src: Tensor):
        outputs, hidden = self.rnn(self.embedding(src))
        return outputs, torch.tanh(self.fc(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1)))


class Attention(nn.Module):
    def __init__(self, hid_dim):
        super().__init__()
        self.attn, self.v = nn.Linear(hid_dim * 3, hid_dim), nn.Linear(hid_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask):
        hidden = hidden.unsqueeze(1).repeat(1, encoder_outputs.shape[1], 1)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        attention = self.v(energy).squeeze(2).masked_fill(mask == 0, -1e10)
        return F.softmax(attention, dim=1)


class Decoder(nn.Module):
    def __init__(self, vocab, emb_dim, hid_dim):
        super().__init__()
        self.attention, self.embedding = Attention(hid_dim), nn.Embedding(vocab, emb_dim)
        self.rnn = nn.GRUCell(emb_dim + hid_dim * 2, hid_dim)
        self.fc_out = nn.Linear(hid_dim * 3 + emb_dim, vocab)

    def forward(self, input, hidden, encoder_outputs, mask):
        embedded = self.embedding(input)
        a = self.attention(hidden, encoder_outputs, mask).unsqueeze(1)
        weighted = torch.bmm(a, encoder_outputs).squeeze(1)
        hidden = self.rnn(torch.cat((embedded, weighted), dim=1), hidden)
        return self.fc_out(torch.cat((hidden, weighted, embedded), dim=1)), hidden


class Seq2Seq(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, src, trg, teacher_forcing_ratio=0.5):
        encoder_outputs, hidden = self.encoder(src)
        mask = src != PAD
        teacher_force = random.random() < teacher_forcing_ratio
        outputs, input = [], torch.full((src.size(0),), SOS, dtype=torch.long, device=src.device)
        for t in range(trg.size(1)):
            output, hidden = self.decoder(input, hidden, encoder_outputs, mask)
            outputs.append(output)
            top1 = output.detach().argmax(1)
            input = trg[:, t] if teacher_force else top1
        return torch.stack(outputs, dim=1)


def init_weights(m):
    for name, param in m.named_parameters():
        if "weight" in name:
            nn.init.normal_(param.data, mean=0, std=0.1)
        else:
            nn.init.constant_(param.data, 0)


def build():
    model = Seq2Seq(Encoder(12, 8, 16), Decoder(12, 8, 16)).to(device)
    model.apply(init_weights)
    return model


def train(model, epochs=5):
    random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(ReverseDataset(80), batch_size=8, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=0)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    losses = []
    for epoch in range(epochs):
        model.train()
        epoch_loss = 0
        for src, trg in loader:
            src, trg = src.to(device), trg.to(device)
            optimizer.zero_grad()
            output = model(src, trg)
            loss = criterion(output.reshape(-1, output.shape[-1]), trg.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            epoch_loss += loss.item()
            losses.append(loss.item())
        scheduler.step(epoch_loss / len(loader))
        model.eval()
        right = (output.argmax(-1) == trg)[trg != PAD].float().mean().item()
        print(f"Epoch: {epoch + 1:02} | Loss: {epoch_loss / len(loader):.3f} | right: {right:.1%}")
    return losses


if __name__ == "__main__":
    train(build())
