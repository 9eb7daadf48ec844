"""Contractions in panels: against the kernel as written in the interpreter, and on the CPU against numpy."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_device
from machine_code import assembly
from matmul_sweep import SIZES, check
from test_packed import AVX2, AVX512, NEON, arguments, equal_the_kernel, flat_kernel, rng, tensor

from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Loop, Prefetch, Store
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel import Kernel
from minigrad.codegen.kernel_interpret import interpret_kernel
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.stages import stages_of
from minigrad.codegen.strategies import panel_form, panel_units
from minigrad.codegen.strategies import panels as module
from minigrad.codegen.strategies.access import extent, value_accesses
from minigrad.codegen.strategies.blocking import SPARE_REGISTERS
from minigrad.codegen.strategies.build_panels import build_panels, build_shared, contraction_of
from minigrad.codegen.strategies.panels import plan
from minigrad.codegen.strategies.plan import PanelPlan, parse_plan
from minigrad.codegen.strategies.recognise import Contraction, with_row
from minigrad.codegen.transforms.unroll import unroll
from minigrad.errors import InternalError
from minigrad.expr import Var
from minigrad.target import Target


def wide(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape), device="CPU")


CASES = {
    "a @ b": lambda: tensor(19, 23) @ tensor(23, 37),
    "a @ b.T": lambda: tensor(13, 33) @ tensor(21, 33).transpose(0, 1),
    "a.T @ b": lambda: tensor(33, 13).transpose(0, 1) @ tensor(33, 21),
    "a.T @ b.T": lambda: tensor(33, 13).transpose(0, 1) @ tensor(21, 33).transpose(0, 1),
    "(a @ b).T": lambda: (tensor(35, 12) @ tensor(12, 9)).transpose(0, 1).contiguous(),
    "batched": lambda: tensor(3, 5, 9) @ tensor(3, 9, 17),
    "whole tiles": lambda: tensor(12, 16) @ tensor(16, 32),
    "one tile": lambda: tensor(2, 8) @ tensor(8, 16),
    "epilogue": lambda: (tensor(3, 5, 9) @ tensor(9, 17) + tensor(17)).relu() + tensor(3, 5, 17),
    "long epilogue": lambda: (tensor(9, 11) @ tensor(11, 37) + tensor(37)).silu() * tensor(9, 37) + tensor(9, 1),
    "prologue": lambda: (tensor(9, 11) * tensor(11) + tensor(9, 1)).abs() @ tensor(11, 20).exp(),
    "turned prologue": lambda: (tensor(21, 33) + 1.0).relu() @ tensor(35, 33).transpose(0, 1).relu(),

    "float64": lambda: wide(6, 11) @ wide(11, 20),

    "1x1 conv": lambda: tensor(1, 12, 7, 7).conv2d(tensor(6, 12, 1, 1)),
}

PLANS = {
    "as planned": {},
    "blocks of K": {"block_k": 16},
    "rows of B": {"a": "turned", "b": "place", "block_k": 16},
    "packed": {"a": "panels", "b": "panels", "block_k": 16},
    "turned": {"a": "turned", "b": "turned", "block_k": 16},
}


def planned(kernel: Kernel, target: Target, monkeypatch: pytest.MonkeyPatch, changes: dict | None = None) -> PanelPlan:
    monkeypatch.setattr(module, "MIN_WORK", 1)
    made = plan(kernel.nests[0], target)
    assert isinstance(made, PanelPlan), made
    if changes:
        tall, wide = made.rows, made.vectors * made.width
        made = replace(made, unit_m=3 * tall, unit_n=2 * wide, block_m=2 * tall, **changes)
    return made


@pytest.mark.parametrize("case, how, target", [
    *((case, how, AVX2) for case in CASES for how in PLANS),
    *((case, how, target) for case in ("a @ b", "a @ b.T") for how in PLANS for target in (AVX512, NEON)),
], ids=lambda x: x if isinstance(x, str) else x.name)
def test_panels_equal_the_kernel(case: str, how: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flat_kernel(CASES[case](), target)
    made = planned(kernel, target, monkeypatch, PLANS[how])
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])


@pytest.mark.parametrize("case", ["a @ b", "turned prologue"])
@pytest.mark.parametrize("how", ["as planned", "packed"])
def test_iterations_of_four_steps_change_nothing(case: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_form, "STEPS", ((0, 4), (0, 2)))
    monkeypatch.setattr(panel_form, "MAX_STEPS_IN_PLACE", 4)
    product = {"a @ b": tensor(19, 24) @ tensor(24, 37),
               "turned prologue": (tensor(21, 36) + 1.0).relu() @ tensor(35, 36).transpose(0, 1)}[case]
    kernel = flat_kernel(product, AVX2)
    made = planned(kernel, AVX2, monkeypatch, PLANS[how])
    made = replace(made, block_m=made.unit_m)
    assert panel_form.form_of(contraction_of(kernel.nests[0], made), made).steps == 4
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])
    shared_equals_the_kernel(kernel, made)


@pytest.mark.parametrize("case, how, by_rows", [
    *((case, "as planned", False) for case in ("a.T @ b", "batched", "epilogue", "turned prologue", "1x1 conv")),
    *(("a @ b.T", how, False) for how in ("blocks of K", "rows of B", "packed")), ("a @ b.T", "turned", True),
])
def test_sizes_as_arguments_change_nothing(case: str, how: str, by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flat_kernel(CASES[case](), AVX2)
    made = planned(kernel, AVX2, monkeypatch, PLANS[how])
    shared_equals_the_kernel(kernel, replace(made, block_m=made.rows if by_rows else made.unit_m))


def shared_equals_the_kernel(kernel: Kernel, made: PanelPlan) -> None:
    """Loops with sizes as arguments, in which no size is written out, compute what the kernel says bit for bit as loops
    for these sizes do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_form, "gains_from_constants", lambda c, form: False)
        found = build_shared(kernel, kernel.nests[0], made, "panels")
    if found is None:
        assert extent(contraction_of(kernel.nests[0], made).k[-1]) < made.width and "turned" in (made.a, made.b)
        return
    function, sizes = found
    verify_function(function)
    assert parse_function(print_function(function)) == function
    assert all(isinstance(p.size, Var) for p in function.buffers)
    results = []
    arrays, scalars = arguments(kernel), {s.name: 0.75 for s in kernel.scalars}
    for f, dims in ((build_panels(kernel, kernel.nests[0], made, "panels"), {}),
                    (function, {d.name: n for d, n in zip(function.dims, sizes, strict=True)})):
        here = {name: a.copy() for name, a in arrays.items()}
        interpret_function(unroll(f), here, scalars, dims)
        results.append(here)
    for name, array in results[0].items():
        np.testing.assert_array_equal(results[1][name], array)


