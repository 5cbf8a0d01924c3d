"""Writes the table of mqadmin's commands into docs/commands.md, or with --check compares: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from metaq.cli.mqadmin import COUNTERPARTS, WITHOUT

TARGET = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
BEGIN = "<!-- Written by `make docs` from python/metaq/cli/mqadmin.py; a test compares the two. -->\n"
END = "<!-- The end of the table. -->\n"


def table() -> str:
    rows = ["| mqadmin | metaq |\n|---|---|"]
    for name in sorted({*COUNTERPARTS, *WITHOUT}, key=str.lower):
        ours = COUNTERPARTS.get(name)
        cell = WITHOUT[name] if ours is None else ", ".join(f"`metaq {one}`" for one in ours.split(", "))
        rows.append(f"| `{name}` | {cell} |")
    return "\n".join(rows) + "\n"


def render(page: str) -> str:
    """Returns the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    page = TARGET.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if page == render(page) else f"{TARGET.name} is stale: make docs")
    TARGET.write_text(render(page), encoding="utf-8")
