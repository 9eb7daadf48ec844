"""python -m bench NAME [ARGUMENTS...]: measures one thing and prints it."""
from __future__ import annotations

import sys

from bench import host, matmul

BENCHMARKS = {"node": host.main, "matmul": matmul.main}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHMARKS:
        print(f"usage: python -m bench {{{','.join(BENCHMARKS)}}} [ARGUMENTS...]", file=sys.stderr)
        return 2
    return BENCHMARKS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
