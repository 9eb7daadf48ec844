"""Immutable values with fields, of which tens of thousands are made: statements of loop IR and of kernels."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, cast, dataclass_transform

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: T) -> T:
    """A frozen dataclass with slots, as far as the type checker is concerned: nothing may assign to its fields. Nobody
    checks that while the program runs, which would make its `__init__` three times as slow."""
    return cast(T, dataclass(slots=True, unsafe_hash=True)(cls))
