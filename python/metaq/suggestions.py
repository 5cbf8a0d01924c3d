"""Names that a person may have meant, for errors of the command line and of the Python API."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NEAR_MAX: Final = 3


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Returns up to three names like the given one; case does not count."""
    by_folded = {known.casefold(): known for known in names if known != name}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=NEAR_MAX, cutoff=0.6)
    return [by_folded[folded] for folded in found]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a hint for a name that does not exist, or an empty text if none is like it."""
    near = near_names(name, names)
    return f"did you mean {' or '.join(near)}?" if near else ""


def unknown_options(owner: str, unknown: Iterable[str], known: Iterable[str]) -> tuple[str, str]:
    """Returns the text and the hint of the error for options that do not exist."""
    wrong, right = sorted(unknown), sorted(known)
    hints = (did_you_mean(name, right) for name in wrong)
    hint = " ".join(dict.fromkeys(filter(None, hints))) or f"it has {', '.join(right)}"
    return f"{owner} has no option {', '.join(wrong)}", hint
