"""The versions of a broker's tables, as Apache's tools and name servers compare them."""

from __future__ import annotations

from typing import Final

from metaq.journal.journal import Journal
from metaq.protocol.bodies import DataVersion

VERSIONS: Final = "versions"
"""In the journal: table → DataVersion."""


def stored_version(journal: Journal, table: str) -> DataVersion | None:
    """Raises MetadataDamaged."""
    return journal.decoded(VERSIONS, DataVersion.decode).get(table)
