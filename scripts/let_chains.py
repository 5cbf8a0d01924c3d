"""Finds `let` chains in Rust, such as `if let Some(x) = a && b`.

    scripts/let_chains.py [PATH …]

Rust 1.88 and newer accept them, but Cargo.toml promises `rust-version = "1.85"`, the version in Debian. The
compiler and Clippy do not warn: with `rust-version`, Clippy checks the standard library but not the syntax.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Comments and literals count as one token each, so that their content is not read as code.
TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|\s+)
    |(?P<literal>b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])')
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>&&|=>|==|<=|>=|!=|.)""",
    re.VERBOSE | re.DOTALL,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}


def tokens(source: str) -> list[tuple[str, int]]:
    """Returns the tokens of Rust code, each with the number of its line."""
    found = []
    line = 1
    for match in TOKEN.finditer(source):
        if match["skipped"] is None:
            found.append((match["word"] or match["sign"] or '""', line))
        line += match[0].count("\n")
    return found


def let_chains(source: str) -> Iterator[int]:
    """Returns the lines of conditions that contain a `let` chain."""
    code = tokens(source)
    words = [word for word, _ in code]
    for start, (word, line) in enumerate(code):
        if word in ("if", "while") and _is_chain(words, start + 1):
            yield line


def _is_chain(words: list[str], at: int) -> bool:
    """Reads a condition up to the block that follows it. A condition is a chain if it has a `let` and an `&&`
    outside brackets; an `&&` in the pattern, before `=`, does not count."""
    has_let = has_and = False
    in_pattern = False
    while at < len(words):
        word = words[at]
        if word == "let":
            has_let = in_pattern = True
        elif word == "=":
            in_pattern = False
        elif word == "&&" and not in_pattern:
            has_and = True
        elif word in PAIRS:
            at = _closing(words, at)
            # The block of `unsafe { … } && …` belongs to the condition, and so does that of a `match`.
            if word == "{" and (at + 1 >= len(words) or words[at + 1] != "&&"):
                break
        elif word in (";", "=>", ")", "}"):
            break
        at += 1
    return has_let and has_and


def _closing(words: list[str], at: int) -> int:
    """Returns the position of the bracket that closes the one at this position."""
    depth = 0
    for position in range(at, len(words)):
        depth += (words[position] in PAIRS) - (words[position] in PAIRS.values())
        if depth == 0:
            return position
    return len(words)


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *(sys.argv[1:] or ["*.rs"])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [
        f"{name}:{line}: error: a `let` chain, which Rust 1.85 does not accept"
        for name in sorted(listed.stdout.splitlines())
        if (ROOT / name).is_file()
        for line in let_chains((ROOT / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
