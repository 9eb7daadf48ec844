"""Keys of plans: equal for what one plan serves, different for what it does not."""
import gc
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, Variable
from minigrad.ops import build as B
from minigrad.ops import functions, kinds
from minigrad.ops.node import Node, apply, live_count, sever
from minigrad.ops.storage import DETACH, RANDOM_BITS
from minigrad.scheduler.graph import FEW, build_graph, structure


def buffer(*shape: int, dtype: str = "float32") -> Node:
    return Tensor(np.zeros(shape), dtype=dtype).realize().lazydata


def key(*nodes: Node) -> bytes:
    return build_graph(list(nodes)).key()


def test_buffers_of_one_type_are_alike() -> None:
    def product(x: Node, y: Node) -> Node:
        return B.mul(x, y)

    a, b, c = buffer(3), buffer(3), buffer(3)
    assert key(product(a, b)) == key(product(b, c)) != key(product(a, a))
    assert key(product(a, b)) != key(product(buffer(4), buffer(4)))
    assert key(product(a, b)) != key(product(buffer(3, dtype="float64"), buffer(3, dtype="float64")))


def test_order_and_number_of_targets_count() -> None:
    x = buffer(3)
    a, b = B.exp(x), B.log(x)
    assert len({key(a, b), key(b, a), key(a), key(b)}) == 4
    assert key(a, a) == key(a)


@pytest.mark.parametrize("a, b", [(0.0, -0.0), (1.0, 2.0), (math.inf, -math.inf)])
def test_numbers_that_differ(a: float, b: float) -> None:
    x = buffer(3)
    assert key(functions.moved(x, x, a)) != key(functions.moved(x, x, b))
    assert key(B.add(x, B.full_like(x, a + 1 / 3))) != key(B.add(x, B.full_like(x, b - 1 / 3)))
    assert functions.moved(x, x, a) is functions.moved(x, x, a) is not functions.moved(x, x, b)


def test_run_time_numbers_and_values_of_symbolic_dims_do_not_count() -> None:
    def bits(counter: int) -> Node:
        numbers = [B.scalar(v, role, kind, "CPU") for v, role, kind in
                   ((7, "key", Tensor([0]).dtype), (counter, "counter", Tensor([0]).dtype))]
        return apply(RANDOM_BITS, *[B.cast(n, _unsigned()) for n in numbers], extents=(4,))

    assert key(bits(1)) == key(bits(2))
    n = Variable("n", 1, 8)

    def head(length: int) -> Node:
        return B.slice_(buffer(8), (0,), (n.bind(length),))

    assert key(head(2)) == key(head(5)) != key(B.slice_(buffer(8), (0,), (5,)))
    assert build_graph([head(2)]).symbolic and not build_graph([B.exp(buffer(3))]).symbolic


def _unsigned():
    return Tensor(np.zeros(1, np.uint32)).dtype


STEPS = (
    lambda x, y, n: B.add(x, y), lambda x, y, n: B.mul(x, B.full_like(x, n + 2.0)), lambda x, y, n: B.flip(x, (n,)),
    lambda x, y, n: functions.softmax(x, (n,)), lambda x, y, n: functions.moved(x, y, 0.5),
    lambda x, y, n: apply(DETACH, x, id=n), lambda x, y, n: B.where(B.lt(x, y), y, x),
)


def random_graph(rng: np.random.Generator) -> list[Node]:
    """One to three results of a few operations over two buffers."""
    made = [buffer(2, 3), buffer(2, 3)]
    for _ in range(rng.integers(1, 5)):
        x, y = (made[k] for k in rng.integers(0, len(made), 2))
        made.append(STEPS[rng.integers(0, len(STEPS))](x, y, int(rng.integers(0, 2))))
    return [made[k] for k in rng.integers(0, len(made), rng.integers(1, 4)) if made[k].storage is None]


def test_keys_are_equal_where_structures_are() -> None:
    rng = np.random.default_rng(0)
    graphs = [g for g in map(build_graph, [random_graph(rng) for _ in range(400)]) if g.nodes]
    by_key: dict[bytes, tuple] = {}
    for graph in graphs:
        assert by_key.setdefault(graph.key(), structure(graph)) == structure(graph)
    assert len(set(by_key.values())) == len(by_key) < len(graphs)


