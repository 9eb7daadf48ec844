"""What the host pays: making a Node, importing minigrad, Python per distinct kernel."""
from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable


def best_of(runs: int, measure: Callable[[], float]) -> float:
    """The least of several measurements: the machine's noise only adds."""
    return min(measure() for _ in range(runs))


def node_seconds(count: int = 20_000) -> float:
    """Seconds per Node, over a chain of new elementwise Nodes."""
    from minigrad.ops import elementwise
    from minigrad.ops.node import apply
    from minigrad.tensor import Tensor

    start_node = Tensor.ones(4, 4).lazydata
    start = time.perf_counter()
    node = start_node
    for _ in range(count):
        node = apply(elementwise.ADD, node, start_node)
    return (time.perf_counter() - start) / count


def import_seconds() -> float:
    """Seconds that `import minigrad` takes in a fresh process."""
    code = "import time; start = time.perf_counter(); import minigrad; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def kernel_seconds() -> tuple[float, int]:
    """Seconds of scheduling, lowering and rendering per distinct kernel, and how many there were, in one training step
    of EfficientNet-B0 on small images. Compiling is not counted."""
    import minigrad
    from examples.efficientnet.benchmark_train_efficientnet import Trainer, parse_settings
    from minigrad.engine.stats import stats

    before = stats.snapshot()
    trainer = Trainer(parse_settings(["--num", "0", "--bs", "2", "--size", "64"]))
    with minigrad.Tensor.train():
        trainer.step(0)
    spent = stats.snapshot() - before
    return (spent.schedule_s + spent.lower_s + spent.render_s) / max(1, spent.programs), spent.programs


def main(arguments: list[str]) -> int:
    print(f"node     {best_of(5, node_seconds) * 1e6:8.2f} us per Node")
    print(f"import   {best_of(5, import_seconds) * 1e3:8.2f} ms")
    seconds, programs = kernel_seconds()
    print(f"kernel   {seconds * 1e3:8.2f} ms of Python per distinct program ({programs} of a B0 training step)")
    return 0
