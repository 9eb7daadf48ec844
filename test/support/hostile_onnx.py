"""Models in ONNX that are wrong on purpose, each for one reason. `python test/support/hostile_onnx.py` prints what
minigrad.onnx says of each: a line `NAME seconds TYPE: message` (TYPE is `runs` where it computes an output)."""
from __future__ import annotations

import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from minigrad.onnx import OnnxModel

FEED = {"x": np.array([[1, -2, 3]], np.float32)}
MEMORY, SECONDS = 6 << 30, 20
node = helper.make_node


def model(nodes: list[Any], weights: dict[str, Any] | None = None, functions: Any = (), opset: int = 21) -> Any:
    """A model of nodes from x [1, 3] to y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    given = [w if isinstance(w, TensorProto) else numpy_helper.from_array(np.asarray(w), name)
             for name, w in (weights or {}).items()]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], given), functions=list(functions), opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("own", 1)])


def one(op: str, *inputs: Any, opset: int = 21, **attributes: Any) -> Any:
    """A model of one node over x and constants."""
    weights = {f"w{i}": np.asarray(v) for i, v in enumerate(inputs)}
    return model([node(op, ["x", *weights], ["y"], **attributes)], weights, opset=opset)


def made(op: str, *inputs: Any, **attributes: Any) -> Any:
    """A model of one node over constants alone."""
    weights = {f"w{i}": np.asarray(v) for i, v in enumerate(inputs)}
    return model([node(op, list(weights), ["y"], **attributes)], weights)


def weight(dims: list[int], data: bytes = b"", kind: int = TensorProto.FLOAT) -> TensorProto:
    """A tensor whose data need not go with its shape."""
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=data)


def outside(location: str, length: int = 12) -> Any:
    """A model whose weight lies in a file elsewhere."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model([node("Add", ["x", "w"], ["y"])], {"w": tensor})


def graph(nodes: list[Any], inputs: list[str] = (), outputs: list[str] = ("y",)) -> Any:  # type: ignore[assignment]
    """A subgraph."""
    return helper.make_graph(nodes, "s", [ValueInfoProto(name=n) for n in inputs],
                             [ValueInfoProto(name=n) for n in outputs])


def nested(depth: int) -> Any:
    """Branches within branches."""
    inner = graph([node("Identity", ["x"], ["y"])])
    for _ in range(depth):
        inner = graph([node("If", ["c"], ["y"], then_branch=inner, else_branch=graph([node("Neg", ["x"], ["y"])]))])
    return model(list(inner.node), {"c": np.array(True)})


def deep_bytes(depth: int) -> bytes:
    """The bytes of branches within branches, deeper than Python can make them: attribute 5, graph 1, attribute 6."""
    inner = b""
    for field in [6, 5, 1] * depth + [7]:
        size, digits = len(inner), b""
        while size > 127:
            digits, size = digits + bytes([size & 127 | 128]), size >> 7
        inner = bytes([field << 3 | 2]) + digits + bytes([size]) + inner
    return model([node("Relu", ["x"], ["y"])]).SerializeToString() + inner


def loop(trips: Any, go: bool = True, body: Any = None, **more: Any) -> Any:
    """A loop that adds x to itself."""
    body = body or graph([node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["u"])], ["i", "go", "v"],
                         ["on", "u"])
    return model([node("Loop", ["t" if trips is not None else "", "c", "x"], ["y"], body=body, **more)],
                 {**({} if trips is None else {"t": np.array(trips)}), "c": np.array(go)})


def laughs() -> Any:
    """Functions that each call the one before ten times."""
    functions = [helper.make_function("own", "f0", ["a"], ["b"], [node("Neg", ["a"], ["b"])],
                                      [helper.make_opsetid("", 21)])]
    for level in range(1, 12):
        names = ["a", *[f"t{i}" for i in range(9)], "b"]
        calls = [node(f"f{level - 1}", [p], [q], domain="own") for p, q in pairwise(names)]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], calls, [
            helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]))
    return model([node("f11", ["x"], ["y"], domain="own")], functions=functions)


