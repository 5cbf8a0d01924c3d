"""Finds the sentences that read worst, in comments, docstrings, messages and pages.

    scripts/prose.py [--count] [PATH …]

CONTRIBUTING.md says how we write. This check only keeps the worst habits out: comments that begin with a
noun clause ("What is asked", "Where it is kept", "Of those that wait") and a few turns of phrase ("is told",
"is no number", "for so many messages"). A line that needs one of them ends in `prose: ok`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = (".py", ".pyi", ".rs", ".java", ".go", ".sh", ".lark", ".toml")
PAGES = (".md",)
NAMED = ("Makefile",)
# The rule itself, and texts in other languages.
LEFT_OUT = ("scripts/prose.py", "README.zh-CN.md", "Cargo.lock")
OPENERS = r"(?:What|Where|Of|Those|That of|Who|Whom|Whose|So many|So much|Such|Told)\b(?![^.]*\?)"
# A comment, a docstring or a description that begins with one of them.
OPENING = re.compile(rf'(?:^\s*(?:#|//[/!]?|--|/\*\*|\*)\s*|"""\s*){OPENERS}')
PHRASES = tuple(
    re.compile(phrase, re.IGNORECASE)
    for phrase in (
        r"\b(?:is|are|was|were|be) told\b",
        # Not "there is no queue", "is no longer" and "is no newer".
        r"(?<=\w )(?<!here )\b(?:is|are|was|were) no (?!more\b|less\b|\w+er\b)\w",
        # Not "so many queues that the start takes long".
        r"\bso many\b(?!.*\bthat\b)",
        r"\b(?:is|are) of use\b",
        r"\bof its own accord\b",
        # Not "a broker, by name or address" and "sorted by name".
        r"(?:\bthe same|,) by name[.,:;]",
    )
)
ALLOWED = "prose: ok"


def paths(wanted: list[str]) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(listed.stdout.splitlines()):
        path = ROOT / name
        if path.is_file() and name not in LEFT_OUT and (path.suffix in CODE + PAGES or path.name in NAMED):
            yield path


def is_bad(line: str, *, opens: bool = True) -> bool:
    """Returns whether a line has a bad phrase or, with `opens`, begins a comment in a bad way."""
    if ALLOWED in line:
        return False
    return any(phrase.search(line) for phrase in PHRASES) or (opens and OPENING.search(line) is not None)


def findings(path: Path) -> Iterator[tuple[int, str]]:
    opens = path.suffix not in PAGES
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if is_bad(line, opens=opens):
            yield number, line.strip()


def main() -> int:
    arguments = sys.argv[1:]
    counting = "--count" in arguments
    found = [
        (path.relative_to(ROOT), number, line)
        for path in paths([argument for argument in arguments if argument != "--count"])
        for number, line in findings(path)
    ]
    if counting:
        for folder, count in Counter(str(path.parent) for path, _, _ in found).most_common():
            print(f"{count:5} {folder}")
    else:
        for path, number, line in found:
            print(f"{path}:{number}: error: {line[:140]}")
    if found:
        print(f"{len(found)} lines to rewrite; CONTRIBUTING.md says how", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
