"""The findings of a health check in the reader's language.

The health check itself writes English. In Chinese, `text/zh/finding_sentences.toml` has a sentence for each
kind, which the fields of the finding complete.
"""

from __future__ import annotations

from metaq.admin.health.results import Finding
from metaq.console import figures
from metaq.console.words import Language, catalog, word


def finding_title(language: Language, finding: Finding) -> str:
    """Returns a short name for the kind of a finding."""
    key = f"findings.{_key(finding)}"
    return word(language, key if key in catalog(language) else "findings.other", {})


def finding_sentence(language: Language, finding: Finding) -> str | None:
    """Returns the sentence of a finding; None if there is none in this language."""
    if language == "en":
        return finding.text
    sentence = catalog(language).get(f"finding_sentences.{_key(finding)}")
    fields = {name: _written(language, name, value) for name, value in finding.fields.items()}
    try:
        return None if sentence is None else sentence.format_map(fields)
    except KeyError:
        return None


def _key(finding: Finding) -> str:
    return finding.kind.replace("-", "_")


def _written(language: Language, name: str, value: str | int | float) -> str | None:
    if name == "role":
        return word(language, f"cluster.role_{value}", {})
    if isinstance(value, str):
        return value
    if name.endswith("_ms"):
        return figures.span_in(language, value)
    if name.endswith("_bytes"):
        return figures.size(value)
    return figures.share(value) if name.endswith("_ratio") else figures.exact(int(value))