def recursive() -> Any:
    """A function that calls itself."""
    f = helper.make_function("own", "f", ["a"], ["b"], [node("f", ["a"], ["b"], domain="own")], [
        helper.make_opsetid("own", 1)])
    return model([node("f", ["x"], ["y"], domain="own")], functions=[f])


def nested_loops() -> Any:
    """A loop of loops of loops of a thousand steps each."""
    body = graph([node("Identity", ["go"], ["on"]), node("Add", ["v", "x"], ["u"])], ["i", "go", "v"], ["on", "u"])
    for _ in range(2):
        body = graph([node("Identity", ["go"], ["on"]), node("Loop", ["t", "c", "v"], ["u"], body=body)],
                     ["i", "go", "v"], ["on", "u"])
    return loop(1000, body=body)


def line(op: str, **attributes: Any) -> Any:
    """A node over x as one line of numbers in one channel, and a kernel."""
    return model([node("Unsqueeze", ["x", "a"], ["l"]), node(op, ["l", "w"][:2 if op == "Conv" else 1], ["y"],
                                                             **attributes)],
                 {"a": np.array([1]), "w": np.ones((1, 1, 2), np.float32)})


def wrong_kind(op: str, **attributes: Any) -> Any:
    """A node over x whose attribute is of another kind."""
    return model([node(op, ["x"], ["y"], **attributes)])


def flipped(seed: int) -> bytes:
    """A model with one bit in a hundred changed."""
    data = np.frombuffer(good(), np.uint8).copy()
    random = np.random.default_rng(seed)
    places = random.integers(0, len(data), max(1, len(data) // 100))
    data[places] ^= (1 << random.integers(0, 8, len(places))).astype(np.uint8)
    return data.tobytes()


def good() -> bytes:
    """A model that is right."""
    return model([node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])],
                 {"w": np.ones((3, 2), np.float32)}).SerializeToString()


