"""The links of a console that signs in its first two visitors, as programs get them: from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from metaq.console.place import FirstLinks


def console_links(ready: Mapping[str, str]) -> FirstLinks:
    """Reads the file that a ready line names. Each link works once."""
    return msgspec.json.decode(Path(ready["console_links_file"]).read_bytes(), type=FirstLinks)
