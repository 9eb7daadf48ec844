"""Metadata of files - JSON, GGUF metadata, numbers of a header - checked field by field where it is read.

Nothing in a file can be relied on: a float may stand where a list belongs, an infinity or 10^18 where a count does.
Every reader takes its fields from here, so that each error names the file, the field, what was expected and what was
found.
"""
from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from minigrad.errors import FormatError


class _Brief(reprlib.Repr):
    """Values in errors: two levels deep, a few elements of each, and no integers of thousands of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 80, 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"<an integer of {x.bit_length()} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x) if isinstance(x, float | bool | None) else f"<{type(x).__name__}>"


brief: Final = _Brief().repr


def one_line(text: str) -> str:
    """The text with escapes for what would not show in one line."""
    return text if text.isprintable() else repr(text)[1:-1]


MAX_RANK = 32
MAX_ELEMENTS = 1 << 48
MAX_COUNT = (1 << 31) - 1
REQUIRED: Final[Any] = object()
"""The default of a field that has to be there."""


class Fields:
    """The fields of one object in a file; `source` names both, as errors start with it. A field that is None is absent.

    Every method raises FormatError where the field is not what it returns, and where it is absent without `default`.
    """

    def __init__(self, content: Any, source: str | Path, name: str = ""):
        if not isinstance(content, dict):
            raise wrong(source, brief(name) if name else "its description", "an object with fields", content)
        self.content, self.file, self.name = content, source, name

    @property
    def source(self) -> str:
        """The file, and the object in it."""
        return f"{self.file}: {brief(self.name)}" if self.name else str(self.file)

    def __contains__(self, key: str) -> bool:
        return self.content.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def count(self, key: str, least: int = 1, most: int = MAX_COUNT, default: int = REQUIRED) -> int:
        """An integer from `least` to `most`, or a float that is one."""
        value = self._value(key, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(key, f"an integer from {least} to {most}", value)
        return value

    def real(self, key: str, least: float, most: float, default: float = REQUIRED) -> float:
        """A number from `least` to `most`; never NaN."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self._wrong(key, f"a number from {least:g} to {most:g}", value)
        return float(value)

    def flag(self, key: str, default: bool = REQUIRED) -> bool:
        """True or False."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str = REQUIRED) -> str:
        """A string."""
        value = self._value(key, default)
        if type(value) is not str:
            raise self._wrong(key, "a string", value)
        return value

    def file_name(self, key: str) -> str:
        """The name of a file beside this one: no path leads out of the folder."""
        name = self.text(key)
        usual = name.isprintable() and len(name.encode()) <= 255  # so no surrogates and no zeros
        if not usual or name in ("", ".", "..") or "/" in name or "\\" in name:
            raise self._wrong(key, "the name of a file in the same folder", name)
        return name

    def items(self, key: str, *kinds: type, length: int | None = None, default: Sequence = REQUIRED) -> list:
        """A list whose elements are all of the exact types `kinds`, as many as `length` if given."""
        value = self._value(key, default)
        listed = type(value) in (list, tuple) and length in (None, len(value))
        if not listed or not set(map(type, value)) <= set(kinds):
            names = " or ".join([kind.__name__ for kind in kinds])
            raise self._wrong(key, f"a list of {'' if length is None else f'{length} of '}{names}", value if (
                not listed) else next(each for each in value if type(each) not in kinds))
        return list(value)

    def inner(self, key: str) -> Fields:
        """The fields of an object inside this one; those of an empty one where it is absent."""
        value = self.content.get(key)
        return Fields({} if value is None else value, self.source, key)

    def _value(self, key: str, default: Any) -> Any:
        value = self.content.get(key)
        return default if value is None else value

    def _wrong(self, key: str, expected: str, found: Any) -> FormatError:
        return wrong(self.source, brief(key), expected, found)


def wrong(source: str | Path, field: str, expected: str, found: Any) -> FormatError:
    """The error where `field` - its name in quotes, or words for it - is not as expected; `found` is shortened."""
    what = "but it is missing" if found is REQUIRED else f"got {brief(found)}"
    return FormatError(f"{source}: expected {field} to be {expected}, {what}; the file is corrupt or of another kind; "
                       "get it again")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises FormatError for other bytes, OSError where the system refuses."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected a text in UTF-8: {error}; get the file again") from None


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises FormatError for everything else, OSError where the system refuses."""
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, source: str | Path) -> Fields:
    """The object in a JSON text. Raises FormatError for everything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: expected JSON: {error}; get the file again") from None
    return Fields(content, source)


def shape_of(sizes: Any, source: str | Path, what: str) -> tuple[int, ...]:
    """Sizes from a file as a shape: at most 32 of 0 or more, whose product - without zeros - is a possible size."""
    expected = f"at most {MAX_RANK} sizes of 0 to {MAX_ELEMENTS} elements in all"
    if not isinstance(sizes, list | tuple) or len(sizes) > MAX_RANK:
        raise wrong(source, what, expected, sizes)
    if not all([type(n) is int and 0 <= n <= MAX_ELEMENTS for n in sizes]):
        raise wrong(source, what, expected, sizes)
    if math.prod([max(n, 1) for n in sizes]) > MAX_ELEMENTS:
        raise wrong(source, what, expected, sizes)
    return tuple(sizes)
