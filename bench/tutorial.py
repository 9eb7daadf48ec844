"""python -m bench.tutorial: the steps of docs/tutorial-plans.md with the times of this machine."""
from __future__ import annotations

import re
from pathlib import Path


def main() -> None:
    """Runs the page's blocks, which print."""
    page = Path(__file__).resolve().parents[1] / "docs" / "tutorial-plans.md"
    names: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(code, page.name, "exec"), names)


if __name__ == "__main__":
    main()
