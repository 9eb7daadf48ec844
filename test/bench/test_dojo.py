"""Times of GPU kernels beside measured ones, on the sample in test/data/gpu_times."""
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

import minigrad
from bench import dojo
from bench.dojo_fit import Rows, fit
from minigrad.codegen.machines.gpus import gpu

SAMPLE = ROOT / "test/data/gpu_times"
GOLDEN = Path(__file__).with_name("dojo_golden.txt")
# table: bounds of the means over its devices. What predicts all rows alike, or a roofline, meets none of these.
BARS = {"gemm_clblast": {"rho": 0.93, "top1": 0.8, "top8": 0.9, "med": 0.15, "p90": 0.35},
        "conv2d_15x15": {"rho": 0.85, "top1": 0.75, "top8": 0.85, "med": 0.25, "p90": 0.7},
        "conv2d_15x15_wide": {"rho": 0.8, "top1": 0.8, "top8": 0.9, "med": 0.2, "p90": 0.6},
        "matmul_torch": {"rho": 0.95, "med": 0.22, "p90": 0.55},
        "rows_torch": {"rho": 0.94, "med": 0.11, "p90": 0.3},
        "gemm_rocblas": {"rho": 0.96, "med": 0.16, "p90": 0.55},
        "gemm_deepbench": {"rho": 0.97, "med": 0.16, "p90": 0.55},
        "conv2d_deepbench": {"rho": 0.88, "med": 0.23, "p90": 0.75},
        "conv2d_miopen": {"rho": 0.93, "med": 0.36, "p90": 1.0, "pick": 0.85},
        "timm_infer": {"rho": 0.92, "med": 0.18, "p90": 0.65}}
CARDS = ("rtx3060", "rtx2080ti", "rtx4090", "a100", "h100", "t4", "rx6700xt", "rx7900xtx", "mi250x", "a770", "m1",
         "uhd770")
KERNELS = {
    "product 4096^3, tiles 128 x 128": ("gemm_clblast", {
        "MWG": 128, "NWG": 128, "MDIMC": 16, "NDIMC": 8, "MDIMA": 16, "NDIMB": 32, "VWM": 4, "VWN": 4, "SA": 0,
        "SB": 1}),
    "filter 15 x 15, 4 rows an item": ("conv2d_15x15", {
        "block_size_x": 64, "block_size_y": 2, "tile_size_x": 1, "tile_size_y": 4, "use_shmem": 1, "read_only": 1,
        "use_padding": 0}),
    "product 1024 x 1024 x 64": ("matmul_torch", {"kernel": "linear", "batch": 1, "m": 1024, "n": 1024, "k": 64}),
    "halves 4096^3": ("gemm_rocblas", {"dtype": "f16", "layout": "nn", "batch": 1, "m": 4096, "n": 4096, "k": 4096}),
    "convolution 3 x 3, 256 x 28 x 28": ("conv2d_deepbench", {
        "dtype": "f32", "w": 28, "h": 28, "c": 256, "n": 16, "k": 256, "filter_w": 3, "filter_h": 3, "pad_w": 1,
        "pad_h": 1, "stride_w": 1, "stride_h": 1, "direction": "F"}),
    "softmax of 8192 x 2048": ("rows_torch", {"kernel": "softmax", "rows": 8192, "columns": 2048})}


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, float]]]:
    by_table: dict[str, list[dict[str, float]]] = {}
    for table, _, scores in dojo.accuracy(SAMPLE):
        by_table.setdefault(table, []).append(scores)
    return by_table


@pytest.mark.parametrize("table", BARS)
def test_accuracy(found, table):
    for name, bar in BARS[table].items():
        mean = np.nanmean([scores[name] for scores in found[table]])
        assert mean <= bar if name in ("med", "p90") else mean >= bar, f"{name} {mean:.3f}"


def test_predictions_of_cards_stay(request):
    """Six kernels on twelve cards, in microseconds: a weight that changes shows what it moves."""
    lines = [f"{'microseconds':<34}" + "".join(f"{name:>11}" for name in CARDS)]
    for title, (table, config) in KERNELS.items():
        times = [1e6 * float(dojo.times(gpu(name), table, config)) for name in CARDS]
        lines.append(f"{title:<34}" + "".join(f"{t:>11.4g}" for t in times))
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "--update-golden keeps\n" + text


def test_seconds_of_any_card():
    """Whatever facts are there, and of what no table is known."""
    config = KERNELS["product 1024 x 1024 x 64"][1]
    for facts in ({}, {"vendor": "AMD"}, {"name": "RTX 3090", "f32_tflops": 35.6}, {"isa": "gfx90a"}, {"units": 3},
                  {"dram_gbs": 100, "f32_tflops": 1.0, "vendor": "Imagination"}):
        assert 0 < dojo.seconds(facts, "matmul_torch", config) < 1
    with pytest.raises(LookupError, match="conv3d"):
        dojo.seconds({}, "conv3d", {})


