"""Print the facts of a GPU or processor with their sources, compare two, or measure the one at hand.

    machine                 the record of the processor at hand, those of all devices, and the names of all
    machine NAME            a record: rx6700xt, znver4
    machine diff A B        facts that differ
    machine measure         writes a record of [speed] for the processor, or with --device for an OpenCL device, into
                            the cache folder, and it is used from then on: plans may be others, results are not

A record can be shared as a file: --output writes it elsewhere, and one that is copied to `machines` in the cache
folder, or of a GPU to `machines/gpus`, is used.
"""
from __future__ import annotations

import argparse
import json
import os
import re
from contextlib import suppress
from datetime import date
from pathlib import Path

from minigrad.cli.devices import table
from minigrad.cli.machine_measure import Measurement, measure
from minigrad.codegen.machines import gpus
from minigrad.codegen.machines.machine import file_of, forget, own_name
from minigrad.codegen.machines.measured import folder
from minigrad.codegen.machines.sources import Fact, chain, counts, is_gpu, processors, stated
from minigrad.errors import DeviceError, MinigradError
from minigrad.runtime.device import Device
from minigrad.runtime.opencl_devices import devices
from minigrad.runtime.registry import get_device
from minigrad.target import Target

SECONDS = 60.0


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad machine [NAME | diff A B | measure [--device DEVICE] [--output FILE] [--seconds S]]`."""
    parser.add_argument("words", nargs="*", metavar="NAME", help="a record's name; diff and two of them; or measure")
    parser.add_argument("--device", metavar="DEVICE", help="what to measure: CPU, CL:<index or name> (default: CPU)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to write, in place of the cache folder's")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"to measure for (default: {SECONDS:g})")


def run(options: argparse.Namespace) -> int:
    """Does one of the four. Raises MinigradError for words that are none of them, ConfigError for wrong names."""
    action = options.words[0] if options.words else ""
    asked = [name for name in ("device", "output", "seconds") if getattr(options, name) is not None]
    if action != "measure" and asked:
        raise MinigradError(f"[machine] expected --{asked[0]} with measure only, got it {'with ' + action or 'alone'}")
    if len(options.words) != {"": 0, "diff": 3}.get(action, 1):
        raise MinigradError("[machine] expected nothing, NAME, diff A B, or measure; got " + " ".join(options.words))
    if action == "measure":
        seconds = SECONDS if options.seconds is None else options.seconds
        return _measure(options.device or "CPU", options.output, seconds)
    if action == "diff":
        return _diff(*options.words[1:])
    return _print(action) if action else _at_hand()


def _print(name: str) -> int:
    facts = stated(name)
    print(f"{_title(name)}\n{counts(facts)}")
    print("\n".join(_lines(facts)))
    return 0


def _title(name: str) -> str:
    like = f"{name}, like {', '.join(chain(name))}" if chain(name) else name
    if not is_gpu(name):
        return like
    gpu = gpus.gpu(name)
    isa = f"{', '.join(gpu.isa)}, " if gpu.isa else ""
    return f"{gpu.name} ({isa}{gpu.units} units, {gpu.f32_tflops:.3g} TFLOP/s, {gpu.dram_gbs:g} GB/s)\n{like}"


def _lines(facts: list[Fact]) -> list[str]:
    """Sections with their facts, source and file in columns."""
    columns = table([(fact.name, fact.value, fact.file, fact.source) for fact in facts])
    lines: list[str] = []
    for k, (fact, line) in enumerate(zip(facts, columns, strict=True)):
        if not k or fact.section != facts[k - 1].section:
            lines += ["", f"[{fact.section}]"]
        lines.append(line)
    return lines


def _diff(a: str, b: str) -> int:
    if is_gpu(a) is not is_gpu(b):
        kinds = [f"a {'GPU' if is_gpu(name) else 'processor'}, {name}" for name in (a, b)]
        raise MinigradError(f"[machine] expected two GPUs or two processors, got {' and '.join(kinds)}")
    left, right = ({(f.section, f.name): f.value for f in stated(name)} for name in (a, b))
    rows = [(*fact, left.get(fact, "-"), right.get(fact, "-"))
            for fact in dict.fromkeys((*left, *right)) if left.get(fact) != right.get(fact)]
    print("\n".join(table([("section", "fact", a, b), *rows])) if rows else f"{a} and {b} have the same facts")
    return 0


def _at_hand() -> int:
    target = get_device("CPU").target
    _print(_name(target) if measured_file(target).is_file() else _like(target))
    print()
    rows = [("CPU", *_record_of(target))]
    with suppress(DeviceError):  # without pyopencl there are no such devices
        rows += [(d.target.name, *_record_of(d.target)) for d in devices()]
    print("\n".join(table([("device", "driver's or LLVM's name", "record", "measured"), *rows])))
    chips = [name for name in gpus.records() if name not in gpus.cards()]
    for what, names in (("cards", gpus.cards()), ("chips and families", chips), ("processors", processors())):
        print(f"\n{what}: {', '.join(names)}")
    return 0


def _record_of(target: Target) -> tuple[str, str, str]:
    """(what driver or LLVM call it, its record, the file of what was measured of it)."""
    path = measured_file(target)
    return target.cpu, _like(target), str(path) if path.is_file() else "no"


def measured_file(target: Target) -> Path:
    """The file of what was measured of a processor or GPU, which need not be there."""
    return folder(target.is_gpu) / f"{_name(target)}.toml"


def _name(target: Target) -> str:
    """The name of the record of a processor or GPU: of a card its own, else one made of the driver's."""
    card = gpus.of_driver(target.cpu) if target.is_gpu else ""
    return card if card in gpus.cards() else own_name(target)


def _measure(device: str, output: Path | None, seconds: float) -> int:
    if not 0 < seconds <= 3600:
        raise MinigradError(f"[machine] expected --seconds above 0 and at most 3600, got {seconds:g}")
    opened = get_device(device)
    target = opened.target
    if target.language not in ("llvm", "opencl"):
        raise DeviceError(f"[machine] expected CPU or an OpenCL device to measure, got {device}")
    text = _text(opened, measure(opened, seconds))
    path = output or measured_file(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
    gpus.forget()
    forget()
    print(text + f"\nwritten to {path}")
    return 0


def _text(device: Device, found: list[Measurement]) -> str:
    """A record's file: [speed]; of a GPU without a record also what it is like and what the driver says of it."""
    target, lines = device.target, []
    facts = [(f"{m.fact} = {float(f'{m.value:.3g}'):.12g}", f"measured {date.today():%Y-%m}: {m.how}") for m in found]
    info = getattr(device, "info", None)
    if target.is_gpu and info is not None and _name(target) not in gpus.own_records():
        said = {"units": info.units, "l2_bytes": info.cache, "max_group": info.max_group,
                "dram_bytes": info.global_memory, "local_bytes_per_group": info.local_memory}
        lines = [f'like = "{_like(target)}"', f"name = {json.dumps(target.cpu)}",
                 f"names = [{json.dumps(re.escape(gpus.plain_name(target.cpu)))}]", "", "[declared]",
                 *_aligned([(f"{fact} = {value}", "the driver") for fact, value in said.items() if value]), ""]
    return "\n".join([*lines, "[speed]", *_aligned(facts), ""])


def _aligned(facts: list[tuple[str, str]]) -> list[str]:
    """Lines with facts and their sources."""
    width = max(len(text) for text, _ in facts)
    return [f"{text:<{width}}  # {source}" for text, source in facts]


def _like(target: Target) -> str:
    """The package's record that a device is like."""
    if not target.is_gpu:
        return file_of(target.cpu, target)
    name = gpus.of_driver(target.cpu)
    return name if name in gpus.own_records() else str(gpus.record(name).get("like", gpus.GENERIC))