def test_products_of_other_sizes_are_one_program() -> None:
    """Of one register tile, however many units of work there are and whether tiles leave something."""
    for shapes in (((256, 256, 256), (400, 256, 300)), ((384, 768, 640), (1000, 700, 300), (64, 1024, 1024))):
        functions = {stages_of(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512), AVX512).stages[0].function
                     for m, n, k in shapes}
        assert len(functions) == 1
    layers = {stages_of(flat_kernel(tensor(2, k, 14, 14).conv2d(tensor(m, k, 1, 1))), AVX512).stages[0].function
              for m, k in ((480, 80), (672, 112))}
    assert len(layers) == 1


@pytest.mark.parametrize("shapes", [
    ((144, 24, 3136), (240, 24, 3136)), ((128, 128, 128), (96, 96, 96)), ((96, 80, 3136), (128, 80, 3136)),
], ids=["short sum", "small", "far rows"])
def test_constants_stay_where_they_are_worth_it(shapes: tuple[tuple[int, int, int], ...]) -> None:
    functions = [stages_of(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512), AVX512).stages[0].function
                 for m, k, n in shapes]
    assert all(isinstance(p.size, int) for f in functions for p in f.buffers)


def test_blocks_that_are_turned_have_whole_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flat_kernel(tensor(13, 33) @ tensor(33, 21), AVX512)
    made = planned(kernel, AVX512, monkeypatch, {"a": "turned", "block_k": 3})
    with pytest.raises(InternalError, match="blocks of K of at least 4 steps"):
        build_panels(kernel, kernel.nests[0], made, "panels")


