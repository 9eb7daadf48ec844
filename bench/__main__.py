"""python -m bench NAME [OPTIONS...]: measures one thing, in turn with the peers that do it too, and prints rows."""
from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING

from bench.options import Bench, common_parser
from bench.peers import Peers, set_threads
from bench.report import Report

if TYPE_CHECKING:
    from minigrad.runtime.limits import Limits

# Name -> module; each has PEERS, add_options(parser) and run(bench). They import numpy, so they are imported late.
BENCHMARKS = {
    "matmul": "bench.matmul",
    "conv": "bench.conv",
    "matvec": "bench.matvec",
    "depthwise": "bench.depthwise",
    "rowops": "bench.rowops",
    "attention": "bench.attention",
    "efficientnet": "bench.efficientnet",
    "llama": "bench.llama",
    "zoo": "bench.zoo.run",
    "scripts": "bench.scripts.run",
    "networks": "bench.networks",
    "device": "bench.device",
    "torch-compile": "bench.torch_compile",
    "node": "bench.host",
}
COMMANDS = {"baseline": "bench.baseline", "compare": "bench.compare", "plans": "bench.plans",
            "distributed": "bench.distributed", "dojo": "bench.dojo", "winograd": "bench.winograd"}
"""Commands that run benchmarks: modules with main(arguments)."""
DESCRIPTIONS = {
    "matmul": "float32 matrix products: squares, few rows, transposed operands, many small ones in one step",
    "conv": "convolution layers of MobileNet, ResNet-18 and EfficientNet-B0, forward and gradients",
    "matvec": "matrix-vector products that stream their weights from memory",
    "depthwise": "depthwise convolutions of EfficientNet-B0, forward and gradients",
    "rowops": "softmax, norms, GELU, cross entropy, a long sum, an Adam step",
    "attention": "scaled dot-product attention: 12 heads of 64, forward and gradients",
    "efficientnet": "EfficientNet-B0: inference and a training step",
    "llama": "SmolLM2: prefill and decoding",
    "zoo": "inference of models that people deploy: latency and peak memory",
    "scripts": "training steps of twelve kinds of public scripts, captured and eager",
    "networks": "training steps of random small networks, captured and eager: the distribution of ratios",
    "device": "one device for a report: copies, products, launches, networks, compile times",
    "torch-compile": "models in torch, compiled by minigrad for torch.compile: inference and training steps",
    "node": "the host's costs: nodes, import, starts, Python per kernel, a warm step",
    "baseline": "a file of rows with their spread, which later trees are held against",
    "compare": "two source trees in turn, row by row: python -m bench compare OLD_TREE",
    "distributed": "training in two processes with one thread each, beside one; over a slow link, too",
    "dojo": "how well times of GPU kernels are predicted, over tables of measured ones",
    "winograd": "convolutions of 3x3 taps with fewer multiplications: time and error of each form",
    "plans": "how well plans are ranked: cycles predicted beside times measured, over random products",
}


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in COMMANDS:
        return int(import_module(COMMANDS[words[0]]).main(words[1:]))
    if not words or words[0] not in BENCHMARKS:
        names = "\n".join(f"  {name:<14} {text}" for name, text in DESCRIPTIONS.items())
        print(f"usage: python -m bench NAME [OPTIONS...]\n\n{names}\n\nOptions: python -m bench NAME --help",
              file=sys.stderr)
        return 2
    return 1 if measure(words[0], words[1:]).failures else 0


def measure(name: str, arguments: list[str]) -> Report:
    """Runs one benchmark and returns its report, which is printed as it grows."""
    early = common_parser(name, DESCRIPTIONS[name])
    early.add_help = False
    known, _ = early.parse_known_args([word for word in arguments if word not in ("-h", "--help")])
    warning = set_threads(known.threads)  # before numpy is imported, which every benchmark does
    module = import_module(BENCHMARKS[name])
    parser = common_parser(name, DESCRIPTIONS[name])
    module.add_options(parser)
    options = parser.parse_args(arguments)

    from minigrad import config
    from minigrad.runtime.limits import Probe

    with ExitStack() as stack:
        to_stdout = options.json == "-"
        stream = None if options.json is None else sys.stdout if to_stdout else stack.enter_context(
            open(options.json, "w", encoding="utf-8"))
        report = Report(options.threads, stream=stream, lines=sys.stderr if to_stdout else sys.stdout)
        peers = Peers(module.PEERS if options.against is None else options.against, options.threads)
        for line in (warning, *peers.missing):
            if line:
                report.say(line)
        for peer in sorted(set(peers.modules) - set(module.PEERS)):
            report.say(f"without {peer}: it is not asked for this work")
        stack.enter_context(config(threads=options.threads))
        probe = Probe(options.threads, options.quick) if module.PEERS else None
        if probe is not None:
            report.limits = probe.limits
            report.say(f"limits on {options.threads} threads so far: {_words(probe.limits)}")
        module.run(Bench(options, peers, report, probe))
        if probe is not None:
            report.say(f"limits in the end: {_words(probe.limits)}")
        report.finish()
    return report


def _words(limits: Limits) -> str:
    return f"{limits.gflops:.1f} GFLOP/s of float32 multiply-adds, {limits.gb_s:.2f} GB/s of reading"


if __name__ == "__main__":
    sys.exit(main())
