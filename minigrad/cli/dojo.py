"""Plan and time a model for GPUs that are not here.

    dojo MODEL                              12 cards, a line each, fastest first
    dojo MODEL --device rtx3060             each program: launches, groups, registers, bytes, rate, time, what bounds it
    dojo MODEL --device rtx3060 --explain sum_mul     the terms of its time, what it reads and writes, its plan
    dojo MODEL --device rtx3060 --against rx6700xt    beside another card, or a file of profile.save or --json
    dojo MODEL --f16                        any of these with weights and images in float16
    dojo --table                            MobileNetV2 and Stable Diffusion's decoder on an RTX 3060, and quoted times

MODEL is a file in ONNX, or FILE.py:FUNCTION, which takes nothing and gives a function whose call is the step (or does
the step itself). Nothing runs: every time is predicted, from loops and the card's record, with the range that nine of
ten measured times were in on cards that the model had not seen.
"""
from __future__ import annotations

import argparse
import importlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minigrad.cli.devices import table
from minigrad.codegen.machines.gpus import cards, gpu
from minigrad.codegen.machines.sources import counts, stated
from minigrad.dtype import float16, float32
from minigrad.errors import MinigradError, quantity
from minigrad.handles import live
from minigrad.report.dojo import CARDS, Predicted, Program, as_dict, predict_step
from minigrad.report.scripts import function_of
from minigrad.report.words import size_text, time_text
from minigrad.tensor import Tensor

