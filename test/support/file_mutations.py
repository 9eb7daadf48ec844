"""Random damage to the files of `file_samples.py`: to their fields, to the instructions of their pickles, to bytes."""
from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable
from typing import Any

from support.file_samples import DEEP, Part, Sample

NUMBERS = [0, 1, -1, 2, 3, 7, 31, 33, 255, 10**6, 2**27, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1,
           2**64 - 1]
FLOATS = [0.0, -0.0, 1.5, -3.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", ".", "..", "x", "../x", "/etc/passwd", "\0", "a\nb", "\udc80", "\ud800", "llama", "F32", "x" * 300,
         "é" * 200]


def odd_value(rng: random.Random) -> Any:
    """A value of any type that JSON has."""
    return copy.deepcopy(rng.choice([
        rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(TEXTS), None, True, False, [], {}, [1], {"a": 1},
        [0.5, "x"], 10 ** rng.choice([20, 400]), DEEP, list(range(70)), [None] * 3]))


# JSON, and anything made of lists and dictionaries


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every container inside with each of its keys."""
    found, pending = [], [content]
    while pending:
        value = pending.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        for key in keys:
            found.append((value, key))
            pending.append(value[key])
    return found


def change_tree(content: Any, rng: random.Random) -> Any:
    """`content` with a value changed, taken away, doubled or exchanged with another."""
    places = _places(content)
    if not places or rng.random() < 0.02:
        return odd_value(rng)
    owner, key = rng.choice(places)
    what = rng.randrange(6)
    if what == 0:
        del owner[key]
    elif what == 1:
        other, second = rng.choice(places)
        if other is owner or not (isinstance(owner[key], list | dict) or isinstance(other[second], list | dict)):
            owner[key], other[second] = other[second], owner[key]
    elif what == 2 and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif what == 2 and isinstance(key, str):
        owner[rng.choice(TEXTS)] = owner.pop(key)
    elif isinstance(owner[key], int | float) and not isinstance(owner[key], bool):
        owner[key] = rng.choice([*NUMBERS, *FLOATS, owner[key] + 1, owner[key] * 2, -owner[key],
                                  float(min(owner[key], 10**9))])
    else:
        owner[key] = odd_value(rng)
    return content


# Formats with a structure of their own


def change_safetensors(content: dict[str, Any], rng: random.Random) -> Any:
    content["header"] = change_tree(content["header"], rng)
    return content


def change_gguf(content: dict[str, Any], rng: random.Random) -> Any:
    metadata, tensors = content["metadata"], content["tensors"]
    what = rng.randrange(9)
    if what == 0:
        content[rng.choice(["version", "more"])] = rng.choice(NUMBERS) % (1 << 32)
    elif what < 5 and metadata:
        at = rng.randrange(len(metadata))
        key, kind, value = metadata[at]
        if rng.random() < 0.5:
            kind = rng.randrange(14)
        value = rng.choice([value, rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(TEXTS).encode(
            "utf-8", "surrogatepass").decode("utf-8", "replace"), (rng.randrange(14), [rng.choice(NUMBERS)] * 3)])
        metadata[at] = (key, kind, value)
        if rng.random() < 0.1:
            del metadata[at]
    elif tensors:
        tensor = rng.choice(tensors)
        if what == 5:
            tensor["format"] = rng.choice([*range(16), 30, 99])
        elif what == 6:
            tensor["shape"] = rng.choice([[], tensor["shape"][::-1], [1] * rng.choice([3, 9, 40]), [0, 1 << 62], [0],
                                          [1 << 62, 4], [n + 1 for n in tensor["shape"]], [32, *tensor["shape"]]])
        elif what == 7:
            tensor["offset"] = rng.choice(NUMBERS)
        else:
            tensor.update(name=rng.choice([*TEXTS[:8], rng.choice(tensors)["name"]]))
            if rng.random() < 0.3:
                tensors.remove(tensor)
    return content


HOSTILE = [
    b"b", b"Nb", b"}U\x08__repr__K\x01sb", b"}U\x0c__defaults__)sb", b"R", b")R", b"Q", b"P1\n",
    b"cos\nsystem\n", b"ios\nsystem\n", b"ctorch\nSize\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n",
    b"\x81", b"\x92", b"\x93", b"\x82\x01", b"o",
    b"r\x00\x00\x00\x08", b"p134217728\n", b"h\x00", b"h\x05", b"j\x03\x00\x00\x00", b"\x94", b"\x80\x05", b".",
    b"T\xff\xff\xff\x7f", b"X\xff\xff\xff\xff", b"\x8e" + bytes(7) + b"\x10", b"\x95" + bytes(7) + b"\x10",
    b"K\x00", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x08" + bytes(7) + b"\x40", b"G\x7f\xf0" + bytes(6),
    b"\x8b\x00\x01\x00\x00" + b"\x7f" * 256, b"L" + b"9" * 5000 + b"L\n", b"F1e999\n", b"N", b"\x88",
    b"2\x86" * 60, b"}2\x86" * 5, b"(", b"0", b"1", b"2", b"\x85", b"\x86", b"\x87", b"t", b"]", b"}", b")",
    b"\x8f", b"\x90", b"\x91", b"a", b"s", b"e", b"u", b"d", b"l"]
"""Instructions of pickles: calls and changes of what is there, large numbers, and tuples of tuples of tuples."""


def change_program(program: list[bytes], rng: random.Random) -> list[bytes]:
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(program))
        what = rng.randrange(6)
        if what == 0:
            del program[at]
        elif what == 1:
            program.insert(at, program[rng.randrange(len(program))])
        elif what == 2:
            other = rng.randrange(len(program))
            program[at], program[other] = program[other], program[at]
        elif what == 3 and program[at][:1] in b"KMJ":
            program[at] = b"\x8a\x09" + (rng.choice(NUMBERS) & (1 << 72) - 1).to_bytes(9, "little")
        else:
            program.insert(at, rng.choice(HOSTILE))
        if not program:
            return [b"."]
    return program


def change_torch(content: dict[str, Any], rng: random.Random) -> Any:
    what = rng.randrange(10)
    if what == 0 and content["storages"]:
        content["storages"].pop(rng.randrange(len(content["storages"])))
    elif what == 1 and "keys" in content:
        content["keys"] = change_program(content["keys"], rng)
    elif what == 2 and content.get("counts"):
        content["counts"][rng.randrange(len(content["counts"]))] = abs(rng.choice(NUMBERS))
    else:
        content["program"] = change_program(content["program"], rng)
    return content


def change_llama2c(content: dict[str, Any], rng: random.Random) -> Any:
    if rng.random() < 0.1:
        content["version"] = rng.choice([0, 1, 2])
    else:
        at = rng.randrange(7)
        content["header"][at] = rng.choice([*NUMBERS, content["header"][at] * 2, -content["header"][at]])
    return content


# Templates


HOSTILE_JINJA = [
    "{{ ''.__class__.__mro__ }}", "{% for a in range(10**9) %}x{% endfor %}", "{{ 'x' * 10**12 }}",
    "{% include 'x' %}", "{{ cycler.__init__.__globals__ }}", "{{ messages.append(messages) }}",
    "{% set x = [1] * 10**10 %}", "{{ 10 ** 10 ** 9 }}", "{{ messages | map('upper') | list }}", "{% raw %}",
    "{{ lipsum(n=10**6) }}", "{{ a.b.c }}", "{{ 1 / 0 }}", "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ '%s' | format(1, 2) }}", "{{", "}}", "{%", "%}", "{#", "-", "|", "(", ")", "[", "'", "\ufdd0", "\ufdd1",
    "<|im_start|>", "\0", "{{ joiner }}", "{{ '{0.__class__}'.format(1) }}", "{% import 'os' as os %}", "{{ self }}",
    "{{ bos_token * 10**11 }}", "{{ range(10**8) | list }}", "{{ 'a' | center(10**11) }}",
    "{{ messages | tojson(indent=10**9) }}", "{{ messages | batch(0) | list }}", "{{ strftime_now(1) }}",
    "{{ raise_exception(messages) }}"]
"""Pieces of templates: ways to the host, without an end, too large, or no Jinja at all."""


def change_template(text: str, rng: random.Random) -> str:
    """`text` with a piece taken away, doubled, exchanged, or put in from somewhere else."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, size = rng.randrange(len(text) + 1), rng.choice([1, 2, 8, 30])
        piece = rng.choice([rng.choice(HOSTILE_JINJA), rng.choice(HOSTILE_JINJA), text[at:at + size]])
        to = rng.randrange(len(text) + 1)
        if rng.random() < 0.3:
            to = text.find("%}", to) + 2  # between statements
        text = text[:to] + piece + text[to + rng.choice([0, 0, size]):]
    return text