@pytest.mark.parametrize("m, n, k, block_k, result", [
    (13, 25, 21, 21, lambda a, b: a @ b),
    (19, 52, 16, 16, lambda a, b: ((a @ b + tensor(52)) * 0.5).silu() + tensor(19, 1)),
    (8, 27, 40, 40, lambda a, b: (a @ b.relu()).relu()),
    (21, 35, 9, 9, lambda a, b: a @ (b + tensor(9, 1))),
    (13, 25, 21, 21, lambda a, b: tensor(21, 13).transpose(0, 1) @ b),
    (13, 26, 41, 16, lambda a, b: (tensor(41, 13).transpose(0, 1) @ b + tensor(26)).relu()),
    (13, 28, 33, 16, lambda a, b: a.relu() @ b),
], ids=["plain", "epilogue", "prologue", "rest of K", "along rows", "blocks of K", "packed"])
def test_columns_that_are_left_are_dot_products(m: int, n: int, k: int, block_k: int, result,  # noqa: ANN001
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flat_kernel(result(tensor(m, k), tensor(k, n)), AVX2)
    made = planned(kernel, AVX2, monkeypatch)
    for rows, unit_m, unit_n in ((4, 8, 16), (8, 24, 64)):
        made = replace(made, rows=rows, vectors=1, dots=n % 8, unit_m=unit_m, block_m=unit_m, unit_n=unit_n,
                       block_k=block_k)
        equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])
    if k in (21, 41):
        shared_equals_the_kernel(kernel, made)


@pytest.mark.parametrize("plane, dots", [(7, 1), (14, 4), (28, 0), (13, 0)])
def test_small_planes_leave_few_columns(plane: int, dots: int) -> None:
    made = plan(flat_kernel(tensor(1, 96, plane, plane).conv2d(tensor(64, 96, 1, 1))).nests[0], AVX512)
    assert isinstance(made, PanelPlan) and made.dots == dots


def test_an_output_that_is_read_is_updated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles at an edge compute rows and columns of their neighbours again, and store none of them."""
    kernel = flat_kernel(tensor(19, 12) @ tensor(12, 37) + tensor(19, 37), AVX2)
    made = planned(kernel, AVX2, monkeypatch)
    # As if the addend lay where the result goes, which is what writing in place makes of it.
    output = next(p.name for p in kernel.params if p.mode == "out")
    kernel = replace(kernel, params=tuple(replace(p, mode="inout") if p.name == output else p for p in kernel.params))
    function = build_panels(kernel, kernel.nests[0], made, "panels")
    addend = next(p for p in kernel.params if p.shape == (19 * 37,) and p.mode == "in")
    arrays = arguments(kernel)
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, {})
    text = print_function(function).replace(f"{addend.name}[", f"{output}[")
    in_place = parse_function("\n".join(line for line in text.splitlines() if line.strip()))
    arrays[output] = arrays[addend.name].copy()
    interpret_function(unroll(in_place), arrays, {})
    np.testing.assert_allclose(arrays[output], expected[output], rtol=3e-5, atol=3e-5)


def test_an_output_that_nobody_reads_is_stored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then tiles at an edge are no other code."""
    kernel = flat_kernel(tensor(19, 12) @ tensor(12, 70) + tensor(70), AVX2)
    function = build_panels(kernel, kernel.nests[0], planned(kernel, AVX2, monkeypatch), "panels")
    stores = [s for s in statements(function.body) if isinstance(s, Store) and s.buffer == "o0"]
    assert len(stores) == 1 and not stores[0].conditions
    equal_the_kernel(kernel, [function])


def test_plans_print_and_parse() -> None:
    made = PanelPlan("panels", ("i0",), 504, 256, 504, 192, 6, 4, 16, "place", "turned")
    assert parse_plan(str(made)) == made


@pytest.mark.parametrize("m, n, k, a, b, whole", [
    (64, 64, 64, "place", "place", True),
    (128, 128, 128, "place", "panels", True),
    (64, 128, 128, "place", "place", True),
    (128, 192, 128, "place", "place", True),
    (256, 256, 256, "place", "place", True),
    (512, 512, 512, "place", "panels", True),
    (64, 512, 512, "place", "place", True),
    (196, 672, 112, "place", "place", True),
    (1024, 1024, 1024, "place", "panels", True),
    (128, 1024, 2048, "place", "panels", True),
    (128, 512, 4096, "place", "panels", False),
    (7, 2048, 2048, "place", "place", False),
    (8, 2048, 2048, "turned", "place", False),
    (100, 112, 480, "place", "place", False),
    (150, 112, 480, "place", "place", True),
    (150, 112, 100, "place", "place", True),
    (20, 112, 480, "place", "place", True),
    (1000, 112, 480, "place", "place", True),
    (196, 80, 480, "place", "place", True),
    (24, 2048, 2048, "turned", "place", False),
])
def test_what_is_packed(m: int, n: int, k: int, a: str, b: str, whole: bool) -> None:
    made = plan(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512).nests[0], AVX512)
    assert isinstance(made, PanelPlan)
    assert (made.a, made.b, made.block_k == k) == (a, b, whole)
    assert (made.rows + 1) * made.vectors + SPARE_REGISTERS <= AVX512.registers


