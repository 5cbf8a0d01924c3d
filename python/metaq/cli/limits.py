"""Limits of topics and groups as commands set and show them: attributes of each broker's own copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import typer

from metaq.cli.cluster import Cluster, master_addresses
from metaq.cli.flags import Format
from metaq.cli.output import print_json, print_table
from metaq.config.kinds import Bytes, Kind, Number, write_bytes
from metaq.errors import CommandError
from metaq.protocol.attributes import (
    BYTES_MAX,
    CONSUME_BYTES,
    CONSUME_MESSAGES,
    MESSAGES_MAX,
    SEND_BYTES,
    SEND_MESSAGES,
)
from metaq.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfig
from metaq.protocol.groups import GetAllSubscriptionGroupConfig, UpdateAndCreateSubscriptionGroup
from metaq.protocol.topics import GetTopicConfig, UpdateAndCreateTopic

NONE = "none"


@dataclass(frozen=True, slots=True)
class Keys:
    """The attributes that hold the two limits."""

    messages: str
    bytes: str


TOPIC = Keys(SEND_MESSAGES, SEND_BYTES)
GROUP = Keys(CONSUME_MESSAGES, CONSUME_BYTES)

Row = dict[str, str | int | None]


def changes(keys: Keys, messages: str | None, size: str | None) -> dict[str, str | None]:
    """The attributes to set, and with None those to take away. Raises CommandError."""
    wanted: dict[str, str | None] = {}
    rates: tuple[tuple[str, str, str | None, Kind], ...] = (
        ("--messages-per-second", keys.messages, messages, Number(1, MESSAGES_MAX)),
        ("--bytes-per-second", keys.bytes, size, Bytes(1, BYTES_MAX)),
    )
    for flag, key, text, kind in rates:
        if text is None:
            continue
        try:
            wanted[key] = None if text.lower() == NONE else str(kind.parse(text))
        except ValueError as error:
            raise CommandError(f"{flag} {text}: {error}", hint=f"{flag} none takes the limit away") from None
    return wanted


async def topic_limits(cluster: Cluster, topic: str, wanted: Mapping[str, str | None]) -> list[Row]:
    """Changes the limits wherever the topic is, if there is something to change, and tells them."""
    rows = []
    for broker, address in sorted(master_addresses(await cluster.route_required(topic)).items()):
        reply = await cluster.ask_broker(address, GetTopicConfig(topic=topic))
        config = TopicConfig.decode(reply.check().body)
        signed = _signed(config.attributes, wanted)
        if signed:
            command = UpdateAndCreateTopic(
                topic=topic,
                default_topic=topic,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=",".join(f"{key}={value}" if value else key for key, value in signed.items()),
            )
            (await cluster.ask_broker(address, command)).check()
        rows.append(_row(broker, TOPIC, {**config.attributes, **wanted}))
    return rows


async def group_limits(
    cluster: Cluster, group: str, wanted: Mapping[str, str | None], *, create: bool = False
) -> list[Row]:
    """The same for a group, which has to be there unless it is to be made."""
    masters = await cluster.masters()
    configs: dict[str, SubscriptionGroupConfig] = {}
    for broker, address in masters.items():
        reply = await cluster.ask_broker(address, GetAllSubscriptionGroupConfig())
        table = SubscriptionGroupTable.decode(reply.check().body).subscription_group_table
        if group in table or create:
            configs[broker] = table.get(group) or SubscriptionGroupConfig(group_name=group)
    if not configs:
        raise CommandError(
            f"there is no group {group}", hint="start its consumers, or add --create to metaq group limit"
        )
    rows = []
    for broker, config in sorted(configs.items()):
        signed = _signed(config.attributes, wanted)
        if signed or create:
            body = msgspec.structs.replace(config, attributes=signed).encode()
            command = UpdateAndCreateSubscriptionGroup()
            (await cluster.ask_broker(masters[broker], command, body=body)).check()
        rows.append(_row(broker, GROUP, {**config.attributes, **wanted}))
    return rows


def print_limits(kind: str, name: str, rows: list[Row], output: Format) -> None:
    if output is Format.json:
        print_json({kind: name, "limits": rows})
        return
    heads = ("broker", "messages per second", "bytes per second")
    print_table(
        heads,
        [
            (
                str(row["broker"]),
                NONE if (rate := row["messages_per_second"]) is None else str(rate),
                NONE if (size := row["bytes_per_second"]) is None else write_bytes(int(size)),
            )
            for row in rows
        ],
        right=heads[1:],
    )
    if len(rows) > 1:
        typer.echo("Each broker counts for itself.")


def _signed(current: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The changes with `+` or `-` before their names; what is as wanted is left out."""
    signed = {}
    for key, value in wanted.items():
        if value is None and key in current:
            signed[f"-{key}"] = ""
        elif value is not None and current.get(key) != value:
            signed[f"+{key}"] = value
    return signed


def _row(broker: str, keys: Keys, attributes: Mapping[str, str | None]) -> Row:
    def rate(key: str) -> int | None:
        value = attributes.get(key)
        return None if value is None else int(value)

    return {
        "broker": broker,
        "messages_per_second": rate(keys.messages),
        "bytes_per_second": rate(keys.bytes),
    }
