"""Signed requests, for clusters with access control.

A request carries `AccessKey` and `Signature`: HMAC-SHA1 over the values of all other fields, in the order
of their names, followed by the body. Apache's brokers verify it with the password of that user."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and the password, which no text shows."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Returns the fields of a request with the signature."""
        named = {**fields, ACCESS_KEY: self.access_key}
        content = "".join(named[name] for name in sorted(named)).encode() + body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        return {**named, SIGNATURE: base64.b64encode(digest).decode()}
