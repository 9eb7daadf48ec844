"""Kills a training run at random moments, resumes it each time, and compares the weights with a run that was let alone.

    python test/support/kills.py 20 examples/gpt/train.py --data input.txt --steps 300 --save-every 10

The first argument is how many kills; the others are a command, to which --output and --resume are added.
"""
from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ran(command: list[str]) -> tuple[int, str]:
    """(status, all output) of a command that ends by itself."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def steps_in(folder: Path) -> int:
    """How many whole lines of steps a run has written."""
    path = folder / "steps.csv"
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.is_file() else 0


def killed(command: list[str], folder: Path, after: int, delay: float = 0.0) -> bool:
    """Starts a command and kills it `delay` seconds after its folder has `after` steps; False where it ended before."""
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    while process.poll() is None and steps_in(folder) < after:
        time.sleep(0.005)
    time.sleep(delay)
    alone = process.poll() is None
    process.kill()
    process.wait()
    return alone


def resumed(command: list[str], folder: Path, has_begun: bool) -> list[str]:
    return [*command, "--output", str(folder), *(["--resume"] if has_begun else [])]


def main(kills: int, command: list[str]) -> int:
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as base:
        whole, broken = Path(base, "whole"), Path(base, "broken")
        status, text = ran(resumed(command, whole, False))
        if status:
            print(text)
            return 1
        total, weights = steps_in(whole), (whole / "model.safetensors").read_bytes()
        print(f"reference: {total} steps", flush=True)
        for k in range(kills):
            # A random way on from what there is: within a step, or while a checkpoint is written; one time in five
            # while it starts.
            further = moments.randrange(1, max(2 * total // kills, 2))
            after = steps_in(broken) + further if moments.random() < 0.8 and k else 0
            delay = moments.random() * (0.02 if after else 3.0)
            has_begun = (broken / "options.json").is_file()
            was = killed(resumed(command, broken, has_begun), broken, after, delay)
            print(f"kill {k + 1}: {'killed' if was else 'ended before'} with {steps_in(broken)} steps written",
                  flush=True)
        status, text = ran(resumed(command, broken, True))
        same = not status and (broken / "model.safetensors").read_bytes() == weights
        losses = (broken / "steps.csv").read_bytes() == (whole / "steps.csv").read_bytes() if not status else False
        print(f"weights {'equal, bit for bit' if same else 'DIFFER'}; losses {'equal' if losses else 'DIFFER'}")
        print(text if status else "", end="")
    return 0 if same and losses else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
