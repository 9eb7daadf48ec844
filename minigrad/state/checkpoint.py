"""Checkpoints of a training run: everything that goes on, in one safetensors file, and a short history of them.

    objects = {"model": model, "optimizer": optimizer, "loader": loader, "progress": {"losses": losses}}
    checkpoint.save("run", step, objects)
    found = checkpoint.load("run", objects)        # None in a new folder; else found.step, found.values["progress"]

What is kept of an object is its `state_dict()`; of a model without one, its Tensors; a plain dictionary as it is. The
state of random numbers is kept besides. Numbers come back as they were, bit for bit.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import random
from minigrad.errors import FormatError
from minigrad.state.fields import one_line
from minigrad.state.mapped import as_tensor
from minigrad.state.safe import elements, safe_load, safe_metadata, safe_save
from minigrad.state.tree import get_state_dict, load_state_dict
from minigrad.tensor import Tensor

_NAME = re.compile(r"checkpoint-(\d{9,})\.safetensors")
_TENSOR, _PAIRS = "$tensor", "$pairs"


@dataclass(frozen=True)
class Restored:
    """The findings of `load`: the step, the file, the plain dictionaries by name, a line for each newer file that was
    not whole."""

    step: int
    path: Path
    values: dict[str, Any]
    problems: tuple[str, ...]


def save(folder: str | os.PathLike, step: int, objects: Mapping[str, Any], keep: int = 3) -> Path:
    """Writes the state of `objects` after `step` steps, and removes all but the newest `keep` checkpoints of `folder`.

    The file has its name only when all of it is on the disk. Raises FormatError, in one line, where it cannot be
    written (a full disk); the checkpoints before are then still there.
    """
    if step < 0 or keep < 1:
        raise FormatError("[checkpoint.save] expected a step of 0 or more and at least one to keep, got "
                          f"{step} and {keep}")
    path = Path(folder) / f"checkpoint-{step:09}.safetensors"
    tensors: dict[str, Tensor] = {}
    state = {name: _packed(_state_of(value), name, tensors) for name, value in objects.items()}
    seed, _ = random.seed()
    text = json.dumps({"step": step, "random": [seed, random.counter()], "objects": state}, allow_nan=True)
    if tensors:
        Tensor.realize(*tensors.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_save(tensors, path, {"state": text, "sha256": _digest(text, tensors)}, durable=True)
    except OSError as error:
        last = next((p.name for p in _newest_first(path.parent)), None)
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
        raise FormatError(f"{path}: cannot write a checkpoint: {reason}; "
                          + (f"the last one, {last}, is kept" if last else "there is none before it")) from None
    _tidy(path.parent, keep)
    return path


def load(folder: str | os.PathLike, objects: Mapping[str, Any]) -> Restored | None:
    """Gives `objects` the state in the newest whole checkpoint of `folder`; None where there is none.

    A file that is cut short or changed is passed over for the one before, with a line in `problems`. Raises FormatError
    where no file is whole, or it has other objects than these; and what objects raise for a state that is not theirs.
    """
    problems: list[str] = []
    for path in _newest_first(Path(folder)):
        try:
            state, tensors = read(path)
        except (FormatError, OSError) as error:
            problems.append(one_line(str(error)))
            continue
        given = state["objects"]
        if set(given) != set(objects):
            raise FormatError(f"{path}: expected the state of {', '.join(objects)}, got that of {', '.join(given)}")
        values = {name: _unpacked(part, tensors) for name, part in given.items()}
        for name, target in objects.items():
            _give(target, values[name])
        seed, count = state["random"]
        random.manual_seed(seed)
        random.rewind(count)
        plain = {name: values[name] for name, target in objects.items() if type(target) is dict}
        return Restored(state["step"], path, plain, tuple(problems))
    if problems:
        raise FormatError(f"{folder}: no checkpoint is whole: {'; '.join(problems)}")
    return None


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(the plain state, the Tensors) of a checkpoint. Raises FormatError for a file that is not whole, or no
    checkpoint."""
    table = safe_metadata(path)
    if "state" not in table or "sha256" not in table:
        raise FormatError(f"{path}: expected a checkpoint of a training run, got another safetensors file")
    tensors = safe_load(path)
    if _digest(table["state"], tensors) != table["sha256"]:
        raise FormatError(f"{path}: corrupt: its contents do not have the checksum that it states")
    return json.loads(table["state"]), {name: _in_memory(t) for name, t in tensors.items()}


def _in_memory(tensor: Tensor) -> Tensor:
    """The same Tensor without the file, which may be removed."""
    shape = tuple([int(d) for d in tensor.shape])
    return as_tensor(elements(tensor).copy().view(tensor.dtype.np).reshape(shape), tensor.dtype)


def _newest_first(folder: Path) -> Iterator[Path]:
    names = os.listdir(folder) if folder.is_dir() else []
    found = [(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
    return (folder / name for _, name in sorted(found, reverse=True))


def _tidy(folder: Path, keep: int) -> None:
    """Removes old checkpoints, and what writers that were killed left."""
    left = [folder / name for name in os.listdir(folder) if name.startswith("checkpoint-") and name.endswith(".tmp")]
    for path in [*list(_newest_first(folder))[keep:], *left]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype.name} {list(tensors[name].shape)}".encode())
        digest.update(elements(tensors[name]).data)
    return digest.hexdigest()


# State as JSON and Tensors


def _state_of(value: Any) -> Any:
    if type(value) is dict:
        return value
    return value.state_dict() if hasattr(value, "state_dict") else get_state_dict(value)


def _give(target: Any, state: Any) -> None:
    if type(target) is dict:
        target.clear()
        target.update(state)
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(state)
    else:
        load_state_dict(target, state)


def _packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON has it, its Tensors by their names in `tensors`."""
    if isinstance(value, Tensor | np.ndarray):
        tensors[path] = value.detach() if isinstance(value, Tensor) else Tensor(value)
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: _packed(v, f"{path}.{k}", tensors) for k, v in value.items()}
        return {_PAIRS: [[k, _packed(v, f"{path}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_packed(v, f"{path}.{n}", tensors) for n, v in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FormatError(f"[checkpoint.save] {path}: expected Tensors, numbers and texts in lists and dictionaries, got a "
                      f"{type(value).__name__}")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _PAIRS in value:
        return {k: _unpacked(v, tensors) for k, v in value[_PAIRS]}
    return {k: _unpacked(v, tensors) for k, v in value.items()}
