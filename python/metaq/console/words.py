"""The words of the console in English and Chinese.

`text/en/topics.toml` has the words of the page of topics: its key `title` is `topics.title` here. Words may
have fields in braces; `{n:queue|queues}` is a number with the noun that agrees with it. A word that is
missing is an error, and a test compares both languages.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final, Literal

Language = Literal["en", "zh"]
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")


class _WithNouns(string.Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        one, separator, many = format_spec.partition("|")
        if not separator:
            return str(super().format_field(value, format_spec))
        return f"{value} {one if str(value) == '1' else many}"


_WORDS: Final = _WithNouns()


@cache
def catalog(language: Language) -> Mapping[str, str]:
    """Returns all words of a language by their keys."""
    words: dict[str, str] = {}
    folder = resources.files("metaq.console").joinpath("text", language)
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        page, _, ending = file.name.rpartition(".")
        if ending == "toml":
            for key, text in tomllib.loads(file.read_text("utf-8")).items():
                words[f"{page}.{key}"] = text
    return words


def word(language: Language, key: str, fields: Mapping[str, object]) -> str:
    """Returns a word, or a sentence with its fields filled in."""
    text = catalog(language)[key]
    return _WORDS.vformat(text, (), fields) if fields else text


def chosen_language(cookie: str | None, accepted: str) -> Language:
    """Returns the language of a reader: the one in the cookie, or the first that the browser accepts."""
    if cookie in LANGUAGES:
        return "zh" if cookie == "zh" else "en"
    for part in accepted.split(","):
        name = part.split(";")[0].strip().lower()
        if name.startswith("zh"):
            return "zh"
        if name.startswith("en"):
            return "en"
    return "en"
