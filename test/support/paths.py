"""Folders that tests look into."""
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project's folder."""
TESTS, DOCS, PACKAGE = ROOT / "test", ROOT / "docs", ROOT / "minigrad"