SHOWN = 24
TABLE_CARD = "rtx3060"
QUOTED = {"MobileNetV2": "1 ms, TensorRT", "SD VAE decoder": "100 ms and 33 ms"}
"""Times that are quoted for an RTX 3060, of which neither precision nor size is told."""


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad dojo MODEL [--device CARD,...] [--explain PROGRAM] [--against FILE|CARD] [--f16] [--json]`, --table."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="FILE.onnx, or FILE.py:FUNCTION")
    parser.add_argument("--device", metavar="CARD", help=f"a card, or several with commas (default: {len(CARDS)})")
    parser.add_argument("--explain", metavar="PROGRAM", help="the terms of a program's time")
    parser.add_argument("--against", metavar="FILE|CARD", help="another card, or measured times")
    parser.add_argument("--f16", action="store_true", help="weights and images in float16")
    parser.add_argument("--all", action="store_true", help="list every program")
    parser.add_argument("--table", action="store_true", help="the table of comparison, without MODEL")
    parser.add_argument("--json", action="store_true", help="print all that is known as JSON")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", dest="sizes",
                        help="a size that a model in ONNX leaves open (default: 1)")


def run(options: argparse.Namespace) -> int:
    """Prints what is asked for. Raises MinigradError for wrong words, DeviceError for a card without a record."""
    if options.table == bool(options.model):
        raise MinigradError("[dojo] expected a MODEL, or --table without one")
    if options.table:
        return _table(options.json)
    names = options.device.split(",") if options.device else list(CARDS)
    detailed = options.explain or options.against
    if detailed and len(names) != 1:
        raise MinigradError(f"[dojo] expected --device CARD with --{'explain' if options.explain else 'against'}")
    one = len(names) == 1
    other = options.against if options.against in cards() else None
    found = predict_step(prepare_of(options), [*names, *([other] if other else [])], compiled=one)
    if options.json:
        print(json.dumps([as_json(p, options.f16) for p in found], indent=1))
    elif options.explain:
        print("\n".join(explained(found[0], options.explain)))
    elif options.against:
        theirs = _seconds_of(found[1].programs) if other else read_times(Path(options.against))
        print("\n".join(against(found[0], options.against, theirs, "predicted" if other else "in the file")))
    else:
        print("\n".join(one_card(found[0], options.all) if one else many_cards(found)))
    return 0


# ---- models ----


def prepare_of(options: argparse.Namespace) -> Callable[[], Any]:
    """A function that gives the step."""
    path, colon, name = options.model.rpartition(":")
    if colon and path.endswith(".py"):
        def prepare() -> Any:
            return function_of(Path(path), name)()

        return in_half(prepare) if options.f16 else prepare
    if not options.model.endswith(".onnx"):
        raise MinigradError(f"[dojo] expected FILE.onnx or FILE.py:FUNCTION, got {options.model!r}")
    return lambda: _onnx_step(options)


def in_half(prepare: Callable[[], Any]) -> Callable[[], Any]:
    """The same with all float32 Tensors that it leaves made float16: weights, statistics, images. Raises MinigradError
    where it does the step itself."""
    def prepared() -> Any:
        before = list(live())
        step, known = prepare(), {id(t) for t in before}
        if isinstance(step, Tensor) or not callable(step):
            raise MinigradError("[dojo] expected a function that gives the step, with --f16, got "
                                f"{type(step).__name__}")
        for t in live():
            if id(t) not in known and t.dtype is float32:
                t.to_(dtype=float16)
        return step

    return prepared


def _onnx_step(options: argparse.Namespace) -> Callable[[], Any]:
    try:
        from minigrad.cli.onnx_files import feeds_of
        from minigrad.onnx import OnnxModel
    except ImportError as error:
        raise MinigradError(f"[onnx] expected the extra onnx (pip install \"minigrad[onnx]\"), got: {error}") from None
    options.inputs = []
    model = OnnxModel(Path(options.model), dtype=float16 if options.f16 else None)
    feeds = {name: Tensor(value) for name, value in feeds_of(model, options).items()}
    return lambda: model.eager(feeds)


# ---- texts ----


def many_cards(found: Sequence[Predicted]) -> list[str]:
    """A line for each card, fastest first."""
    rows = [("card", "predicted", "range", "launches", "of it", "most bound by", "peak")]
    for p in sorted(found, key=lambda p: p.seconds):
        low, high = p.range
        bound: Counter[str] = Counter()
        for x in p.programs:
            bound[x.bound] += int(x.seconds * 1e12)
        rows.append((gpu(p.card).name, time_text(p.seconds), f"{time_text(low)} to {time_text(high)}", str(p.launches),
                     _share(p.launches * p.launch, p.seconds), bound.most_common(1)[0][0] if bound else "",
                     size_text(p.peak_bytes)))
    return [*table(rows), "", "predicted, nothing ran; registers are estimated, with --device CARD its compiler tells"]


def one_card(p: Predicted, every: bool = False) -> list[str]:
    """A line for each program, the longest first, and the sum."""
    facts = gpu(p.card)
    isa = f"{facts.isa[0]}, " if facts.isa else ""
    rows = [("launch", "x", "groups", "waves", "regs", "local", "moved", "at rate", "predicted", "bound by")]
    shown = p.programs if every else p.programs[:SHOWN]
    for name, x in list(named(p.programs))[:len(shown)]:
        held = f"{min(x.waves, facts.warps_per_unit / facts.schedulers_per_unit):.3g}"
        rows.append((name, str(x.count), str(x.groups), held, f"{x.registers}{'' if x.compiled else '~'}",
                     size_text(x.local) if x.local else "-", size_text(int(x.moved)), rate_of(x),
                     time_text(x.seconds), x.bound))
    left = p.programs[len(shown):]
    rest = [f"... and {quantity(len(left), 'program')}: {time_text(sum(x.seconds for x in left))}"] if left else []
    return [f"{facts.name} ({isa}{facts.units} units, {facts.dram_gbs:g} GB/s; {counts(stated(p.card))})", *table(rows),
            *rest, total(p), *warnings(p)]


def total(p: Predicted) -> str:
    """The sum with its range."""
    low, high = p.range
    return (f"{quantity(p.launches, 'launch')}, {quantity(len(p.programs), 'program')}: {time_text(p.seconds)} "
            f"predicted ({time_text(low)} to {time_text(high)}), {time_text(p.launches * p.launch)} of it launches; "
            f"{size_text(p.peak_bytes)} at the peak")


def warnings(p: Predicted) -> list[str]:
    """A line for each kind of what makes launches slow: how many they are, and the longest of them."""
    kinds: dict[str, list[tuple[str, Program, str]]] = {}
    for name, x in named(p.programs):
        for text in x.warnings:
            kind, _, rest = text.partition(": ")
            kinds.setdefault(kind, []).append((name, x, rest))
    return [f"warning  {kind}: {quantity(sum({id(x): x.count for _, x, _ in found}.values()), 'launch')}, "
            f"{time_text(sum({id(x): x.seconds for _, x, _ in found}.values()))}; {found[0][0]}: {found[0][2]}"
            for kind, found in kinds.items()]


def explained(p: Predicted, asked: str) -> list[str]:
    """The terms of a program's time, what it does, and its plan."""
    chosen = [(name, x) for name, x in named(p.programs) if name == asked] or \
             [(name, x) for name, x in named(p.programs) if x.name == asked]
    if not chosen:
        raise MinigradError(f"[dojo] expected one of {', '.join(name for name, _ in named(p.programs))}, got {asked!r}")
    lines: list[str] = []
    for name, x in chosen[:1]:
        one, low, high = (t / x.count for t in (x.seconds, x.least, x.most))
        lines += [f"{name} on {gpu(p.card).name}, x {x.count}: {time_text(one)} predicted ({time_text(low)} to "
                  f"{time_text(high)}, as a {x.pattern}), bound by {x.bound}", ""]
        lines += table([(f"  {term}", time_text(t), _share(t, one)) for term, t in x.terms.items()])
        about = "" if x.compiled else " (an estimate)"
        lines += ["", f"  {x.groups} groups of {x.items} items; {x.registers} registers an item{about}, {x.spills} "
                      f"spilled; {size_text(x.local)} of local memory",
                  f"  of an item: {x.counts['fma']:.4g} multiply-adds, {x.counts['other']:.4g} other instructions, "
                  f"{x.counts['loads']:.4g} loads and stores, {x.counts['waits']:.4g} that are waited for",
                  f"  of a wave: {x.counts['passes']:.4g} passes of banks and lines; of a group: "
                  f"{x.counts['copies']:.4g} to copy, {size_text(int(x.counts['cached']))} from the last cache", ""]
        rows = [("  buffer", "loads", "stores", "asked", "in sectors", "of a group", "of all")]
        for b, m in x.buffers.items():
            asked, sectors, group, whole = (size_text(int(m[key])) for key in ("asked", "sectors", "group", "all"))
            rows.append((f"  {b}", f"{m['loads']:.4g}", f"{m['stores']:.4g}", asked, sectors, group, whole))
        lines += [*table(rows), "", *x.how.splitlines(), "", *[f"warning  {w}" for w in x.warnings]]
    return [*lines, f"also {', '.join(name for name, _ in chosen[1:])}"] if len(chosen) > 1 else lines


def against(p: Predicted, other: str, theirs: dict[str, float], kind: str) -> list[str]:
    """Times of programs of a name beside another's."""
    ours = _seconds_of(p.programs)
    names = sorted({*ours, *theirs}, key=lambda name: -max(ours.get(name, 0.0), theirs.get(name, 0.0)))
    rows = [("launches", f"{p.card}, predicted", f"{other}, {kind}", "ratio")]
    for name, a, b in [*[(n, ours.get(n), theirs.get(n)) for n in names[:SHOWN]],
                       ("all", p.seconds, sum(theirs.values()))]:
        rows.append((name, "-" if a is None else time_text(a), "-" if b is None else time_text(b),
                     f"{a / b:.2f}" if a and b else "-"))
    return table(rows)


def read_times(path: Path) -> dict[str, float]:
    """Seconds by name, from what profile.save or `dojo --json` wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MinigradError(f"[dojo] expected a card or a file of times, got {str(path)!r}: {error}") from None
    times: dict[str, float] = {}
    try:
        if isinstance(found, dict):
            pairs = [(e["name"], 1e-6 * e["dur"]) for e in found["traceEvents"] if e.get("cat") == "kernel"]
        else:
            pairs = [(x["name"], x["seconds"]) for x in found[0]["programs"]]
        for name, seconds in pairs:
            times[str(name)] = times.get(str(name), 0.0) + float(seconds)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MinigradError(f"[dojo] expected what profile.save or dojo --json writes in {path}, got "
                            f"{type(error).__name__}: {error}") from None
    return times


def as_json(p: Predicted, half: bool) -> dict[str, Any]:
    """All that is known of a step on a card, `half`: with weights in float16. Times are in seconds."""
    low, high = p.range
    return {"card": p.card, "name": gpu(p.card).name, "kind": "predicted", "f16": half, "seconds": p.seconds,
            "least": low, "most": high, "launches": p.launches, "launch_seconds": p.launches * p.launch,
            "peak_bytes": p.peak_bytes, "programs": [as_dict(x) for x in p.programs]}


def named(programs: Sequence[Program]) -> list[tuple[str, Program]]:
    """Programs with names of their own: several that have one are numbered."""
    seen: Counter[str] = Counter()
    found = []
    for x in programs:
        seen[x.name] += 1
        found.append((x.name if seen[x.name] == 1 else f"{x.name}.{seen[x.name]}", x))
    return found


def rate_of(x: Program) -> str:
    """Operations in a second of what is bound by them, else bytes."""
    one = x.seconds / x.count
    if x.bound in ("memory", "last cache", "launch", "waiting") or not x.flops:
        return f"{x.moved / one / 1e9:.3g} GB/s"
    return f"{x.flops / one / 1e12:.3g} TF/s"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def _seconds_of(programs: Sequence[Program]) -> dict[str, float]:
    found: dict[str, float] = {}
    for x in programs:
        found[x.name] = found.get(x.name, 0.0) + x.seconds
    return found


# ---- the table ----


def _table(as_text: bool) -> int:
    facts, rows, objects = gpu(TABLE_CARD), [("model", "types", "roofline", "our default plans", "range", "")], []
    for model, step in zoo().items():
        for half in (False, True):
            p, = predict_step(in_half(step) if half else step, [TABLE_CARD])
            matrix = 2e-6 * facts.units * facts.f16_matrix_per_cycle_unit * facts.clock_mhz
            rate = matrix if half and matrix else facts.f32_tflops
            least = sum(x.count * max(x.flops / (rate * 1e12), x.least_bytes / (facts.dram_gbs * 1e9))
                        for x in p.programs)
            low, high = (time_text(t) for t in p.range)
            rows.append((model, "f16" if half else "f32", time_text(least), time_text(p.seconds), f"{low} to {high}",
                         "predicted"))
            objects.append(as_json(p, half) | {"model": model, "roofline": least, "quoted": QUOTED[model]})
        rows.append((model, "?", "", QUOTED[model], "", "quoted"))
    print(json.dumps(objects, indent=1) if as_text else "\n".join([facts.name, *table(rows)]))
    return 0


def zoo() -> dict[str, Callable[[], Callable[[], Tensor]]]:
    """The models of the table, which give a step."""
    models = []
    for name in ("mobilenet", "vae"):
        for package in ("minigrad_examples", "examples"):
            try:
                models.append(importlib.import_module(f"{package}.zoo.{name}"))
                break
            except ImportError:
                continue
    if len(models) != 2:
        raise MinigradError("[dojo] expected the examples: run it from a checkout, or install minigrad[examples]")

    def step(make: Callable[[], Any], *shape: int) -> Callable[[], Tensor]:
        model, x = make().eval(), Tensor.randn(*shape)
        return lambda: model(x)

    mobilenet, vae = models
    return {"MobileNetV2": lambda: step(mobilenet.MobileNetV2, 1, 3, 224, 224),
            "SD VAE decoder": lambda: step(vae.AutoencoderKLDecoder, 1, 4, 64, 64)}
