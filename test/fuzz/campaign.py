"""Networks one after the other, and what is told of those that fail."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import layers, moves  # noqa: F401  (they fill KINDS)
from fuzz.network import Network, Shape, from_json, written
from fuzz.outcome import Outcome
from fuzz.shrink import shrink
from fuzz.watch import Worker

TURN = 100
"""Networks until the next processor's turn."""


@dataclass
class Campaign:
    """`environment` is that of the workers, `patience` the seconds until a network hangs, `report` a folder for tests,
    `failures` are seeds and outcomes."""

    environment: dict[str, str]
    patience: float
    shrinks: bool = True
    report: Path | None = None
    verbose: bool = False
    listens: bool = False
    failures: list[tuple[int, Outcome]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.worker = Worker(self.environment, self.patience, self.listens)
        self.known: Counter[str] = Counter()

    def run(self, seed: int, seconds: float, count: int, devices: list[str], levels: list[str],
            settings: dict[str, Any], most: int) -> None:
        """Networks from a seed on, for so many seconds of processor time."""
        print(f"fuzz: networks from seed {seed} on, on {', '.join(devices)}", flush=True)
        ran = 0
        while ran < count and self.worker.seconds < seconds and len(self.failures) < most:
            settings = {**settings, "cpu": levels[ran // TURN % len(levels)]}
            network, outcome = self.worker.run({"seed": seed + ran, "devices": devices, "set": settings})
            self.kinds[outcome.kind] += 1
            if self.verbose:
                print(f"{seed + ran} {outcome.kind} {outcome.key} {self.worker.seconds:.1f} s", flush=True)
            if outcome.failed:
                self.tell(seed + ran, network, outcome)
            ran += 1
        self.worker.stop()
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        print(f"fuzz: {ran} networks in {self.worker.seconds:.0f} s of processor time: {kinds}", flush=True)

    def one(self, network: str) -> None:
        """One network."""
        network, outcome = self.worker.run({"network": network})
        print(f"{outcome.kind} {outcome.text}", flush=True)
        if outcome.failed:
            self.tell(from_json(network).seed, network, outcome)
        self.worker.stop()

    def tell(self, seed: int, network: str, outcome: Outcome) -> None:
        """Prints a failure, made smaller."""
        self.failures.append((seed, outcome))
        print(f"\nfuzz: FAILED seed {seed} after {self.worker.seconds:.0f} s: {outcome.text}", flush=True)
        if not network:
            return
        self.known[outcome.key] += 1
        if self.shrinks and (outcome.kind == "wrong" or self.known[outcome.key] == 1):
            def fails(candidate: Network) -> bool:
                return self.worker.run({"network": candidate.to_json()})[1].like(outcome)

            network = shrink(from_json(network), fails, shapes).to_json()
            outcome = self.worker.run({"network": network})[1]
        told = self.worker.script(network)
        print(f"{outcome.text}\n{told['blame']}\n{told['text']}\n{told['script']}", flush=True)
        if self.report is not None:
            self.report.mkdir(parents=True, exist_ok=True)
            (self.report / f"test_{seed}.py").write_text(f"# {outcome.kind}: {outcome.text}\n# {told['blame']}\n"
                                                         .replace("\n#", "\n# ") + told["script"])


def shapes(network: Network) -> list[Shape]:
    """Those of a network's values."""
    return written(network).shapes
