"""`show`: every form from a Tensor to machine code, as text, with nothing run; and what MINIGRAD_DEBUG prints on
stderr: 1 a line per realize; with each new plan also 2 kernels, 3 loops, 4 source."""
from __future__ import annotations

import sys
from collections.abc import Iterator

from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.passes import Stage, Staged, render, stages_of
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.choose import next_best
from minigrad.codegen.policy.packed import why_unpacked
from minigrad.codegen.policy.window import why_unstaged
from minigrad.engine.tuned import tuned
from minigrad.errors import MinigradError, quantity
from minigrad.ops.node import Node
from minigrad.scheduler.graph import Graph, build_graph
from minigrad.scheduler.schedule import Schedule, schedule
from minigrad.target import Target

STAGES = ("graph", "kernels", "plan", "loops", "source")


def show(what: object, stage: str = "kernels") -> str:
    """The text of a lazy Tensor (or several) in one form, `stage`.

    'graph': its Nodes; 'kernels': index notation with why each kernel ends where it does; 'plan': what each policy
    decided; 'loops': loop IR; 'source': LLVM IR or OpenCL C. A realized Tensor has no kernels left to show.
    """
    if stage not in STAGES:
        raise MinigradError(f"[show] expected a stage among {', '.join(STAGES)}, got {stage!r}")
    nodes = nodes_of(what)
    if stage == "graph":
        return "\n".join(graph_lines(build_graph(nodes)))
    waiting = [n for n in nodes if n.storage is None]
    if not waiting:
        return "(realized: nothing to compute)"
    found = scheduled(what)
    if found is None:
        return "(NUMPY runs each Node by its reference; use stage='graph')"
    made, target = found
    return "\n\n".join(texts(made, stage, target)) or "(no kernels)"


def nodes_of(what: object) -> list[Node]:
    """The Nodes of a Tensor, or of several."""
    tensors = what if isinstance(what, (list, tuple)) else [what]
    nodes = [n for n in (getattr(t, "node", t) for t in tensors) if isinstance(n, Node)]
    if len(nodes) != len(tensors):
        raise MinigradError(f"[show] expected a Tensor or a list of them, got {type(what).__name__}")
    return nodes


def scheduled(what: object) -> tuple[Schedule, Target] | None:
    """The kernels of what is lazy of Tensors, and the target of the first one's device; None where there are none."""
    waiting = [n for n in nodes_of(what) if n.storage is None]
    if not waiting or waiting[0].device == "NUMPY":
        return None
    target = tuned(waiting[0].device).target
    return schedule(build_graph(waiting), frozenset(), target), target


def graph_lines(graph: Graph) -> Iterator[str]:
    """A line per Node of the graph, targets with a star."""
    graph.connect()
    for k, node in enumerate(graph.nodes):
        what = "buffer" if graph.leaf[k] else node.op.name
        params = "" if graph.leaf[k] else "".join(f" {n}={v}" for n, v in node.params.items())
        ins = "".join(f" %{i}" for i in graph.inputs[k])
        shape = ", ".join(map(str, node.shape))
        yield f"%{k} = {what}{ins}{params} -> {node.dtype.short}[{shape}]{' *' if k in graph.targets else ''}"


def texts(made: Schedule, stage: str, target: Target) -> Iterator[str]:
    """The text of each kernel at a stage: `STAGES` but for the graph."""
    shown: set[str] = set()
    for step in made.steps:
        staged: Staged = stages_of(step.kernel, target)
        if stage == "kernels":
            reasons = "".join(f"\n  # kept apart: {r}" for r in step.reasons)
            yield print_kernel(step.kernel).rstrip() + reasons
            continue
        for s in staged.stages:
            text = text_of(s, staged, stage, target)
            if stage == "plan" or text not in shown:
                shown.add(text)
                yield text


def text_of(s: Stage, staged: Staged, form: str, target: Target) -> str:
    """The text of one launch of a kernel, `form` 'plan', 'loops' or 'source'."""
    if form != "plan":
        return (print_function(s.function) if form == "loops" else render(s.function, target).source).rstrip()
    general = s.plan.pattern in ("contraction", "reduction")
    notes = [why(s.nests[0], target) for why in (why_unpacked, why_unstaged)] if general else []
    if isinstance(s.plan, Plan) and not target.is_gpu:
        notes.append(f"predicted: {estimate(s.nests[0], s.plan, target)}")
        notes += next_best(s.nests[0], s.plan, target)
    head, *steps = str(s.plan).splitlines()
    whole = staged.kernel if staged.kernel.block is not None else staged.kernel.with_nests(s.nests)
    if isinstance(s.plan, BlockPlan) and whole.block is None:
        whole = block_form(whole, target)  # what the plans are of
    nests = print_kernel(whole).splitlines()[1:]
    return "\n".join([f"{s.function.name}: {head}", *[f"  # {line[2:]}" for line in nests], *steps,
                      *[f"  # {note}" for note in notes if note]])


DEBUG_STAGES = {2: "kernels", 3: "loops", 4: "source"}


def tell_plan(schedule: Schedule, target: Target, level: int) -> None:
    """Prints the texts of a new plan, up to the form that `level` asks for."""
    for least, stage in DEBUG_STAGES.items():
        if level >= least:
            for text in texts(schedule, stage, target):
                print(text, end="\n\n", file=sys.stderr)


def tell_run(graph: Graph, device: str, new: bool, launches: int, plan_s: float, launch_s: float) -> None:
    """Prints the line of one realize: what was asked for, and where the time of the host went."""
    named = [graph.nodes[k] for k in graph.targets[:3]]
    what = ", ".join([f"{n.op.name} {n.dtype.short}{list(n.shape)}" for n in named])
    more = f" and {len(graph.targets) - 3} more" if len(graph.targets) > 3 else ""
    plan = f"{'new' if new else 'known'} plan {1e3 * plan_s:.2f} ms"
    print(f"realize on {device}: {what}{more}; {quantity(len(graph.nodes), 'node')}, {quantity(launches, 'launch')}, "
          f"{plan}, enqueued in {1e3 * launch_s:.2f} ms", file=sys.stderr)
