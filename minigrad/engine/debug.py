"""The lines of MINIGRAD_DEBUG on stderr: 1 a line per realize; with each new plan also 2 kernels, 3 loops, 4 source."""
from __future__ import annotations

import sys

from minigrad.engine.show import texts
from minigrad.scheduler.graph import Graph
from minigrad.scheduler.schedule import Schedule
from minigrad.target import Target

STAGES = {2: "kernels", 3: "loops", 4: "source"}


def tell_plan(schedule: Schedule, target: Target, level: int) -> None:
    """Prints the texts of a new plan, up to the form that `level` asks for."""
    for least, stage in STAGES.items():
        if level >= least:
            for text in texts(schedule, stage, target):
                print(text, end="\n\n", file=sys.stderr)


def tell_run(graph: Graph, device: str, new: bool, launches: int, plan_s: float, launch_s: float) -> None:
    """Prints the line of one realize: what was asked for, and where the time of the host went."""
    named = [graph.nodes[k] for k in graph.targets[:3]]
    what = ", ".join([f"{n.op.name} {n.dtype.short}{list(n.shape)}" for n in named])
    more = f" and {len(graph.targets) - 3} more" if len(graph.targets) > 3 else ""
    plan = f"{'new' if new else 'known'} plan {1e3 * plan_s:.2f} ms"
    print(f"realize on {device}: {what}{more}; {len(graph.nodes)} nodes, {launches} launches, {plan}, "
          f"enqueued in {1e3 * launch_s:.2f} ms", file=sys.stderr)
