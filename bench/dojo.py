"""python -m bench dojo [FOLDER]: how well times of GPU kernels are predicted, over tables of measured ones.

FOLDER holds `devices.csv`, `specs.csv` and the tables (`tuning`, `shapes`, `networks`) of gpu_times; without one it is
`../shared/data/gpu_times` where that is there, else the sample that is kept with the tests. Of each table and device:

    rho      rank correlation of predicted and measured time
    top1     tuning spaces: speed of the configuration that is predicted to be the fastest, over that of the best
    top8     likewise the best of the eight that are predicted to be
    pick     speed of the algorithm that is predicted to be the fastest of a shape, over the best's
    med p90  median and 90th percentile of |predicted / measured - 1|

`--fit TABLE` fits the table's weights anew and prints them, with the scores of each device and with those where the fit
has not seen it (`without`), or half of its rows (`half`).
"""
from __future__ import annotations

import argparse
import csv
import gzip
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench import dojo_convolutions, dojo_plans, dojo_products, dojo_streams
from bench.dojo_scores import order, scores
from minigrad.codegen.cost.gpu import Counts, costs_of, predict
from minigrad.codegen.machines.gpus import Gpu, gpu_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT.parent / "shared/data/gpu_times", ROOT / "test/data/gpu_times")
OF_CARD = ("name", "vendor", "isa", "units", "clock_mhz", "f32_tflops", "dram_gbs", "dram_bytes", "l2_bytes",
           "l3_bytes")
"""Facts of a card itself; all else is its family's record's, whatever a mapping says."""

Weights = Mapping[str, float]
_PLANS: dict[str, Callable[[Mapping[str, Any], Gpu, Weights], Counts]] = {
    "gemm_clblast": dojo_plans.xgemm, "conv2d_15x15": dojo_plans.filter_15x15,
    "conv2d_15x15_wide": dojo_plans.filter_15x15}
_LIBRARIES: dict[str, Callable[[Mapping[str, Any], Gpu, Weights], Any]] = {
    f.__name__: f for f in (
        dojo_products.matmul_torch, dojo_products.gemm_rocblas, dojo_products.gemm_deepbench,
        dojo_convolutions.conv2d_miopen, dojo_convolutions.conv2d_deepbench, dojo_convolutions.conv2d_tvm,
        dojo_streams.rows_torch, dojo_streams.lbm_opencl, dojo_streams.timm_infer, dojo_streams.ncnn_vulkan,
        dojo_streams.llm_token)}
TABLES = (*_PLANS, *_LIBRARIES)


def seconds(device: Mapping[str, object], kernel: str, config: Mapping[str, Any]) -> float:
    """The time of a row of a table on a device, by facts as in devices.csv. Raises LookupError for others."""
    return float(times(card(device), kernel, config))


def times(gpu: Gpu, kernel: str, config: Mapping[str, Any], weights: Weights | None = None) -> Any:
    """The same for columns that may be arrays, by weights in place of the kept ones."""
    w = {**_weights()["assumed"], **(weights_of(kernel, gpu) if weights is None else weights)}
    if kernel in _PLANS:
        return predict(_PLANS[kernel](config, gpu, w), gpu, w).seconds
    return _LIBRARIES[kernel](config, gpu, w)


def card(facts: Mapping[str, object]) -> Gpu:
    return _card(tuple((name, facts[name]) for name in OF_CARD if name in facts))


@lru_cache(maxsize=512)
def _card(facts: tuple[tuple[str, object], ...]) -> Gpu:
    return gpu_of(dict(facts))


def weights_of(kernel: str, gpu: Gpu) -> Weights:
    """Of plans those of the card's vendor, else of the table's library there."""
    key = key_of(kernel, gpu)
    return costs_of(gpu) if kernel in _PLANS else dict(_weights()[kernel][key])


def key_of(kernel: str, gpu: Gpu) -> str:
    """Whose weights a card has in a table: those of its vendor's with waves of that size, its vendor's, anyone's."""
    if kernel not in TABLES:
        raise LookupError(f"[dojo] expected one of {', '.join(TABLES)}, got {kernel!r}")
    known = _weights().get(kernel, {})
    return next((key for key in (f"{gpu.vendor} {gpu.wave}", gpu.vendor) if key in known),
                gpu.vendor if kernel in _PLANS else "any")


