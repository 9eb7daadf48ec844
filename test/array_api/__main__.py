"""Runs all cases of the array API standard on a device and prints what differs from array_api_strict.

`PYTHONPATH=.:test python test/array_api [device] [each]`, from the root of the repository: the device is NUMPY and
`each` 1 unless they are given; with `each` 9, every ninth case runs.
"""
from __future__ import annotations

import sys
from collections import Counter

import array_api_strict
from array_api.cases import cases
from array_api.compared import EXCEPTIONS, difference

from minigrad import config


def main(device: str = "NUMPY", each: str = "1") -> int:
    """The number of cases that differ and are no known exceptions."""
    array_api_strict.set_array_api_strict_flags(api_version="2024.12")
    chosen, names = cases()[::int(each)], Counter[str]()
    wrong: list[tuple[str, str]] = []
    with config(device=device):
        for case in chosen:
            names[case.name] += 1
            words = difference(case)
            if words:
                wrong.append((str(case), words))
    for name, words in wrong:
        print(f"{name}{' (known)' if name in EXCEPTIONS else ''}: {words[:300]}")
    right = len(chosen) - len(wrong)
    print(f"{right} of {len(chosen)} cases of {len(names)} names on {device}: {100 * right / len(chosen):.2f}%")
    return len({name for name, _ in wrong} - EXCEPTIONS.keys())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