@pytest.mark.parametrize("result, reason", [
    (lambda: tensor(40, 3) @ tensor(3, 40), "K=3 is too small"),
    (lambda: tensor(40, 40) @ tensor(40, 4), "N=4 K=40 is too small"),
    (lambda: tensor(1, 8, 9, 9).conv2d(tensor(8, 8, 3, 3)), "several variables"),
    (lambda: tensor(40, 40).max(1), "the reduction is max"),
])
def test_what_is_not_done_in_panels_says_why(result, reason: str) -> None:  # noqa: ANN001
    assert reason in str(plan(flat_kernel(result()).nests[0], AVX512))


def test_other_compilers_get_panels_for_long_products_alone() -> None:
    opencl = replace(AVX512, language="opencl", local_memory=1 << 21)
    long, short = (flat_kernel((tensor(n, 520) @ tensor(520, 528)).contiguous()).nests[0] for n in (520, 480))
    made = plan(long, opencl)
    assert made == plan(long, AVX512) and isinstance(made, PanelPlan)
    assert sum(panel_form.form_of(contraction_of(long, made), made).memory) * 4 <= opencl.local_memory
    assert "twice the text" in str(plan(short, opencl)) and isinstance(plan(short, AVX512), PanelPlan)
    assert "no panels" in str(plan(long, replace(opencl, local_memory=1 << 14)))
    assert "GPU" in str(plan(long, replace(opencl, vector_bytes=4)))


@needs_device("CL:pocl")
@pytest.mark.parametrize("turned", [False, True])
def test_long_products_in_panels_on_opencl(turned: bool) -> None:
    a, b = rng.standard_normal((515, 521), np.float32), rng.standard_normal((521, 518), np.float32)
    x, y = ((Tensor(np.ascontiguousarray(v.T), device="CL:pocl").transpose(0, 1) if turned else
             Tensor(v, device="CL:pocl")) for v in (a, b))
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose((x @ y * 0.25 + 1.0).numpy(), exact * 0.25 + 1.0, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target, register", [(AVX512, "zmm"), (AVX2, "ymm")], ids=["avx512", "avx2"])
@pytest.mark.parametrize("make", [
    lambda: tensor(250, 256) @ tensor(256, 250),
    lambda: tensor(1200, 516).transpose(0, 1) @ tensor(1200, 512),
    lambda: tensor(510, 1300) @ tensor(208, 1300).transpose(0, 1),
    lambda: (tensor(8, 2048) @ tensor(2048, 1024) + tensor(1024)).relu(),
    lambda: tensor(24, 2048) @ tensor(2048, 1024),
    lambda: tensor(300, 300).relu() @ tensor(300, 300),
    lambda: tensor(200, 112) @ tensor(112, 112),
    lambda: tensor(200, 480) @ tensor(480, 80),
    lambda: tensor(4096, 1024) @ tensor(1024, 240),
    lambda: tensor(1, 2048) @ tensor(2048, 1024),
], ids=["a @ b", "a.T @ b", "a @ b.T", "few rows", "more rows", "prologue", "7 vectors", "5 vectors", "much in place",
        "a row"])
def test_no_accumulator_lives_on_the_stack(make, target: Target, register: str) -> None:  # noqa: ANN001
    stage = stages_of(flat_kernel(make(), target), target).stages[0]
    assert isinstance(stage.plan, PanelPlan)
    assert stage.plan.block_m == stage.plan.rows or any(isinstance(s, Prefetch) for s in statements(stage.function))
    lines = assembly(render_llvm(stage.function, target).source, target.cpu).splitlines()
    sums = [k for k, line in enumerate(lines) if "vfmadd" in line and register in line]
    steps = panel_form.form_of(contraction_of(stage.nests[0], stage.plan), stage.plan).steps
    assert len(sums) == stage.plan.rows * stage.plan.vectors * steps
    start = max(k for k in range(sums[0]) if lines[k].endswith(":"))
    stop = next(k for k in range(sums[-1], len(lines)) if lines[k].startswith("\tj"))
    inner = lines[start:stop]
    assert not [line for line in inner if register in line and "%rsp" in line], "\n".join(inner)


@pytest.mark.parametrize("m, k, block_k, b, steps", [
    (96, 256, 0, "panels", 2), (96, 255, 0, "panels", 1), (96, 256, 15, "place", 1), (8192, 1024, 0, "panels", 4),
    (8192, 1022, 0, "panels", 2), (8192, 1023, 0, "panels", 1), (8192, 1024, 0, "place", 2)])
def test_a_tile_takes_several_steps_at_a_time_where_they_leave_none(m: int, k: int, block_k: int, b: str, steps: int
                                                                    ) -> None:
    kernel = flat_kernel(tensor(m, k) @ tensor(k, 128), AVX512)
    made = plan(kernel.nests[0], AVX512)
    assert isinstance(made, PanelPlan)
    made = replace(made, block_k=block_k or made.block_k, b=b)
    assert panel_form.form_of(contraction_of(kernel.nests[0], made), made).steps == steps


@pytest.mark.parametrize("m, n, k", [(1024, 1024, 1024), (2048, 1024, 2048), (900, 700, 600)])
def test_few_panels_of_b_are_packed_once_for_all_rows(m: int, n: int, k: int) -> None:
    """They leave the second-level cache to the rows of A that pass by, a tile of rows at a time."""
    stage = stages_of(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512), AVX512).stages[0]
    made = stage.plan
    assert isinstance(made, PanelPlan) and (made.a, made.b, made.block_k) == ("place", "panels", k)
    assert made.unit_m >= m and made.block_m == made.rows
    assert made.unit_n == made.vectors * made.width or made.unit_n * k * 4 <= AVX512.l2 // 4
    written = {b.name for b in stage.function.buffers if b.mode != "in"}
    assert any(isinstance(s, Prefetch) and s.buffer in written for s in statements(stage.function))


