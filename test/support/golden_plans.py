"""Kernels, targets, and what becomes of each pair of them: the plans and a digest of the loops, kept in test/golden.

    golden/kernels/FAMILY.txt   kernels as text, each under a line `# NAME: TARGET ...`; TARGET* keeps its loops in full
    golden/plans/FAMILY.txt     for each pair a block: the plan of each launch, the digest of all its loops
    golden/loops/FAMILY.txt     the loops of pairs with a star

    python -m pytest test/codegen/test_golden.py --update-golden         writes plans and loops anew, says what changed
    python test/support/golden_plans.py "NAME" TARGET                     the loops of one pair
    python test/support/golden_plans.py "NAME" TARGET --against REVISION  how they differ from those of a revision

A kernel is added as text (`minigrad.show(x)` prints it), then `--update-golden`. All loops are 6 MB, which nobody would
read, and compressed they would not show what changed: a digest stands for most of them.
"""
from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.passes import stages_of
from minigrad.expr import to_text
from minigrad.target import Target

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "test" / "golden"

_X86 = frozenset("sse avx avx2 fma f16c fp64".split())
_AVX512 = _X86 | frozenset("avx512f avx512bw avx512dq avx512vl avx512cd".split())
_WIDE = Target("avx512", "llvm", "znver5", 64, 32, 2, 48 << 10, 1 << 20, features=_AVX512)
_GPU = Target("gpu", "opencl", "gpu", 4, 64, 40, local_memory=48 << 10, max_group=256, features=frozenset({"fp64"}))
TARGETS = {t.name: t for t in (
    Target("avx2", "llvm", "znver3", 32, 16, 2, features=_X86),
    _WIDE,
    replace(_WIDE, name="half", cpu="znver4"),                            # one multiply-add of 64 bytes in a cycle
    replace(_WIDE, name="alone", cpu="znver4", units=1, l1=32 << 10),
    replace(_WIDE, name="intel", cpu="skylake-avx512", units=8, l1=32 << 10),
    replace(_WIDE, name="vnni", features=_AVX512 | {"avx512vnni", "avx512vbmi", "avx512bf16"}),
    replace(_WIDE, name="amx", cpu="sapphirerapids", l2=2 << 20, units=4,
            features=_AVX512 | frozenset("avx512vnni avx512vbmi avx512bf16 amx-tile amx-int8 amx-bf16".split())),
    Target("neon", "llvm", "neoverse-n1", 16, 32, 4, 64 << 10, 1 << 20,
           features=frozenset({"neon", "dotprod", "fp64"})),
    Target("pocl", "opencl", "cpu", 32, 16, 2, l2=192 << 10, local_memory=256 << 10, max_group=4096,
           features=frozenset({"fp64", "fma"})),
    _GPU,
    replace(_GPU, name="units", language="nvptx", units=108, sub_group=32,  # matrix units and sub-groups
            features=_GPU.features | frozenset("mma-f16 mma-bf16 mma-tf32 sub-groups".split())),
    replace(_GPU, name="raster", units=2, max_iterations=65535, local_memory=32 << 10, max_group=1024),
    Target("scalar", "opencl", "no local memory", 4, 64, 8),
)}


@dataclass(frozen=True)
class Pair:
    """A kernel, by its name and text, on a target. `full`: its loops are kept in full."""

    name: str
    target: str
    kernel: str
    full: bool

    def __str__(self) -> str:
        return f"{self.name} on {self.target}"

    def made(self) -> tuple[str, str]:
        """The text that is kept: a line per launch with its plan, and the digest of the loops; and the loops of all
        launches, each with its arguments, and their scratch memory."""
        staged = stages_of(parse_kernel(self.kernel), TARGETS[self.target])
        scratch = ", ".join(f"{dtype.short}[{to_text(size)}]" for dtype, size in staged.scratch)
        loops = f"scratch {scratch}\n" if scratch else ""
        for s in staged.stages:
            dims = ", ".join(map(to_text, s.dims))
            loops += f"launch of {to_text(s.extent)}, dims ({dims})\n{print_function(s.function)}"
        digest = f"loops {sha256(loops.encode()).hexdigest()[:12]}, {loops.count(chr(10))} lines\n"
        return "".join(f"{s.plan}\n" for s in staged.stages) + digest, loops


def families() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "kernels").glob("*.txt"))


def pairs(family: str) -> list[Pair]:
    """Of a family, by name and target."""
    found = []
    for head, kernel in blocks(FOLDER / "kernels" / f"{family}.txt"):
        name, _, targets = head.rpartition(": ")
        found += [Pair(name, t.rstrip("*"), kernel, t.endswith("*")) for t in targets.split()]
    return sorted(found, key=lambda p: (p.name, p.target))


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(line, text) of the lines that begin with '# ', with the lines below each."""
    for block in path.read_text().split("\n# ") if path.exists() else ():
        head, _, text = block.removeprefix("# ").partition("\n")
        yield head, text.rstrip("\n") + "\n"


def write(path: Path, texts: dict[str, str]) -> None:
    """Writes blocks; without any there is no file."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if texts:
        path.write_text("".join(f"# {head}\n{text}" for head, text in texts.items()))


def difference(old: str, new: str, most: int = 100) -> str:
    """Lines that went and came, `most` of them."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    lines = [line for line in lines if not line.startswith("@@")]
    rest = [f"... {len(lines)} lines"] if len(lines) > most else []
    return "".join(f"    {line}\n" for line in lines[:most] + rest)


def find(name: str, target: str) -> Pair:
    """The pair of these names. Raises SystemExit."""
    for family in families():
        for pair in pairs(family):
            if (pair.name, pair.target) == (name, target):
                return pair
    raise SystemExit(f"expected a kernel and a target of {FOLDER}/plans, got {name!r} and {target!r}")


def loops_at(revision: str, name: str, target: str) -> str:
    """The loops of a pair as a revision makes them."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "minigrad", "test"], check=True, cwd=ROOT,
                                 capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        command = [sys.executable, f"{folder}/test/support/golden_plans.py", name, target]
        return subprocess.run(command, check=True, text=True, env=os.environ | {"PYTHONPATH": folder},
                              stdout=subprocess.PIPE).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the loops of a pair, or how they changed.")
    parser.add_argument("name")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--against", metavar="REVISION", help="print how the loops differ from this revision's")
    options = parser.parse_args()
    text = find(options.name, options.target).made()[1]
    if options.against:
        old = loops_at(options.against, options.name, options.target)
        text = "".join(difflib.unified_diff(old.splitlines(True), text.splitlines(True), options.against, "here"))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
