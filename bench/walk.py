"""Counts of what runs inside minigrad in the first `realize` of a product of two 64x64 matrices, in a process that has
realized its operands: files, functions, calls, and changes of folder from one call to the next.

`python -m bench.walk` prints the figures, and with `--list` the most frequent changes. The product's plan is made, not
read from the disk cache.
"""
from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from minigrad import Tensor, config
from minigrad.errors import quantity

ROOT = f"{Path(sys.modules['minigrad'].__file__ or '').parent}/"


@dataclass
class Walk:
    """The calls of minigrad's functions, and how often one in a folder is followed by one in another. What a module
    does when it is imported is no call."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    last: str | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        self.calls[code] += 1
        folder = code.co_filename[len(ROOT):].rpartition("/")[0]
        if self.last is not None and folder != self.last:
            self.changes[self.last, folder] += 1
        self.last = folder

    def __str__(self) -> str:
        files = {code.co_filename for code in self.calls}
        return (f"{quantity(len(files), 'file')}, {quantity(len(self.calls), 'function')}, "
                f"{quantity(self.calls.total(), 'call')}, {quantity(self.changes.total(), 'change')} of folder")


def first_product() -> Walk:
    """The walk of a product of matrices."""
    walk = Walk()
    with config(device="CPU", disk_cache=False, verify=False):
        a, b = [Tensor.rand(64, 64).realize() for _ in range(2)]
        product = a @ b
        sys.setprofile(walk)
        try:
            product.realize()
        finally:
            sys.setprofile(None)
    return walk


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Counts what runs in the first realize of a product of matrices.")
    parser.add_argument("--list", action="store_true", help="the most frequent changes of folder")
    options = parser.parse_args()
    found = first_product()
    print(found)
    if options.list:
        for (before, after), times in found.changes.most_common(40):
            print(f"{times:6} {before or 'minigrad'} -> {after or 'minigrad'}")
