"""`python test/opinfo --op NAME ... --dtype float32 --grad 2`: runs OpInfo against minigrad and prints what is right.

Per operation: the samples right of all, and the first failure; then totals. Options:

    --op NAME          only entries of these names or formatted names ('max' or 'max_binary'; `linalg.*` are patterns)
    --dtype NAME       float32 (default), int64, bool, bfloat16, or any other; several, separated by commas
    --device NAME      NUMPY (default, quick), CPU, ...
    --grad N           1: gradients too, 2: second gradients too, 0 (default): the forward direction alone
    --lazy             also results of lazy views, and, on devices that capture, of captured functions that are replayed
                       with other numbers
    --errors           invalid inputs that must be refused (in place of the directions above, unless --grad is given)
    --limit N          samples per entry and direction (100), evenly chosen
    --jobs N           processes (1)
    --shard K/N        every N-th entry, from the K-th (0/1)
    --list             only the entries that nothing here stands for
    --json FILE        writes the counts
    --failures         no operation that is right in all samples is printed
"""
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:1] = [str(_ROOT), str(_ROOT / "test")]

from opinfo.report import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
