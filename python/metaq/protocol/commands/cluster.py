"""Commands between brokers and name servers."""

from __future__ import annotations

import msgspec

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Int64, Name, ShortText
from metaq.settings import MIB


class BrokerRegistered(Fields):
    ha_server_addr: ShortText | None = None
    master_addr: ShortText | None = None


class RegisterBroker(
    Command,
    code=103,
    permission="cluster",
    resources={},
    to="nameserver",
    reply=BrokerRegistered,
    body_bytes_max=16 * MIB,
    answer_max=AnswerMax(),
    ends_with_connection=False,
    has_reserved_slots=True,
):
    """Body: RegisterBrokerBody, plain or compressed; body of the answer: KVTable of the ordered topics."""

    broker_name: Name
    broker_addr: ShortText
    cluster_name: Name
    broker_id: Int64
    ha_server_addr: ShortText | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = msgspec.field(default=0, name="bodyCrc32")
    zone_name: Name | None = msgspec.field(default=None, name="__ZONE_NAME")
    registration_key: Name | None = None
    """Shows our name servers that two registrations are of the same broker or group. Apache's ignore it."""


class UnregisterBroker(Command, code=104, permission="cluster", resources={}, to="nameserver"):
    """Sent by a broker that stops."""

    broker_name: Name
    broker_addr: ShortText
    cluster_name: Name
    broker_id: Int64


class DataVersionCompared(Fields):
    changed: bool


class QueryDataVersion(
    Command,
    code=322,
    permission="cluster",
    resources={},
    to="nameserver",
    reply=DataVersionCompared,
    has_reserved_slots=True,
):
    """Body both ways: DataVersion. Lets a broker skip a registration without news."""

    broker_name: Name
    broker_addr: ShortText
    cluster_name: Name
    broker_id: Int64


class BrokerHeartbeat(
    Command, code=904, permission="cluster", resources={}, to="nameserver", has_reserved_slots=True
):
    """A cheap sign of life between registrations."""

    cluster_name: Name
    broker_addr: ShortText
    broker_name: Name
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_millis: Int64 | None = msgspec.field(default=None, name="heartbeatTimeoutMills")
    election_priority: Int32 | None = None


class GetBrokerMemberGroup(
    Command, code=901, permission="cluster", resources={}, to="nameserver", answer_max=AnswerMax()
):
    """Body of the answer: BrokerMemberGroupBody."""

    cluster_name: Name
    broker_name: Name
