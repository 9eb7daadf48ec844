"""The accessor of what files say about themselves, and what is checked of a model's sizes."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.llama.config import Config, Rope
from minigrad.errors import FormatError
from minigrad.state.fields import Fields, read_json, shape_of
from minigrad.state.mapped import MappedFile

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**62, 10**400, 0.0, 1.5, 7.0, 1e300, float("inf"), float("-inf"),
    float("nan"), "", "x", "a/b", "\n", [], [1], [1, "x"], [1.0], ["x"] * 5, {}, {"a": 1}, [[[[1]]]], (), (1,),
    np.float32(1)]
METHODS: dict[str, tuple[Callable[[Fields], Any], Callable[[Any], bool]]] = {
    "count": (lambda f: f.count("k", 0, 100), lambda v: type(v) in (int, float) and 0 <= v <= 100 and v == int(v)),
    "real": (lambda f: f.real("k", -1, 100), lambda v: type(v) in (int, float) and -1 <= v <= 100),
    "flag": (lambda f: f.flag("k"), lambda v: type(v) is bool),
    "text": (lambda f: f.text("k"), lambda v: type(v) is str),
    "file_name": (lambda f: f.file_name("k"), lambda v: type(v) is str and v == "x"),
    "integers": (lambda f: f.items("k", int), lambda v: type(v) in (list, tuple) and all(type(n) is int for n in v)),
    "two": (lambda f: f.items("k", int, float, length=1), lambda v: type(v) in (list, tuple) and len(v) == 1 and (
        type(v[0]) in (int, float))),
    "inner": (lambda f: list(f.inner("k")), lambda v: v is None or isinstance(v, dict)),
}


@pytest.mark.parametrize("method", METHODS)
def test_fields_of_every_type(method: str) -> None:
    """Each method returns what it says or names the file, the field and what was expected and found."""
    get, fits = METHODS[method]
    for value in VALUES:
        fields = Fields({"k": value}, "file.json")
        if fits(value):
            assert get(fields) == (list(value or ()) if isinstance(value, tuple | dict | None) else value)
        else:
            with pytest.raises(FormatError, match=r"^file.json: expected 'k' to be .*(, got |, but it is )") as error:
                get(fields)
            assert str(error.value).isprintable() and len(str(error.value)) < 400


def test_defaults_of_fields() -> None:
    fields = Fields({"a": None}, "f")
    assert "a" not in fields and fields.count("a", default=3) == 3 and fields.real("b", 0, 9, 2) == 2.0
    assert fields.text("a", "t") == "t" and fields.flag("a", False) is False
    assert fields.items("a", int, default=[]) == [] and list(fields.inner("a")) == []
    with pytest.raises(FormatError, match="f: expected its description to be an object with fields, got <an in"):
        Fields(1 << 200, "f")
    with pytest.raises(FormatError, match="the shape to be at most 32 sizes of 0 to"):
        shape_of([1] * 33, "f", "the shape")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000])
def test_files_that_are_no_json_object(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"a.json: expected (JSON|its description to be an object with fields)"):
        read_json(tmp_path / "a.json")


def test_a_configuration_that_cannot_be() -> None:
    good: dict[str, Any] = {"width": 32, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 9,
                            "context": 9, "head_size": 8}
    Config(**good, ropes=(Rope(factors=(1.0, 2.0, 4.0, 8.0)),))
    for wrong, message in (({"kv_heads": 3}, "heads divisible"), ({"head_size": 7}, "even head size"),
                           ({"head_size": 256}, "16 times as wide"), ({"ropes": (Rope(factors=(1.0,)),)}, "4 factors"),
                           ({"ropes": (Rope(factors=(1.0, 2.0, 4.0, float("inf"))),)}, "4 factors"),
                           ({"ropes": (Rope(long_factors=(0.0, 2.0, 4.0, 1.0)),)}, "4 factors")):
        with pytest.raises(FormatError, match=message):
            Config(**{**good, **wrong})


def test_a_mapped_part_is_inside(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    file = MappedFile.open(tmp_path / "a")
    for offset, size in ((-1, 2), (0, -1), (0, 11), (11, 0), (1 << 70, 1), (0, 1 << 70)):
        with pytest.raises(FormatError, match="truncated or corrupt: it takes bytes"):
            file.part(offset, size, "it")
