"""Fusion, counted: how many launches a graph takes, what is kept in memory, and where temporaries live."""
# Tests know their dims are ints.
# mypy: disable-error-code="misc"
import random
from operator import length_hint

import numpy as np
import pytest
from support.scheduler import ready

from minigrad import Tensor, nn
from minigrad.codegen.lowering.split import divisions_left, split_divisions, split_phases
from minigrad.codegen.passes import stages_of
from minigrad.config import config
from minigrad.engine.show import show
from minigrad.engine.stats import stats
from minigrad.errors import InternalError
from minigrad.ops.composite import expanded
from minigrad.runtime.registry import get_device
from minigrad.scheduler.fusion import MAX_MEMBERS
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.memory import plan_memory
from minigrad.scheduler.merge import ancestors
from minigrad.scheduler.schedule import NODES_PER_KERNEL, Schedule, Scheduling, schedule

pytestmark = pytest.mark.usefixtures("on_cpu")


def launches(*tensors: Tensor) -> int:
    before = stats.snapshot()
    Tensor.realize(*tensors)
    return (stats - before).launches


def scheduled(*tensors: Tensor) -> Schedule:
    return schedule(build_graph([t.node for t in tensors]), frozenset(), get_device("CPU").target)


def temporaries(made: Schedule) -> list[int]:
    """Bytes of each value that is neither given nor asked for."""
    return [s.nbytes for k, s in enumerate(made.slots) if s.leaf is None and k not in made.outputs]


# ---- what becomes one kernel ----


def test_elementwise_chain_is_one_kernel():
    x, y = ready(37, 21), ready(21)
    assert launches(((x * 2 + y).exp().tanh() - x.permute(1, 0).permute(1, 0)).sigmoid()) == 1


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layernorm", "rms_norm", "logsumexp"])
def test_rows_are_one_kernel(name):
    x = ready(64, 96)
    result = getattr(x, name)(-1)
    assert not temporaries(scheduled(result))
    assert launches(result) == 1


