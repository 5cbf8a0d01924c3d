"""The answer to a request that we sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

from metaq.protocol.command import Fields
from metaq.protocol.errors import Refused

_Header = TypeVar("_Header", bound=Fields)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a peer."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes

    def check(self) -> Self:
        """Returns the reply itself if it is a success; raises Refused otherwise."""
        if self.code != 0:
            raise Refused(self.code, self.remark or "refused without a reason")
        return self

    def header(self, kind: type[_Header]) -> _Header:
        """The fields of its header, typed."""
        return kind.parse(self.fields)
