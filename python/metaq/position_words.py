"""The words for positions in a queue, the same in client, command line, pipelines and Spark.

A position is `earliest`, `latest`, a time or an offset. Older versions had other words for the two ends.
They are still accepted.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final

OLD_WORDS: Final[Mapping[str, str]] = {
    "first": "earliest",
    "begin": "earliest",
    "last": "latest",
    "end": "latest",
}


def current_word(word: str) -> str:
    """Returns the word that is used now; any other text stays as it is."""
    return OLD_WORDS.get(word, word)


def warn_of_old_word(word: object) -> object:
    """Does the same for a value that a program gives, with a DeprecationWarning."""
    if not isinstance(word, str) or word not in OLD_WORDS:
        return word
    new = OLD_WORDS[word]
    warnings.warn(f"the position {word!r} is called {new!r} now", DeprecationWarning, stacklevel=4)
    return new
