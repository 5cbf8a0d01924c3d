"""The key with which a broker shows name servers that it is the same one as before.

Nodes of a group derive it from their common key, so a new master gets the place of the former one at once.
Every other broker keeps a random key beside its store. Name servers of Apache ignore it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path
from typing import Final

from metaq.broker.options import BrokerOptions
from metaq.durable import replace_file

_log = logging.getLogger(__name__)

FILE_NAME: Final = "registration.key"
_KEY = re.compile(r"[0-9a-f]{64}")


def registration_key(options: BrokerOptions) -> str:
    """Returns the key. Reads or writes a file, so call it in a thread."""
    broker, group = options.broker, options.replication
    if group is not None and group.key:
        text = f"registration\0{broker.cluster}\0{broker.name}"
        return hmac.new(group.key, text.encode(), hashlib.sha256).hexdigest()
    return _kept_key(Path(options.store.directory) / FILE_NAME)


def _kept_key(path: Path) -> str:
    """Returns the key in a file, after writing a new one if there is none."""
    try:
        with path.open("rb") as file:
            kept = file.read(65).decode(errors="replace")
        if _KEY.fullmatch(kept):
            return kept
        _log.warning("%s holds no key; the broker writes a new one", path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s cannot be read, the broker registers with another key: %s", path, error)
    key = secrets.token_hex(32)
    try:
        replace_file(path, key.encode())
    except OSError as error:
        # It serves this process. After a restart, a name server may need a moment to believe the broker.
        _log.warning("%s cannot be written: %s", path, error)
    return key