def test_sums_of_a_unit_stay_in_the_second_level_cache() -> None:
    """Those that are kept from block to block of K."""
    made = plan(flat_kernel(tensor(5000, 2050) @ tensor(2050, 256), AVX512).nests[0], replace(AVX512, units=1))
    assert isinstance(made, PanelPlan) and made.block_k < 2050 and made.unit_m < 5000
    assert made.unit_m * made.unit_n * 4 <= AVX512.l2


@pytest.mark.parametrize("m, n, k, ahead", [(1024, 96, 16, False), (1024, 480, 32, False), (512, 512, 4, True),
                                            (1024, 512, 8, False), (2048, 512, 8, True)])
def test_short_sums_write_whole_rows(m: int, n: int, k: int, ahead: bool) -> None:
    """The output is not prefetched where a unit writes it front to back, but for the shortest sums."""
    stage = stages_of(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512), AVX512).stages[0]
    made = stage.plan
    assert isinstance(made, PanelPlan) and made.unit_n >= n and (made.block_m == made.rows or n == made.columns)
    written = {b.name for b in stage.function.buffers if b.mode != "in"}
    assert any(isinstance(s, Prefetch) and s.buffer in written for s in statements(stage.function)) == ahead


@pytest.mark.parametrize("n, k, far", [(320, 1152, True), (320, 96, False), (1280, 320, True)])
def test_the_next_panel_of_a_large_b_comes_to_the_second_level_cache(n: int, k: int, far: bool) -> None:
    """Where B is read in place and takes much of that cache."""
    target = replace(AVX512, l2=1 << 21)
    stage = stages_of(flat_kernel(tensor(49, k) @ tensor(k, n), target), target).stages[0]
    made = stage.plan
    assert isinstance(made, PanelPlan) and made.b == "place" and made.block_k == k
    assert any(isinstance(s, Prefetch) and s.far for s in statements(stage.function)) == far


def test_the_next_tile_of_a_comes_one_piece_per_iteration() -> None:
    """Where rows of A lie one after another: not for a part of a matrix, whose rows have others between them."""
    for a, ahead in ((tensor(96, 96), 1), (tensor(96, 128)[:, :96], 0)):
        stage = stages_of(flat_kernel(a @ tensor(96, 64), AVX512), AVX512).stages[0]
        made = stage.plan
        assert isinstance(made, PanelPlan) and made.a == "place"
        read = stage.nests[0].body[0].value.args[0].args[0].attr[0]  # type: ignore[union-attr,index]
        steps = [coefficient(s.offset, loop.var) for loop in statements(stage.function) if isinstance(loop, Loop)
                 for s in loop.body if isinstance(s, Prefetch) and s.buffer == read]
        assert steps == [made.rows * 2] * ahead  # two steps of the sum in each


