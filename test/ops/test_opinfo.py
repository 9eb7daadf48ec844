"""A part of PyTorch's own table of operations; `python test/opinfo` runs all of it. Every elementwise operation and
reduction is met with two samples in one type and direction, which change from one entry to the next, those that lose
digits with some in each direction, and all entries with all of their invalid inputs."""
from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.skipif(find_spec("torch") is None or find_spec("expecttest") is None,
                                 reason="torch and expecttest are not installed: there is no OpInfo"),
              pytest.mark.filterwarnings("ignore")]  # of torch's own modules, when they are imported
TURNS = (("float32", "forward"), ("float32", "gradient"), ("bfloat16", "forward"), ("float32", "second"),
         ("int64", "forward"), ("bfloat16", "gradient"), ("bool", "forward"), ("bfloat16", "second"),
         ("float32", "views"), ("bfloat16", "views"), ("int64", "views"))


@pytest.mark.parametrize("turn", range(2))
def test_samples(turn: int) -> None:
    import torch
    from opinfo.check import applicable, check
    from opinfo.counterparts import WRONG, counterpart
    from opinfo.report import op_db, simple

    right, total, failures = 0, 0, []
    for k, entry in enumerate(op_db):
        if not simple(entry) or counterpart(entry) is None or entry.formatted_name in WRONG:
            continue
        turns = [(getattr(torch, d), way) for d, way in TURNS if applicable(entry, getattr(torch, d), way)]
        if not turns:
            continue
        dtype, direction = turns[(k + turn * 3) % len(turns)]
        count = check(entry, dtype, direction, "NUMPY", limit=2)
        right, total = right + count.right, total + count.total
        failures += [f"{entry.formatted_name} {dtype} {direction}: {count.first}"] if count.first else []
    assert total > 150 and right >= 0.99 * total, "\n".join(failures)


DELICATE = {
    "float32": ("cholesky_*", "cov", "linalg_cond", "linalg_eigh", "linalg_lstsq", "linalg_pinv_*", "linalg_svd",
                "matrix_exp", "nn_functional_embedding*", "nn_functional_grid_sample", "pinverse", "polygamma_*_n_0",
                "scatter_reduce_prod", "index_reduce_prod", "triangular_solve"),
    "bfloat16": ("cummax", "cummin", "linalg_multi_dot", "nextafter", "nn_functional_bilinear", "nn_functional_conv*",
                 "nn_functional_interpolate_nearest*", "nn_functional_pad_*", "nn_functional_upsample_nearest",
                 "polygamma_*_n_0", "scatter_reduce_*")}
"""What computes in a wider type, for its gradients and second gradients."""


@pytest.mark.parametrize("kind", DELICATE)
def test_operations_that_lose_digits(kind: str) -> None:
    import torch
    from opinfo.check import applicable, check
    from opinfo.report import entries, op_db

    chosen = [op_db[k] for k in entries(DELICATE[kind])]
    counts = {(e.formatted_name, way): check(e, getattr(torch, kind), way, "NUMPY", limit=2) for e in chosen
              for way in ("forward", "gradient", "second") if applicable(e, getattr(torch, kind), way)}
    assert sum(c.total for c in counts.values()) > 40
    assert not {key: c.first for key, c in counts.items() if c.first}


def test_invalid_inputs() -> None:
    import torch
    from opinfo.check import check
    from opinfo.counterparts import TAKEN, counterpart
    from opinfo.report import op_db

    wrong: dict[str, str] = {}
    for entry in op_db:
        known = counterpart(entry) is not None and entry.error_inputs_func is not None
        if known and entry.formatted_name not in TAKEN:
            count = check(entry, torch.float32, "errors", "NUMPY")
            wrong |= {entry.formatted_name: count.first} if count.first else {}
    assert not wrong


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    from opinfo.report import main

    assert main(["--op", "exp", "add", "linalg_ldl*", "--grad", "1", "--limit", "3"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 5 entries have a counterpart" in printed and "float32   gradient  6 of 6 samples right" in printed
