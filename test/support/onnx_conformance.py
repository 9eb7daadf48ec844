"""The onnx package's own backend tests over minigrad. `python test/support/onnx_conformance.py --device D PATTERN`."""
from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from minigrad.onnx import OnnxModel, Unsupported
from minigrad.onnx.values import to_array

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def cases(pattern: str = "") -> Iterator[Any]:
    """The cases whose names match: their models with inputs and outputs."""
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            if re.search(pattern, case.name):
                yield case


def data_sets(case: Any) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """(model, inputs, expected outputs) of a case."""
    model = case.model or onnx.load(str(Path(case.model_dir) / "model.onnx"))
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield model, [_value(v) for v in inputs], [_value(v) for v in outputs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        yield (model, _files(folder, "input", model.graph.input), _files(folder, "output", model.graph.output))


def _files(folder: Path, kind: str, infos: Any) -> list[Any]:
    found = []
    for i, info in enumerate(infos):
        path = folder / f"{kind}_{i}.pb"
        if not path.exists():
            break
        which = info.type.WhichOneof("value")
        kinds = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
        proto = kinds.get(which, onnx.TensorProto)()
        proto.ParseFromString(path.read_bytes())
        found.append(_value(proto))
    return found


def _value(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(value)
    return onnx.numpy_helper.to_optional(value) if isinstance(value, onnx.OptionalProto) else value


def difference(got: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """None where `got` is as expected, else how it differs."""
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return f"expected a sequence of {len(expected)}"
        return next((d for g, e in zip(got, expected, strict=True) if (d := difference(g, e, rtol, atol))), None)
    if expected is None or got is None:
        return None if got is expected else f"expected {expected}, got {got}"
    expected, got = np.asarray(expected), np.asarray(got)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"expected {expected.dtype} {expected.shape}, got {got.dtype} {got.shape}"
    if expected.dtype.kind in "OUS":
        return None if (got == expected).all() else f"expected {expected.tolist()}, got {got.tolist()}"[:200]
    if expected.dtype.kind not in "biufc":
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    try:
        np.testing.assert_allclose(got, expected, rtol, atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None


def rounding(got: Any, expected: Any) -> bool:
    """True where numbers differ by two roundings of their type at most: the onnx package rounds after each step."""
    if not isinstance(expected, np.ndarray) or got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}.get(expected.dtype.name, 0.0)
    away = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return bool((away <= 2 * 2 * unit * np.abs(expected.astype(np.float64)).max()).all())


def outcome(case: Any, device: str | None, capture: bool) -> tuple[str, str]:
    """("right" | "rounding" | "refused" | "wrong" | "failed", the reason) of a case."""
    try:
        for model, inputs, outputs in data_sets(case):
            ours = OnnxModel(model, device, capture=capture)
            feeds = {v.name: x for v, x in zip(model.graph.input, inputs, strict=False)}
            results = [to_array(v) for v in ours(feeds).values()]
            if re.search("bernoulli|random|training_dropout(_default)?(_mask)?$", case.name):
                continue
            for got, expected in zip(results, outputs, strict=False):
                text = difference(got, expected, case.rtol, case.atol)
                if text:
                    return ("rounding" if rounding(got, expected) else "wrong"), text
    except Unsupported as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:220]}"
    return "right", ""


def main() -> int:
    """Prints each case that is not right, and how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--device", default="NUMPY")
    parser.add_argument("--capture", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for case in cases(args.pattern):
        start = time.perf_counter()
        kind, text = outcome(case, args.device, args.capture)
        counts[kind] += 1
        if kind != "right":
            print(f"{kind:8} {case.name}: {text}", flush=True)
        elif time.perf_counter() - start > 5:
            print(f"slow     {case.name}: {time.perf_counter() - start:.0f} s", flush=True)
    total = sum(counts.values())
    print(f"{counts['right']} of {total} right ({100 * counts['right'] / max(total, 1):.1f}%)", dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
