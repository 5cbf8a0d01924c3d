"""Reads the topics of a large registration one by one.

Decoding a body of megabytes in one call would keep every other thread waiting, the event loop included. Here
each call decodes one small value, so that other threads get their turn in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from metaq.protocol.bodies import DataVersion, TopicConfig
from metaq.protocol.errors import ProtocolError

VALUE_CHARACTERS_MAX: Final = 256 * 1024
"""The longest value beside the table of topics; static topics of Apache's brokers have long ones."""
TOPIC_CHARACTERS_MAX: Final = 16 * 1024
KEYS_MAX: Final = 64
"""Keys of an object that is not the table of topics."""

_DECODER: Final = json.JSONDecoder()
_SHORT_CHARACTERS: Final = 512
_TOKENS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Texts and brackets. A text without an end is one match, so the search never begins again at its quotes."""
_BLANKS: Final = re.compile(r"[ \t\r\n]*")


class LargeTable:
    """The version and the topics in the JSON of a RegisterBrokerBody, or of its topic table alone."""

    def __init__(self, body: bytes, topics_max: int) -> None:
        """Raises ProtocolError if the body cannot be read or has more topics than `topics_max`."""
        try:
            self._text = body.decode()
        except UnicodeDecodeError:
            raise ProtocolError("the body is not UTF-8 text") from None
        self._topics_max = topics_max
        self._continue_at = 0
        self.version = DataVersion()
        self.topics: dict[str, TopicConfig] = {}
        self._read_object(self._after_blanks(0), wrapper_key="topicConfigSerializeWrapper")

    def _read_object(self, start: int, wrapper_key: str | None = None) -> int:
        """Reads an object that holds the table of topics, or under `wrapper_key` an object that does; returns
        its end."""
        entries = self._entries(start)
        for count, (key, at) in enumerate(entries, start=1):
            if count > KEYS_MAX:
                raise ProtocolError(f"the body has an object with more than {KEYS_MAX} keys")
            if key == wrapper_key and self._text.startswith("{", at):
                end = self._read_object(at)
            elif key == "topicConfigTable" and self._text.startswith("{", at):
                end = self._read_topics(at)
            elif key == "dataVersion":
                end = self._end_of_value(at, VALUE_CHARACTERS_MAX)
                self.version = DataVersion.decode(self._text[at:end].encode())
            else:
                end = self._end_of_unread(at)
            self._continue_at = end
        return self._continue_at

    def _read_topics(self, start: int) -> int:
        for count, (name, at) in enumerate(self._entries(start), start=1):
            if count > self._topics_max:
                raise ProtocolError(
                    f"the body names more than {self._topics_max} topics "
                    "(nameserver_broker_topics_max of the name server)"
                )
            end = self._end_of_value(at, TOPIC_CHARACTERS_MAX)
            self.topics[name] = TopicConfig.decode(self._text[at:end].encode())
            self._continue_at = end
        return self._continue_at

    def _entries(self, start: int) -> Iterator[tuple[str, int]]:
        """The keys of an object, each with the place of its value. The caller sets `_continue_at` to the end
        of the value before it takes the next one; at the end it is the end of the object."""
        self._expect("{", start)
        at = self._after_blanks(start + 1)
        if self._text[at : at + 1] == "}":
            self._continue_at = at + 1
            return
        while True:
            key_end = self._end_of_value(at, TOPIC_CHARACTERS_MAX)
            key = _DECODER.decode(self._text[at:key_end])
            if not isinstance(key, str):
                raise self._damaged(at)
            at = self._after_blanks(key_end)
            self._expect(":", at)
            yield key, self._after_blanks(at + 1)
            at = self._after_blanks(self._continue_at)
            if self._text[at : at + 1] == "}":
                self._continue_at = at + 1
                return
            self._expect(",", at)
            at = self._after_blanks(at + 1)

    def _end_of_value(self, start: int, limit: int) -> int:
        for characters in (_SHORT_CHARACTERS, limit):
            try:
                _, length = _DECODER.raw_decode(self._text[start : start + characters])
            except (ValueError, RecursionError):
                continue
            return start + length
        raise self._damaged(start)

    def _end_of_unread(self, start: int) -> int:
        """The end of a value that nobody reads. Apache's brokers write numbers as keys without quotes."""
        if self._text[start : start + 1] not in ("{", "["):
            return self._end_of_value(start, VALUE_CHARACTERS_MAX)
        depth = 0
        for token in _TOKENS.finditer(self._text, start, start + VALUE_CHARACTERS_MAX):
            depth += (token[0] in "{[") - (token[0] in "]}")
            if depth == 0:
                return token.end()
        raise self._damaged(start)

    def _after_blanks(self, at: int) -> int:
        found = _BLANKS.match(self._text, at)
        return at if found is None else found.end()

    def _expect(self, character: str, at: int) -> None:
        if self._text[at : at + 1] != character:
            raise self._damaged(at)

    def _damaged(self, at: int) -> ProtocolError:
        near = self._text[at : at + 32]
        return ProtocolError(f"the body cannot be read, or has a value that is too long, at {at}: {near!r}")
