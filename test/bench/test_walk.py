"""What runs in the first `realize` of a product of matrices stays within bounds, in a process of its own."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES, CHANGES = 178, 2560
"""A few more than there are."""


def test_a_first_product_runs_few_files_and_seldom_changes_folders() -> None:
    output = subprocess.run([sys.executable, "-m", "bench.walk", "--list"], cwd=ROOT, check=True, text=True,
                            capture_output=True).stdout
    first, *changes = output.splitlines()
    files, functions, calls, folders = (int(number) for number in re.findall(r"\d+", first))
    assert 50 < files <= FILES and files < functions < calls, first
    assert 100 < folders <= CHANGES, first
    assert all(re.fullmatch(r" *\d+ [\w/]+ -> [\w/]+", line) for line in changes) and changes
