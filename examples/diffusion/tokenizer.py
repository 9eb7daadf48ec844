"""CLIP's tokens of a text: byte-pair encoding by the `tokenizers` library, from vocab.json and merges.txt."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from minigrad.errors import ConfigError, FormatError
from minigrad.state.fields import brief, one_line, read_json, read_text, wrong

START, END = "<|startoftext|>", "<|endoftext|>"
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class CLIPTokenizer:
    """The tokens of texts, each between START and END and filled up to `length` with `pad`. Raises FormatError for
    files of another model, such as one with tokens from `size` on."""

    def __init__(self, folder: Path, length: int = 77, size: int = 49408):
        self.length = length
        vocabulary, merges = read_json(folder / "vocab.json").content, _merges(folder / "merges.txt")
        for piece, token in vocabulary.items():
            if type(token) is not int or not 0 <= token < size:
                raise wrong(folder / "vocab.json", f"the id of {brief(piece)}", f"an integer below {size}", token)
        missing = next((name for name in (START, END) if name not in vocabulary), None)
        if missing is not None:
            raise FormatError(f"{folder / 'vocab.json'}: expected CLIP's vocabulary, with {missing}; get it again")
        self.start, self.end = vocabulary[START], vocabulary[END]
        pad = _pad_of(folder)
        self.pad = vocabulary.get(pad, self.end)
        self.library = _library(vocabulary, merges, folder, pad)

    def __call__(self, text: str) -> list[int]:
        """`length` tokens. Raises ConfigError for a text that has more."""
        found = self.library.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        if len(found) > self.length - 2:
            seen = self.library.decode(found[:self.length - 2])
            raise ConfigError(f"the text has {len(found)} tokens; expected at most {self.length - 2}, which end at "
                              f"...{seen[-40:]!r}; shorten it")
        tokens = [self.start, *found, self.end]
        return tokens + [self.pad] * (self.length - len(tokens))


def _merges(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in read_text(path).split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [tuple(line.split()) for line in lines]
    lost = next((number for number, pair in enumerate(pairs) if len(pair) != 2), None)
    if lost is not None:
        raise wrong(path, "a merge", "two pieces", lines[lost])
    return [(pair[0], pair[1]) for pair in pairs]


def _pad_of(folder: Path) -> str:
    """The token that fills up texts: OpenCLIP's files name another one than END."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            fields = read_json(folder / name)
            found = fields.content.get("pad_token")
            if found is not None:
                inside = isinstance(found, dict)
                return fields.inner("pad_token").text("content") if inside else fields.text("pad_token")
    return END


def _library(vocabulary: dict[str, int], merges: list[tuple[str, str]], folder: Path, pad: str) -> Any:
    """The library's tokenizer. As in transformers, the one that fills up is a token of its own in a text, too."""
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    except ImportError:
        raise FormatError(f'{folder}: its tokenizer needs tokenizers: pip install "minigrad[chat]"') from None
    try:
        library = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", unk_token=END))
    except Exception as error:  # the library has no class of its own for it
        reason = one_line(str(error).splitlines()[0])
        raise FormatError(f"{folder}: expected CLIP's tokenizer: {brief(reason)[1:-1]}; get it again") from None
    library.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.BPEDecoder(suffix="</w>")
    library.add_special_tokens([AddedToken(name, normalized=False) for name in dict.fromkeys((START, END, pad))])
    return library