def test_squares_are_transposed_in_registers() -> None:
    """Packing an operand that is contiguous along K loads four elements of each row at a time, never one."""
    stage = stages_of(flat_kernel(tensor(300, 512) @ tensor(512, 512).transpose(0, 1), AVX512), AVX512).stages[0]
    assert isinstance(stage.plan, PanelPlan) and stage.plan.b == "turned"
    source = render_llvm(stage.function, AVX512).source
    assert source.count("load <4 x float>") == 16 and "insertelement <16 x float> %" not in source
    assert source.count("shufflevector <16 x float> %shuf") == 8


@pytest.mark.parametrize("shape", [(7, 16, 40), (33, 300, 600), (512, 100, 1030)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = tensor(m, k).realize(), tensor(k, n).realize()
    found = []
    for threads in (1, 2, 4):
        with config(threads=threads):
            found.append((a @ b).numpy().tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("shape, most", [((196, 80, 240), 0.52), ((784, 240, 40), 0.51), ((49, 1280, 320), 0.52)],
                         ids=str)
def test_units_are_shared_out_evenly(shape: tuple[int, int, int], most: float) -> None:
    """No worker of two has much more than half of the tiles. How many workers there are changes no tile."""
    m, n, k = shape
    nest, = flat_kernel(tensor(m, k) @ tensor(k, n), AVX512).nests
    alone, both = (plan(nest, replace(AVX512, units=units)) for units in (1, 2))
    assert isinstance(alone, PanelPlan) and isinstance(both, PanelPlan)
    down, across = -(-m // both.rows), -(-n // (both.vectors * both.width))
    tall, wide = both.unit_m // both.rows, both.unit_n // (both.vectors * both.width)
    assert panel_units.time_shared(down, across, 1, tall, wide, 2) <= most * down * across
    assert (alone.rows, alone.vectors, alone.block_k) == (both.rows, both.vectors, both.block_k)


def test_sizes_around_those_of_tiles() -> None:
    """A sample of the sweep in matmul_sweep.py, which does all sizes."""
    random = np.random.default_rng(5)
    for m, n, k in random.choice(SIZES, (24, 3)):
        check(int(m), int(n), int(k), random)


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["avx512", "avx2"])
def test_an_operand_may_read_nothing(target: Target) -> None:
    """As a table that is computed from its indices does."""
    places = Tensor.arange(48).reshape(48, 1) - Tensor.arange(40)
    kernel = flat_kernel(tensor(64, 48) @ places.cast("float32"), target)
    found = with_row(kernel.nests[0])
    assert isinstance(found, Contraction) and not value_accesses(found.b, ())
    assert isinstance(plan(kernel.nests[0], target), PanelPlan)


@pytest.mark.parametrize("size, tile", [((128, 128, 128), (6, 2, 1)), ((3136, 24, 96), (4, 3, 1)),
                                        ((784, 40, 144), (6, 2, 2)), ((4, 2048, 2048), (4, 3, 1)),
                                        ((6, 2048, 2048), (6, 2, 1))], ids=str)
def test_tiles_of_sixteen_registers(size: tuple[int, int, int], tile: tuple[int, int, int]) -> None:
    """Twelve sums in flight, and a row of B besides: (rows, vectors, steps of the sum in a vector)."""
    m, n, k = size
    made = plan(flat_kernel(tensor(m, k) @ tensor(k, n), AVX2).nests[0], AVX2)
    assert isinstance(made, PanelPlan) and (made.rows, made.vectors, made.group) == tile


def test_steps_that_are_arguments_are_added_up() -> None:
    """A multiplication in the loop would take the port of multiply-adds, and what is loaded next would wait for it."""
    kernel = flat_kernel(tensor(198, 480) @ tensor(480, 112), AVX2)
    made = plan(kernel.nests[0], AVX2)
    assert isinstance(made, PanelPlan) and made.b == "place"
    shared = build_shared(kernel, kernel.nests[0], made, "f")
    assert shared is not None
    code = assembly(render_llvm(shared[0], AVX2).source, AVX2.cpu)
    blocks = [block.partition("\n\tj")[0] for block in code.split("\n.LBB")]  # up to the first jump, to themselves
    inner = [block for block in blocks if block.count("vfmadd231ps") >= made.rows * made.vectors]
    assert inner and not any("imul" in block for block in inner)
