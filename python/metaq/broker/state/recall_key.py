"""The secret with which the handles of waiting messages are signed.

It is made once for a broker group and kept in the journal. So a handle is valid after a restart and after a
switch of the master, and nobody can make one for a message that somebody else has sent. The data plane signs
(crates/server/src/timer/signature.rs); this module checks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from typing import Final

from metaq.journal import Journal, NotWritten

_log = logging.getLogger(__name__)

TABLE: Final = "secrets"
_KEY: Final = "recall"
_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 16


async def load_recall_key(journal: Journal) -> bytes | None:
    """Returns the key of the group, and makes it at the first start of a master. None if the disk refuses a
    new one: then no handles are given out before the next start."""
    key = recall_key(journal)
    if key is None:
        try:
            await journal.write([(TABLE, _KEY, secrets.token_bytes(_KEY_BYTES))])
        except NotWritten as error:
            _log.warning("messages cannot be recalled until the broker is restarted: %s", error)
        key = recall_key(journal)
    return key


def recall_key(journal: Journal) -> bytes | None:
    return journal.get(TABLE, _KEY)


def is_signed(key: bytes | None, text: str, signature: str) -> bool:
    """Whether the signature of a text was made with the key."""
    if key is None:
        return False
    expected = hmac.new(key, text.encode(), hashlib.sha256).digest()[:SIGNATURE_BYTES]
    return hmac.compare_digest(base64.urlsafe_b64encode(expected), signature.encode())