@cache
def _weights() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("dojo.toml").read_text(encoding="utf-8"))


# ---- tables ----


def devices(folder: Path) -> dict[str, dict[str, object]]:
    """The facts of each device: devices.csv has a line for each, specs.csv a few of many more."""
    found: dict[str, dict[str, object]] = {}
    for line in _lines(folder / "devices.csv"):
        found.setdefault(line["device"], {})[line["fact"]] = _value(line["value"])
    for line in _lines(folder / "specs.csv"):
        facts = found.setdefault(line["device"], {})
        for fact in ("vendor", "name", "f32_tflops", "dram_gbs"):
            facts.setdefault(fact, _value(line[fact]))
    return found


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def rows(path: Path, sample: int = 0) -> Iterator[tuple[str, dict[str, np.ndarray], np.ndarray]]:
    """(device, columns, seconds) of a table; of shapes and networks at most `sample` rows, always the same."""
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    names, body = lines[0], lines[1:]
    for at, name in enumerate(names):
        if not name.startswith("s:"):
            continue
        there = [line for line in body if line[at]]
        if sample and len(there) > sample and path.parent.name != "tuning":
            there = [there[i] for i in np.linspace(0, len(there) - 1, sample).astype(int)]
        columns = {key: np.array([_value(line[k]) for line in there])
                   for k, key in enumerate(names) if not key.startswith("s:")}
        yield name[2:], columns, np.array([float(line[at]) for line in there])


def tables(folder: Path, only: list[str] | None = None) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*/*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        if name in TABLES and (not only or name in only):
            yield name, path


def predicted(gpu: Gpu, kernel: str, columns: Mapping[str, np.ndarray], weights: Weights | None = None) -> np.ndarray:
    """Times of all rows, nan where there is no prediction."""
    if kernel not in ("llm_token", "ncnn_vulkan"):  # whose rows are strings in part
        return np.asarray(times(gpu, kernel, columns, weights), float)
    found = np.full(len(next(iter(columns.values()))), np.nan)
    for i in range(len(found)):
        try:
            found[i] = times(gpu, kernel, {key: _value(str(column[i])) for key, column in columns.items()}, weights)
        except LookupError:
            continue
    return found


def accuracy(folder: Path, only: list[str] | None = None, sample: int = 3000
             ) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(table, device, scores) of every table and device, and of tables with many devices how well these are ordered."""
    facts = devices(folder)
    for name, path in tables(folder, only):
        found = [(device, columns, measured, predicted(card(facts.get(device, {})), name, columns))
                 for device, columns, measured in rows(path, sample)]
        if name != "lbm_opencl":
            for device, columns, measured, guess in found:
                there = np.isfinite(guess)
                if there.sum() > 2:
                    kept = {key: column[there] for key, column in columns.items()}
                    yield name, device, scores(path, kept, guess[there], measured[there])
        if len(found) >= 6:
            yield name, "order of devices", order([(columns, guess, measured) for _, columns, measured, guess in found])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench dojo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--table", action="append")
    parser.add_argument("--sample", type=int, default=3000, help="rows of a table and device, 0 for all")
    parser.add_argument("--fit", metavar="TABLE")
    options = parser.parse_args(arguments)
    folder = options.folder or next((x for x in FOLDERS if x.is_dir()), FOLDERS[-1])
    if options.fit:
        from bench.dojo_fit import report

        return report(folder, options.fit, options.sample)
    columns = ("n", "rho", "top1", "top8", "pick", "med", "p90")
    print(f"{'table':<18} {'device':<18}" + "".join(f"{x:>8}" for x in columns))
    for table, device, found in accuracy(folder, options.table, options.sample):
        print(f"{table:<18} {device:<18}" + "".join(_cell(x, found.get(x, np.nan)) for x in columns))
    return 0


def _cell(name: str, value: float) -> str:
    return " " * 8 if np.isnan(value) else f"{value:8.0f}" if name == "n" else f"{value:8.3f}"