@pytest.mark.parametrize("heads, rows, inside", [(4, 1, True), (8, 2, True), (8, 3, False), (4, 40, False)])
def test_few_rows_compute_keys_and_values_on_the_way(heads, rows, inside):
    """What reads each key once for all rows that share it takes keys of another type as they are; what meets them block
    by block of rows reads them again and again, so that they are made before."""
    q, codes, scales = ready(heads, rows, 64), ready(2, 300, 64).half().realize(), ready(2, 300, 1)
    made = q.scaled_dot_product_attention(codes.float(), codes.float() * scales, enable_gqa=True)
    types = {p.dtype.name for step in scheduled(made).steps if "attention" in step.kernel.name
             for p in step.kernel.params if p.mode == "in" and p.shape[-2:] == (300, 64)}
    assert types == ({"float16"} if inside else {"float32"})
    found, k = made.numpy(), np.repeat(codes.numpy().astype(np.float64), heads // 2, 0)
    scores = np.exp(q.numpy() @ k.transpose(0, 2, 1) / 8)
    v = k * np.repeat(scales.numpy(), heads // 2, 0)
    np.testing.assert_allclose(found, scores / scores.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_contractions_take_their_epilogue():
    x, w, b = ready(33, 17), ready(17, 29), ready(29)
    assert launches((x @ w + b).relu()) == 1
    images, kernels, bias = ready(2, 3, 9, 9), ready(8, 3, 3, 3), ready(8)
    assert launches(images.conv2d(kernels, bias, padding=1).relu()) == 1


def test_a_contraction_is_stored_with_what_follows_it():
    """What is asked for element by element of a sum that is kept too."""
    x, w = ready(33, 17), ready(17, 29, seed=1)
    h = x @ w
    y = h.tanh() * 2
    assert launches(h, y) == 1
    expected = x.numpy().astype(np.float64) @ w.numpy()
    np.testing.assert_allclose(h.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y.numpy(), 2 * np.tanh(expected), rtol=1e-4, atol=1e-5)
    for follow in (lambda h: h.T + 1, lambda h: h.sum(1)):  # not element by element
        h = x @ w
        assert launches(h, follow(h)) == 2


def test_an_operand_along_the_sum_is_not_computed_while_it_is_transposed():
    """In a product's packing it would be found in few lanes."""
    h, w, v = ready(768, 512), ready(512, 128, seed=1), ready(768, 128, seed=2)
    y = h.gelu()
    made = scheduled(y @ w, y.T @ v)
    assert [len(s.kernel.params) for s in made.steps] == [2, 3, 3] and temporaries(made) == [768 * 512 * 4]


@pytest.mark.parametrize("axis", [0, 1, (0, 2)])
def test_mean_and_variance_are_one_kernel(axis):
    x = ready(12, 10, 8)
    mean, variance = x.mean(axis), x.var(axis)
    assert launches(mean, variance) == 1
    np.testing.assert_allclose(mean.numpy(), x.numpy().mean(axis), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.numpy().var(axis, ddof=1), rtol=1e-5)


def trained(shape: tuple[int, ...]) -> tuple[Tensor, nn.BatchNorm2d, Tensor]:
    """An input, a batch norm of it while training, and its output, with everything before in memory."""
    x, norm = ready(*shape, requires_grad=True), nn.BatchNorm2d(shape[1])
    Tensor.realize(*nn.state.get_parameters(norm))
    with Tensor.train():
        return x, norm, norm(x)


def test_batch_norm_reads_its_input_once():
    """Statistics are found, and kept for the gradient, by the rows that normalise; both running ones follow."""
    _x, norm, out = trained((4, 8, 10, 10))
    made = scheduled(out.silu(), norm.running_mean, norm.running_var)
    assert sum("sum(" in show_kernel(s.kernel) for s in made.steps) == 1
    assert sorted(temporaries(made)) == [8 * 4, 8 * 4], "the sum and the centred sum of squares per channel"
    assert launches(out.silu(), norm.running_mean, norm.running_var) == 2, "one table moves both"


def test_gradient_of_batch_norm_reads_its_operands_once():
    """Both sums, which are the gradients of scale and shift, and the gradient by data are one kernel."""
    x, norm, out = trained((4, 8, 10, 10))
    assert norm.weight is not None and norm.bias is not None
    coefficients = ready(4, 8, 10, 10, seed=1)
    made = scheduled(*(out.silu() * coefficients).sum().gradient(x, norm.weight, norm.bias))
    assert len(made.steps) == 1 and not temporaries(made)


def test_rows_keep_no_reduction_whose_users_they_wait_for():
    """b needs a sum that the rows of c share, and c needs b: the sum cannot be found by c."""
    x, w = ready(64, 96), ready(1, 96, seed=1)
    total = x.sum(1, keepdim=True)
    b = (total.tanh().expand(64, 96) * w).contiguous()
    c = (x - total) * b
    made = scheduled(c, b, total)
    assert [len([p for p in s.kernel.params if p.mode == "out"]) for s in made.steps] == [1, 1, 1]
    assert "sum(" in show_kernel(made.steps[0].kernel)
    numbers, sums = x.numpy(), x.numpy().sum(1, keepdims=True)
    np.testing.assert_allclose(c.numpy(), (numbers - sums) * np.tanh(sums) * w.numpy(), rtol=1e-4, atol=1e-4)


def test_rows_of_what_was_just_stored_are_reduced_there():
    """Squeeze-excite's pooling follows the activation that it pools, in the same kernel."""
    _x, _norm, out = trained((4, 24, 10, 10))
    y = out.silu()
    pooled = y.mean((2, 3))
    made = scheduled(y, pooled)
    assert len(made.steps) == 1 and not temporaries(made)
    assert "o0[i0, i1, r" in show_kernel(made.steps[0].kernel)
    np.testing.assert_allclose(pooled.numpy(), y.numpy().mean((2, 3)), rtol=1e-5, atol=1e-6)
    plain = ready(40, 1000) * 2
    total = plain.sum(1)
    assert launches(plain, total) == 1
    np.testing.assert_allclose(total.numpy(), plain.numpy().sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape, axis", [((40, 1000), 0), ((2, 100_000), 1)], ids=["columns", "few rows"])
def test_what_is_no_row_of_what_was_stored_is_reduced_apart(shape, axis):
    """Columns are known only after all rows; two rows are too few to share among workers."""
    y = ready(*shape) * 2
    total = y.sum(axis)
    assert len(scheduled(y, total).steps) == 2
    np.testing.assert_allclose(total.numpy(), y.numpy().sum(axis), rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("shape, size, rest", [
    ((2, 3, 8, 12), (2, 3), 0), ((2, 3, 8, 12), (1, 4), 0), ((4, 6, 9), (3,), 0), ((2, 3, 9, 13), (2, 3), 1),
], ids=str)
def test_the_gradient_of_windows_side_by_side_is_a_movement(shape, size, rest):
    """Each element is in one of them, but for `rest` elements of each axis, which are in none."""
    x = ready(*shape, requires_grad=True)
    y = x.max_pool2d(size)
    weights = ready(*y.shape, seed=1)
    gradient, = (y * weights).sum().gradient(x)
    assert any(n.op.name == "unwindow" for n in build_graph([gradient.node]).nodes) is (rest > 0)
    assert rest or len(scheduled(gradient).steps) == 1
    whole = tuple(slice(0, n - rest) for n in shape[2:])
    tiles = x.numpy()[:, :, *whole].reshape(*shape[:2], *[e for n, k in zip(shape[2:], size, strict=True)
                                                          for e in ((n - rest) // k, k)])
    largest = tiles.max(tuple(range(3, tiles.ndim, 2)), keepdims=True)
    np.testing.assert_array_equal(y.numpy(), largest.reshape(y.shape))
    expected = np.zeros(shape, np.float32)
    chosen = np.where(tiles == largest, weights.numpy().reshape(largest.shape), 0)
    expected[:, :, *whole] = chosen.reshape(expected[:, :, *whole].shape)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


def test_one_tap_that_stays_is_no_window():
    x, w = ready(2, 6, 5, 5), ready(4, 6, 1, 1, requires_grad=True)
    grad = (x.conv2d(w) ** 2).sum().gradient(w)[0]
    for tensor, expected in ((x.conv2d(w), False), (grad, False), (x.conv2d(w, stride=2), True)):
        assert ("window" in {n.op.name for n in expanded([tensor.node]).values()}) is expected


def programs(*tensors: Tensor) -> list:
    target = get_device("CPU").target
    return [stage.function for step in scheduled(*tensors).steps for stage in stages_of(step.kernel, target).stages]


def test_layers_of_other_sizes_share_their_programs():
    shapes = [(4, 24, 10, 10), (8, 96, 14, 14), (3, 130, 9, 11)]
    kernels = [programs(trained(shape)[2].silu()) for shape in shapes]
    assert len(kernels[0]) == 1 and kernels[0] == kernels[1] == kernels[2]
    pooled = [programs(ready(n, c, 12, 12).mean((2, 3)) * ready(1, c)) for n, c in ((3, 40), (5, 70))]
    assert pooled[0] == pooled[1]
    for shape in shapes:
        x, _, out = trained(shape)
        mean, var = x.numpy().mean((0, 2, 3), keepdims=True), x.numpy().var((0, 2, 3), keepdims=True)
        expected = (x.numpy() - mean) / np.sqrt(var + 1e-5)
        np.testing.assert_allclose(out.silu().numpy(), expected / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-5)


def test_sizes_that_code_relies_on_stay_constants():
    """Borders of a window, and a sum that is written out."""
    assert programs(ready(4, 24).pad((1, 1)).sum(1)) != programs(ready(4, 25).pad((1, 1)).sum(1))
    assert programs(ready(4, 24).sum(0)) != programs(ready(5, 24).sum(0))


def show_kernel(kernel) -> str:
    from minigrad.codegen.kernel.text import print_kernel

    return print_kernel(kernel)


def test_optimizer_step_and_gradients_agree_with_numpy_after_merging():
    x, w = ready(5, 4), ready(4, 3, requires_grad=True)
    start = w.numpy().copy()
    optimizer = nn.optim.SGD([w], lr=0.5, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (x @ w).sum().backward()
        optimizer.step()
    gradient = x.numpy().sum(0)[:, None].repeat(3, 1)
    np.testing.assert_allclose(w.numpy(), start - 0.5 * (gradient + 1.9 * gradient), rtol=1e-5)


# ---- what does not ----


def test_steps_of_a_recurrence_are_kernels_of_their_own():
    w, h = ready(6, 12), ready(1, 6)
    expected, values = h.numpy(), w.numpy()
    for _ in range(4):
        gates = h.dot(w)
        a, b = gates.chunk(2, -1)
        h = a.tanh() * b + h
        both = expected @ values
        expected = np.tanh(both[:, :6]) * both[:, 6:] + expected
    texts = show(h, stage="kernels").split("kernel ")
    assert max(text.count("sum(") for text in texts) == 1  # no step makes those before it again
    np.testing.assert_allclose(h.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_reduction_with_several_users_is_kept():
    x = ready(64, 96)
    total = x.sum(1)
    made = scheduled(x / total.reshape(64, 1), total.exp().sum())
    assert temporaries(made) == [64 * 4], "kept by the rows that divide by it"
    assert [len(s.kernel.params) for s in made.steps] == [3, 2]
    apart = scheduled(ready(64, 96, seed=1) / total.reshape(64, 1), total.exp().sum())
    assert any("2 users" in r for s in apart.steps for r in s.reasons), "they do not read what it reads"


def test_large_recomputation_is_refused_and_says_why():
    x, w = ready(64, 512), ready(512, 4096)
    made = scheduled(x.exp().log().tanh().sin().exp() @ w)
    assert len(made.steps) == 2
    assert "recomputing costs" in "".join(made.steps[-1].reasons)
    assert "# kept apart: " in show(x.exp().log().tanh().sin().exp() @ w, stage="kernels")


def test_small_recomputation_is_not():
    x, w = ready(8, 8), ready(8, 8)
    assert launches((x + 1) @ w) == 1


def test_long_chains_split():
    x = ready(50)
    y, expected = x, x.numpy().astype(np.float64)
    for k in range(100):
        y = (y + k).tanh() if k % 2 else y * 1.25
        expected = np.tanh(expected + k) if k % 2 else expected * 1.25
    made = scheduled(y)
    assert 1 < len(made.steps) <= 150 // MAX_MEMBERS + 2
    assert any(str(MAX_MEMBERS) in r for s in made.steps for r in s.reasons)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_scheduling_is_deterministic():
    model = nn.Linear(12, 7)
    x = ready(5, 12)
    loss = (model(x).softmax() * 3).log().sum()
    gradients = loss.gradient(model.weight, model.bias)
    first, second = scheduled(loss, *gradients), scheduled(loss, *gradients)
    texts = [[(s.kernel, s.values, s.scalars) for s in made.steps] for made in (first, second)]
    assert texts[0] == texts[1]


def test_kernels_are_given_while_scheduling_goes_on():
    x = ready(6, 5)
    y = nn.BatchNorm(5)(x.matmul(ready(5, 5)))  # has composites
    graph = build_graph([y.sum().node, (x + 1).node])
    scheduling = Scheduling(graph, frozenset(), get_device("CPU").target)
    kernels = iter(scheduling)
    given = [next(kernels)]
    assert not hasattr(scheduling, "schedule")
    given += kernels
    assert given == [s.kernel for s in scheduling.schedule.steps] and len(given) > 2
    assert length_hint(scheduling) == len(graph.nodes) // NODES_PER_KERNEL


def test_what_takes_many_operations_is_not_computed_in_several_kernels():
    """The gradient of a sequence that was cut into steps: in a product's packing it took LLVM 20 s."""
    x, w, v = ready(16, 4, 6), ready(6, 12, seed=1), ready(4, 12, seed=2)
    for t in (x, w):
        t.requires_grad_()
    of_inputs, h = x @ w, ready(4, 4, seed=3)
    for t in range(16):
        h = of_inputs[t].gru_step(h @ v, h)
    steps = scheduled(*h.sum().gradient(x, w)).steps
    assert [len(s.values) for s in steps[-2:]] == [3, 3]


# ---- optimizers ----


@pytest.mark.parametrize("make, scalars", [
    (lambda p: nn.optim.SGD(p, lr=0.1), 0),
    (lambda p: nn.optim.SGD(p, lr=0.1, momentum=0.9), 0),
    (lambda p: nn.optim.Adam(p, lr=0.1), 1),
    (lambda p: nn.optim.AdamW(p, lr=0.1), 1),
], ids=["SGD", "momentum", "Adam", "AdamW"])
def test_updates_are_one_launch(make, scalars):
    """All parameters, of whatever shape, are rows of one table; Adam's count of steps is one more launch."""
    shapes = [(3, 4), (7,), (2, 3, 2, 2), (40, 9), (33,), (1, 5)]
    parameters = [ready(*s, seed=k, requires_grad=True) for k, s in enumerate(shapes)]
    optimizer = make(parameters)
    for step in range(3):
        for p in parameters:
            p.grad = Tensor(np.full(p.shape, 0.5 + step, np.float32)).realize()
        before = stats.snapshot()
        optimizer.step()
        assert (stats - before).launches == 1 + scalars
    assert all(np.isfinite(p.numpy()).all() for p in parameters)


# ---- memory ----


@pytest.mark.parametrize("seed", range(20))
def test_live_slots_never_overlap(seed):
    rng = random.Random(seed)
    slots = range(rng.randint(1, 60))
    sizes = {s: rng.choice((0, 1, 255, 256, 257, 4096, rng.randint(1, 1 << 20))) for s in slots}
    uses = [tuple(rng.sample(slots, rng.randint(0, min(4, len(slots))))) for _ in range(rng.randint(1, 80))]
    arena = plan_memory(sizes, uses)
    live = {s: [t for t, touched in enumerate(uses) if s in touched] for s in slots}
    used = [s for s in slots if live[s]]
    assert set(arena.offsets) == set(used)
    for s in used:
        assert arena.offsets[s] % 256 == 0 and arena.offsets[s] + sizes[s] <= arena.nbytes
        for o in used:
            if o < s and live[s][0] <= live[o][-1] and live[o][0] <= live[s][-1]:
                a, b = arena.offsets[s], arena.offsets[o]
                assert a + sizes[s] <= b or b + sizes[o] <= a


def test_chain_of_matmuls_needs_two_temporaries():
    weights = [ready(64, 64, seed=k) for k in range(12)]
    y = ready(64, 64)
    for w in weights:
        y = (y @ w).relu()
    made = scheduled(y)
    assert len(made.steps) == 12
    sizes = {k: s.nbytes for k, s in enumerate(made.slots) if s.leaf is None and k not in made.outputs}
    assert len(sizes) == 11
    assert plan_memory(sizes, [s.values for s in made.steps]).nbytes == 2 * 64 * 64 * 4


# ---- gradient of a window by data ----


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("size, taps, padding", [(11, 3, 1), (12, 3, 0), (13, 5, 2), (9, 2, 1), (8, 1, 0)])
def test_gradient_by_data_is_one_kernel_without_modulo(stride, dilation, size, taps, padding):
    if size + 2 * padding < dilation * (taps - 1) + 1:
        pytest.skip("the window is larger than the image")
    x, w = ready(2, 3, size, size + 1, requires_grad=True), ready(4, 3, taps, taps)
    y = x.conv2d(w, stride=stride, dilation=dilation, padding=padding)
    dy = ready(*y.shape, seed=1)
    gradient, = y.gradient(x, gradient=dy)
    made = scheduled(gradient)
    assert len(made.steps) == 1
    kernel = split_divisions(split_phases(made.steps[0].kernel))
    assert divisions_left(kernel) == 0 and "%" not in show_kernel(kernel)
    assert not temporaries(made)
    expected, = on_numpy(x, w, dy, stride, dilation, padding)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-5)


def on_numpy(x, w, dy, stride, dilation, padding):
    """The same gradient, term by term."""
    x, w, dy = x.numpy(), w.numpy(), dy.numpy()
    full = np.zeros((*x.shape[:2], x.shape[2] + 2 * padding, x.shape[3] + 2 * padding))
    for u in range(w.shape[2]):
        for v in range(w.shape[3]):
            rows = slice(u * dilation, u * dilation + stride * (dy.shape[2] - 1) + 1, stride)
            columns = slice(v * dilation, v * dilation + stride * (dy.shape[3] - 1) + 1, stride)
            full[:, :, rows, columns] += np.einsum("nohw,oc->nchw", dy, w[:, :, u, v])
    return (full[:, :, padding:padding + x.shape[2], padding:padding + x.shape[3]],)


def test_kernels_that_wait_for_each_other_are_an_error():
    assert ancestors([set(), {0}, {0, 1}]) == [0b000, 0b001, 0b011]
    with pytest.raises(InternalError, match="waits for what is computed from it"):
        ancestors([{2}, {0}, {1}])


def test_a_row_keeps_no_sum_that_it_waits_for():
    """A bias's gradient is kept by no kernel that needs the norm of all gradients, to which other rows' belong."""
    random_numbers = np.random.default_rng(3)
    images = random_numbers.standard_normal((4, 2, 8), np.float32)
    start, found = {}, []
    for device in ("CPU", "NUMPY"):  # NUMPY computes Node by Node
        with config(device=device):
            model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10))
            start = start or {k: v.numpy() for k, v in nn.state.get_state_dict(model).items()}
            nn.state.load_state_dict(model, {k: Tensor(v) for k, v in start.items()})
            optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01)
            model(Tensor(images)).cross_entropy(Tensor(np.array([1, 2, 3, 4]))).backward()
            nn.utils.clip_grad_norm_(optimizer.params, 1.0)
            optimizer.step()
            found.append({k: v.numpy() for k, v in nn.state.get_state_dict(model).items()})
    for name, value in found[0].items():
        assert not np.array_equal(value, start[name])
        np.testing.assert_allclose(value, found[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_row_without_elements_leaves_its_sums_to_others():
    """Both slices read the sums of the softmax; the kernel that was to make them has nothing else to make."""
    x = ready(8, 5)
    rows = np.exp(x.numpy()) / np.exp(x.numpy()).sum(1, keepdims=True)
    y = x.softmax(1)
    some, none = y[2:4, 1:3], y[:, 2:2]
    Tensor.realize(none, some)
    np.testing.assert_allclose(some.numpy(), rows[2:4, 1:3], rtol=1e-5)
    assert none.numpy().shape == (8, 0)


def test_a_row_keeps_no_sum_that_it_finds_a_part_of():
    """The gates of an LSTM are parts of one product; a kernel that reads one of them stored that part alone."""
    x = ready(3, 20, 7)
    sums = x.sum(-1)
    part, whole = x[:, :5] * sums[:, :5].unsqueeze(-1), (-sums).cat(sums, dim=1)
    Tensor.realize(part, whole)
    np.testing.assert_allclose(whole.numpy()[:, 20:], x.numpy().sum(-1), rtol=1e-5, atol=1e-6)


def test_what_follows_a_copy_costs_no_more_than_itself():
    """The long way to the copy is not walked again: an operand that widens its bytes is read as bytes."""
    x = ready(8, 64)
    for k in range(60):
        x = (x * 0.5 + k).sin()
    small = (x * 100).cast("int8").contiguous()
    made = scheduled((small.cast("int32") - 3) @ Tensor(np.ones((64, 24), np.int8)).cast("int32"))
    assert temporaries(made)[-1] == 8 * 64, "the bytes"
    assert "i32(p0[i0, r0]) - 3" in show_kernel(made.steps[-1].kernel)