BIG, HUGE = 1 << 40, (1 << 62) + 1
CASES: dict[str, Callable[[], Any]] = {
    "empty": lambda: b"", "noise": lambda: bytes(range(256)) * 8, "text": lambda: b"not a model at all",
    "cut in half": lambda: good()[:len(good()) // 2], "cut at the end": lambda: good()[:-3],
    "endless length": lambda: b"\x3a\xff\xff\xff\xff\x0f", **{f"flipped {i}": partial(flipped, i) for i in range(8)},
    "no graph": lambda: helper.make_model(helper.make_graph([], "g", [], [])),
    "output from nowhere": lambda: model([]),
    "cycle of two": lambda: model([node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]),
                                   node("Neg", ["b"], ["y"])]),
    "reads itself": lambda: model([node("Add", ["x", "y"], ["y"])]),
    "missing input": lambda: model([node("Add", ["x", "z"], ["y"])]),
    "too few inputs": lambda: model([node("Add", ["x"], ["y"])]),
    "too many outputs": lambda: model([node("Relu", ["x"], ["a", "b", "y"])]),
    "no such operator": lambda: one("Frobnicate"), "no such domain": lambda: wrong_kind("Relu", domain="nowhere"),
    "opset 10000": lambda: one("Relu", opset=10000), "opset -1": lambda: one("Relu", opset=-1),
    "weight without data": lambda: model([node("Add", ["x", "w"], ["y"])], {"w": weight([3])}),
    "weight of huge shape": lambda: model([node("Add", ["x", "w"], ["y"])], {"w": weight([1 << 40, 1 << 40], b"1234")}),
    "weight of negative shape": lambda: model([node("Add", ["x", "w"], ["y"])], {"w": weight([-3], b"1" * 12)}),
    "weight of no type": lambda: model([node("Add", ["x", "w"], ["y"])], {"w": weight([3], b"1" * 12, 999)}),
    "weight of strings": lambda: one("Add", np.array(["a", "b", "c"], object)),
    "other types": lambda: one("Add", np.arange(3)), "shapes apart": lambda: one("Add", np.zeros(5, np.float32)),
    "external above": lambda: outside("../../../../etc/passwd"), "external absolute": lambda: outside("/etc/passwd"),
    "external missing": lambda: outside("none.bin"), "external too long": lambda: outside("short.bin", 1 << 50),
    "reshape huge": lambda: one("Reshape", [HUGE, 3]), "reshape negative": lambda: one("Reshape", [-5, 3]),
    "reshape two open": lambda: one("Reshape", [-1, -1]), "expand huge": lambda: one("Expand", [BIG, 1, 3]),
    "tile huge": lambda: one("Tile", [BIG, BIG]), "tile negative": lambda: one("Tile", [-1, 2]),
    "pad huge": lambda: one("Pad", [0, BIG, 0, BIG]), "fill huge": lambda: made("ConstantOfShape", [BIG, BIG]),
    "fill negative": lambda: made("ConstantOfShape", [-4, 4]),
    "range huge": lambda: made("Range", np.array(0), np.array(BIG), np.array(1)),
    "range of step 0": lambda: made("Range", np.array(0), np.array(5), np.array(0)),
    "one hot huge": lambda: made("OneHot", np.array([1]), np.array(BIG), np.array([0.0, 1.0], np.float32)),
    "window huge": lambda: made("HannWindow", np.array(BIG)),
    "resize huge": lambda: one("Resize", np.array([], np.float32), np.array([1e12, 1e12], np.float32)),
    "gather outside": lambda: one("Gather", np.array(99), axis=1), "axis outside": lambda: one("Softmax", axis=99),
    "transpose twice": lambda: wrong_kind("Transpose", perm=[0, 0]),
    "attribute text": lambda: wrong_kind("Softmax", axis="one"), "attribute graph": lambda: wrong_kind(
        "Flatten", axis=graph([])), "attribute float": lambda: wrong_kind("Softmax", axis=0.5),
    "cast to nothing": lambda: wrong_kind("Cast", to=12345),
    "convolution of step 0": lambda: line("Conv", strides=[0]),
    "pool of size 0": lambda: line("MaxPool", kernel_shape=[0]),
    "groups of 0": lambda: line("Conv", group=0),
    "nested 30": lambda: nested(30).SerializeToString(), "nested 10,000": lambda: deep_bytes(10_000),
    "function of itself": recursive, "functions of functions": laughs,
    "loop of 2**60": lambda: loop(1 << 60), "loop for ever": lambda: loop(None), "loops of loops": nested_loops,
    "loop of -1": lambda: loop(-1), "loop of a wrong body": lambda: loop(3, body=graph([], ["i"], ["y"])),
    "loop without body": lambda: model([node("Loop", ["t", "c", "x"], ["y"])], {"t": np.array(3), "c": np.array(True)}),
    "branch on many": lambda: model([node("If", ["x"], ["y"], then_branch=graph([]), else_branch=graph([]))]),
    "sequence of itself": lambda: model([node("SequenceConstruct", ["x"], ["s"]), node("Add", ["s", "s"], ["y"])]),
}


def outcome(name: str, folder: Path) -> str:
    """What minigrad says of a case, on one line unless it is more."""
    try:
        made = CASES[name]()
    except Exception as error:
        return f"NOT MADE {type(error).__name__}: {error}"
    path = folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    try:
        result = OnnxModel(path)(FEED)
        for value in result.values():
            value.numpy()
        return "runs"
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"


def main() -> None:
    """Prints the outcome of each case; memory and the processor's time of each are limited."""
    warnings.simplefilter("ignore")
    OnnxModel(good())(FEED)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "short.bin").write_bytes(b"1234")
        for name in [n for n in CASES if len(sys.argv) < 2 or sys.argv[1] in n]:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
            start = time.process_time()
            text = outcome(name, Path(folder))
            print(f"{name}\t{time.process_time() - start:.1f}\t{text!r}", flush=True)
    # Not ru_maxrss, which a process inherits from the one that started it.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    print(f"peak\t{int(peak[1]) >> 10 if peak else -1}\t'MiB'")


if __name__ == "__main__":
    main()
