"""The table of reports names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_REPORTS = 26


def test_every_report_of_the_table_names_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|(.*)$", (ROOT / "docs/reports.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, NUM_REPORTS + 1))
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    for number, row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files or "| - " in row, number
        assert [name for name in files if ROOT / name not in sources] == [], number
        named = re.findall(r"\btest_\w+\b(?!\.py|`)", re.sub(r"`[^`]*`", "", row))
        everything = "\n".join(sources[ROOT / name] for name in files)
        assert [name for name in named if f"def {name}(" not in everything] == [], number