def convolution(card: str, **c: object) -> float:
    """The time of one of DeepBench's, of 56 x 56 images, a large one of 1 x 1 filters unless `c` says otherwise."""
    usual = {"dtype": "f32", "w": 56, "h": 56, "c": 256, "n": 64, "k": 512, "filter_w": 1, "filter_h": 1, "pad_w": 0,
             "pad_h": 0, "stride_w": 1, "stride_h": 1, "direction": "B"}
    return float(dojo.times(gpu(card), "conv2d_deepbench", usual | c))


def test_gradients_skip_what_strides_skip():
    for card in ("v100", "rtx3060", "rx6700xt"):
        whole, strided = convolution(card), convolution(card, stride_w=2, stride_h=2)
        assert 0.25 * whole < strided < 0.7 * whole
        # every phase of a 3 x 3 filter's gradient is met: all the work of the forward pass
        size = {"filter_w": 3, "filter_h": 3, "pad_w": 1, "pad_h": 1, "stride_w": 2, "stride_h": 2, "c": 512}
        assert convolution(card, **size) == pytest.approx(convolution(card, **size, direction="F"), rel=0.3)


def test_halves_of_few_channels_are_padded():
    few = {"dtype": "f16", "direction": "F", "k": 64}
    for card in ("v100", "t4", "p100"):
        assert convolution(card, **few, c=1) == convolution(card, **few, c=7) >= convolution(card, **few, c=8)
        assert convolution(card, **few | {"dtype": "f32"}, c=1) < convolution(card, **few | {"dtype": "f32"}, c=8)


def test_products_do_not_beat_the_card():
    for table in ("matmul_torch", "gemm_rocblas", "gemm_deepbench"):
        for device, c, _ in dojo.rows(SAMPLE / f"shapes/{table}.csv.gz"):
            card = dojo.card(dojo.devices(SAMPLE)[device])
            half = np.array(c.get("dtype", "f32")) != "f32"
            peak = np.where(half, max(card.f16_vector_ratio, card.f16_matrix_per_cycle_unit / card.lanes_per_unit), 1.0)
            least = 2.0 * c.get("batch", 1) * c["m"] * c["n"] * c["k"] / (peak * card.f32_tflops * 1e12)
            assert (dojo.predicted(card, table, c) >= least).all()


@pytest.mark.parametrize("table", BARS)
def test_a_slower_card_is_not_faster(table):
    _, path = next(dojo.tables(SAMPLE, [table]))
    for device, columns, _ in dojo.rows(path):
        card = dojo.card(dojo.devices(SAMPLE)[device])
        before = dojo.predicted(card, table, columns)
        for fact in ("dram_gbs", "clock_mhz"):
            slower = replace(card, **{fact: 0.6 * getattr(card, fact)})
            assert (dojo.predicted(slower, table, columns) >= before * (1 - 1e-9)).all()


def test_weights_are_few():
    """At most twelve of a library on a vendor's cards."""
    kept = tomllib.loads((ROOT / "bench/dojo.toml").read_text(encoding="utf-8"))
    assumed = kept.pop("assumed")
    for table, by_vendor in kept.items():
        assert table in dojo.TABLES and "any" in by_vendor
        for weights in by_vendor.values():
            assert 0 < len(weights) <= 12 and all(value >= 0 for value in {**assumed, **weights}.values())


def test_a_fit_finds_weights_that_made_the_times():
    path = SAMPLE / "shapes/rows_torch.csv.gz"
    card = gpu("a100")
    device, columns, measured = next(iter(dojo.rows(path)))
    rows = Rows("rows_torch", path, device, card, columns, measured)
    made = {"once": 1.3, "again": 1.6, "norm": 1.9, "held": 0.5, "launch": 20.0, "reach": 1.0, "joined": 5.0}
    rows = Rows("rows_torch", path, device, card, columns, rows.predicted(made))
    found = fit([rows], dojo.weights_of("rows_torch", card))
    assert np.abs(rows.predicted(found) / rows.measured - 1).max() < 0.02


def test_the_command_prints_a_table(capsys):
    assert dojo.main([str(SAMPLE), "--table", "timm_infer"]) == 0
    assert "rtx4090" in capsys.readouterr().out


def test_our_own_plans_stand_beside_a_librarys_products(capsys, tmp_path):
    with minigrad.config(cache_dir=tmp_path):
        assert dojo.main([str(SAMPLE), "--ours", "matmul_torch", "--sample", "4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^t4 \(t4\): library / ours \d+\.\d\d in the geometric mean of \d shapes", out, re.MULTILINE)
    worst = re.findall(r"^ *(\d+\.\d\d)  \w+ .* us, library .* us  kernel=", out, re.MULTILINE)
    assert worst and worst == sorted(worst, key=float)
