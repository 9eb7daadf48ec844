"""Text as a data set: windows of tokens, each with the tokens that come next."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.data.dataset import Dataset, Indices
from minigrad.errors import FormatError, OutOfRangeError, ShapeError
from minigrad.tensor import Tensor


class Characters:
    """A vocabulary of the characters of a text, in order of their codes."""

    def __init__(self, text: str):
        self.characters = "".join(sorted(set(text)))
        self._number = {c: k for k, c in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """uint16 [len(text)]. Raises FormatError for a character that the vocabulary lacks."""
        try:
            return np.array([self._number[c] for c in text], np.uint16)
        except KeyError as error:
            raise FormatError(f"[Characters] expected one of {len(self)} characters, got {error.args[0]!r}") from None

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of tokens."""
        return "".join([self.characters[int(t)] for t in tokens])


class TextTokens(Dataset):
    """Windows of `length` tokens: sample i is (tokens i..i+length, tokens i+1..i+length+1), both int32.

    `tokens` is an array or a Tensor of integers, or the path of a file of them, of `dtype` (uint16, as nanoGPT writes
    them) or .npy, which is mapped. Raises ShapeError for fewer tokens than a window takes, FormatError for a file that
    cannot be read.
    """

    def __init__(self, tokens: Any, length: int, dtype: str = "uint16"):
        self.tokens, self.length = _array(tokens, dtype), int(length)
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu" or not 0 < self.length < len(self.tokens):
            raise ShapeError(f"[TextTokens] expected more than {length} tokens, integers [N], got {self.tokens.dtype} "
                             f"{list(self.tokens.shape)}")

    def __len__(self) -> int:
        return len(self.tokens) - self.length

    def __getitem__(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise OutOfRangeError(f"[TextTokens] expected an index below {len(self)}, got {index}")
        start = index + len(self) if index < 0 else index
        window = self.tokens[start:start + self.length + 1].astype(np.int32)
        return window[:-1], window[1:]

    @property
    def takes(self) -> bool:
        return type(self).__getitem__ is TextTokens.__getitem__

    def take(self, indices: Indices) -> Any:
        if not self.takes:
            return super().take(indices)
        at = np.asarray(indices).reshape(-1, 1) + np.arange(self.length + 1)
        windows = self.tokens[at].astype(np.int32)
        return [windows[:, :-1], windows[:, 1:]]


def _array(tokens: Any, dtype: str) -> np.ndarray:
    if isinstance(tokens, Tensor):
        return tokens.numpy()
    if not isinstance(tokens, str | Path):
        return np.asarray(tokens)
    path = Path(tokens).expanduser()
    try:
        return np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.memmap(path, np.dtype(dtype), "r")
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected a file of tokens ({dtype}, or .npy), got: {error}") from None
