"""Sending a message, and sending a stored one again."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

from metaq.admin.messages.message_copies import first_topic
from metaq.client.message import BODY_BYTES_MAX, Message
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.rendering import segment

_DELAY: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COMMAND_BODY_MAX: Final = 1_000
"""Longer bodies are not part of the shown command: it reads them from a file."""
_GROUPS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class NewMessage:
    """The fields of the form."""

    topic: str
    body: str
    tag: str
    keys: tuple[str, ...]
    delay_text: str
    delay: timedelta | None
    properties: dict[str, str]

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command that sends it, without the body of a file."""
        options: list[str] = []
        options += ("--tag", self.tag) if self.tag else ()
        for key in self.keys:
            options += ("--key", key)
        for name, value in self.properties.items():
            options += ("--property", f"{name}={value}")
        options += ("--delay", self.delay_text) if self.delay_text else ()
        if self.is_in_file:
            return ("send", self.topic, "-", *options)
        return ("send", self.topic, self.body, *options)

    @property
    def is_in_file(self) -> bool:
        # A body that begins like a flag would be taken for one.
        return len(self.body) > _COMMAND_BODY_MAX or self.body.startswith("-") or "\x00" in self.body


class SendMessage(Action):
    """Sends one message."""

    name = "send-message"
    form = "actions/send_message.html"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def preview(self, call: Call) -> Preview:
        message = _new_message(call)
        await call.console.admin.topics.route(message.topic)
        groups = await call.console.admin.topics.groups(message.topic)
        command = call.command(*message.words) + (" < body.txt" if message.is_in_file else "")
        size_bytes = len(message.body.encode())
        key = "actions.send_message_later" if message.delay_text else "actions.send_message_effect"
        return Preview(
            command,
            call.t(key, topic=message.topic, size=f"{size_bytes:,}", delay=message.delay_text),
            basis=[message.topic, hashlib.sha256(message.body.encode()).hexdigest()],
            warnings=_receivers(call, groups),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        message = _new_message(call)
        sent = await call.console.admin.messages.send(
            message.topic,
            message.body.encode(),
            tag=message.tag or None,
            keys=message.keys,
            properties=message.properties,
            delay=message.delay,
        )
        if message.delay is not None:
            sentence = call.t("actions.send_message_waits", id=sent.id, delay=message.delay_text)
            return Outcome(sentence, path=f"/topics/{segment(message.topic)}")
        place = f"{sent.queue.broker}:{sent.queue.id}:{sent.queue_offset}"
        query = urlencode({"topic": message.topic, "copy": sent.offset_id})
        return Outcome(
            call.t("actions.send_message_done", place=place, id=sent.id),
            path=f"/messages/{segment(sent.id)}?{query}",
        )


class ResendMessage(Action):
    """Sends a stored message again: to its topic, or to one group."""

    name = "resend-message"
    form = "actions/resend_message.html"

    def target(self, call: Call) -> str:
        return call.field("id")

    async def preview(self, call: Call) -> Preview:
        message, group = await _stored(call), _group(call)
        topic = first_topic(message)
        words = ["message", "resend", message.offset_id]
        words += ("--group", group) if group else ()
        groups = () if group else await call.console.admin.topics.groups(topic)
        key = "actions.resend_message_to_group" if group else "actions.resend_message_effect"
        return Preview(
            call.command(*words, "--yes"),
            call.t(key, topic=topic, group=group),
            columns=tuple(call.t(f"messages.{key}") for key in ("id", "place", "tag", "keys")),
            rows=((message.id, _place(message), message.tag or "–", " ".join(message.keys) or "–"),),
            basis=[message.offset_id, group, topic],
            warnings=_receivers(call, groups),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        message, group = await _stored(call), _group(call)
        copy = await call.console.admin.messages.resend(message, group=group or None)
        place = f"{copy.queue.topic} {copy.queue.broker}:{copy.queue.id}:{copy.queue_offset}"
        query = urlencode({"topic": copy.queue.topic, "copy": copy.offset_id})
        return Outcome(
            call.t("actions.resend_message_done", place=place),
            path=f"/messages/{segment(copy.id)}?{query}",
        )


def _new_message(call: Call) -> NewMessage:
    """Raises FormError."""
    # The body is not stripped. Browsers send a line break as CR LF.
    body = call.form.get("body", "").replace("\r\n", "\n")
    if not body:
        raise FormError(call.t("actions.required", field=call.t("actions.field_body")))
    if len(body.encode()) > BODY_BYTES_MAX:
        raise FormError(call.t("actions.body_over_limit", most=f"{BODY_BYTES_MAX:,}"))
    delay_text = call.field("delay")
    return NewMessage(
        call.required("topic"),
        body,
        call.field("tag"),
        tuple(call.field("keys").split()),
        delay_text,
        _delay(call, delay_text),
        _properties(call),
    )


def _delay(call: Call, text: str) -> timedelta | None:
    if not text:
        return None
    found = _DELAY.fullmatch(text)
    if found is None:
        raise FormError(call.t("actions.bad_delay", text=text))
    return timedelta(seconds=int(found[1]) * _UNITS_S[found[2]])


def _properties(call: Call) -> dict[str, str]:
    properties = {}
    for line in call.form.get("properties", "").splitlines():
        name, equals, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise FormError(call.t("actions.bad_property", text=line.strip()))
        properties[name.strip()] = value
    return properties


async def _stored(call: Call) -> Message:
    return await call.console.admin.messages.by_offset_id(call.required("copy"))


def _group(call: Call) -> str:
    return call.required("group") if call.field("receiver") == "group" else ""


def _place(message: Message) -> str:
    queue = message.queue
    return "" if queue is None else f"{queue.broker}:{queue.id}:{message.queue_offset}"


def _receivers(call: Call, groups: tuple[str, ...]) -> tuple[str, ...]:
    if not groups:
        return ()
    named = ", ".join(groups[:_GROUPS_NAMED]) + ("…" if len(groups) > _GROUPS_NAMED else "")
    return (call.t("actions.receivers", count=len(groups), groups=named),)


ACTIONS = (SendMessage, ResendMessage)