def test_tables_are_bounded_and_forgetting_them_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    x = buffer(5)
    before = key(B.reshape(B.exp(x), (5, 1)))
    monkeypatch.setattr(kinds, "MOST", 10)
    for k in range(1, 50):
        B.reshape(buffer(k), (k, 1))
    assert len(kinds.kinds) <= 11 and len(kinds._types) <= 11
    assert key(B.reshape(B.exp(buffer(5)), (5, 1))) == before


def test_a_node_that_is_gone_leaves_no_entry() -> None:
    x = buffer(3)
    gc.collect()
    before = live_count()
    kept, severed = B.exp(x), B.log(x)
    kinds_made = kept.kind, severed.kind
    sever(severed)
    assert B.exp(x) is kept and live_count() == before + 1
    del kept, severed
    assert live_count() == before
    assert not any(kind is None or kind.nodes for kind in kinds_made)


class Stub:
    """As much of a Node as the walk looks at, with any number of inputs."""

    kind, type, op = SimpleNamespace(number=1, special=""), SimpleNamespace(number=1, symbolic=False), None

    def __init__(self, *inputs: "Stub"):
        self.inputs, self.storage = inputs, None if inputs else object()


@pytest.mark.parametrize("count", [FEW, FEW + 1, 40])
def test_inputs_come_in_order_however_many(count: int) -> None:
    """Some are realized, shared, or inputs of each other."""
    parts = [Stub(Stub())]
    for k in range(1, count):
        parts.append([Stub(), Stub(parts[k // 2], parts[k - 1], Stub()), parts[k // 3]][k % 3])
    whole = Stub(*parts[::-1])
    order: list[Any] = []

    def visit(node: Stub) -> None:
        if node not in order:
            for i in node.inputs:
                visit(i)
            order.append(node)

    visit(whole)
    wanted: list[Any] = [whole, parts[1], parts[2]]
    graph: Any = build_graph(wanted)
    graph.connect()
    assert graph.nodes == order
    assert [tuple(order[k] for k in ks) for ks in graph.inputs] == [n.inputs for n in order]


def test_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST_NUMBERS", 10)
    made = {key(buffer(k)) for k in range(100, 150)}
    assert len(made) == 50 and len(kinds._known) <= 10


def test_positions_are_read_back_from_the_key() -> None:
    x, y = buffer(3), buffer(3)
    graph = build_graph([B.add(B.mul(x, y), apply(DETACH, x, id=5)), B.exp(y)])
    graph.connect()
    assert [n.op.name for n in graph.nodes] == ["buffer", "buffer", "mul", "add", "exp"]
    assert graph.inputs == [(), (), (0, 1), (2, 0), (1,)] and graph.leaf == [True, True, False, False, False]
    assert [a.op for a in graph.aliases] == [DETACH] and not set(graph.aliases) & set(graph.position)


def test_a_graph_with_further_targets_is_the_one_of_all() -> None:
    """Also where they look through aliases, read what was there already, or are part of it."""
    x, y = buffer(3), buffer(4)
    alias = apply(DETACH, B.exp(x), id=0)
    first, shared = B.log(alias), B.mul(B.exp(x), B.exp(x))
    for further in ([shared], [B.exp(x), B.neg(y)], [apply(DETACH, first, id=0), B.add(shared, alias)], [alias, x]):
        whole = build_graph([first, *further])
        whole.connect()
        for connected in (False, True):
            graph = build_graph([first])
            if connected:
                graph.connect()
            graph.extend(further)
            graph.connect()
            assert graph == whole and graph.key() == whole.key()


def test_constants_that_come_again_are_one_node() -> None:
    """Both zeros, NaN, and numbers of other types and shapes are others; those of an expansion are apart."""
    from minigrad.dtype import float32, int32
    from minigrad.ops.composite import apart

    asked: list[tuple[Any, Any, tuple[int, ...]]] = [
        (0.0, float32, (2,)), (-0.0, float32, (2,)), (1.0, float32, (2,)), (1, int32, (2,)), (True, int32, (3,)),
        (2.5, float32, ()), (2.5, float32, (0,)), (float("nan"), float32, (2,)), (float("inf"), float32, (2,))]
    made = [B.full(value, shape, dtype, "CPU") for value, dtype, shape in asked]
    for node, (value, dtype, shape) in zip(made, asked, strict=True):
        assert B.full(value, shape, dtype, "CPU") is node and node.shape == shape and node.dtype is dtype
        assert repr(B.constant_of(node)) == repr(float(value) if dtype is float32 else int(value))
        with apart():
            assert B.full(value, shape, dtype, "CPU") is not node
    assert len(set(made)) == len(made)