FIELDS: dict[str, Callable[[Any, random.Random], Any]] = {
    ".json": change_tree, ".safetensors": change_safetensors, ".gguf": change_gguf, ".pth": change_torch,
    ".bin": change_llama2c, ".jinja": change_template}


# Bytes


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """`data` with bits, numbers or whole pieces changed, mostly near its ends, where headers and directories are."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if not out:
            break
        near = rng.randrange(min(len(out), 400))
        at = rng.choice([rng.randrange(len(out)), near, len(out) - 1 - near])
        what = rng.randrange(7)
        if what == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            out[at] = rng.choice([0, 1, 127, 128, 255])
        elif what == 2:
            size = rng.choice([2, 4, 8])
            out[at:at + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
        elif what == 3:
            del out[at:]
        elif what == 4:
            del out[at:at + rng.choice([1, 4, 100])]
        elif what == 5:
            start, size = rng.randrange(len(out) + 1), rng.choice([1, 8, 100])
            out[at:at] = out[start:start + size]
        else:
            start, size = rng.randrange(len(out) + 1), rng.choice([1, 8, 100])
            out[at:at + size] = out[start:start + size]
    return bytes(out)


def mutated(sample: Sample, rng: random.Random) -> Sample:
    """The sample with one of its files damaged, or that file missing."""
    name = rng.choice(list(sample))
    part = copy.deepcopy(sample[name])
    if rng.random() < 0.02:
        return {other: kept for other, kept in sample.items() if other != name}
    change = change_bytes if isinstance(part.content, bytes) else FIELDS[name[name.rindex("."):]]
    if rng.random() < 0.65:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            part.content = change(part.content, rng)
            if not isinstance(part.content, type(sample[name].content)):
                break
    try:
        data = part.encode(part.content)
    except (struct.error, TypeError, KeyError, AttributeError, ValueError, OverflowError, RecursionError):
        data = part.encode(sample[name].content)
    if data == sample[name].encode(sample[name].content) or rng.random() < 0.1:
        data = change_bytes(data, rng)
    return {**sample, name: Part(data, bytes)}
