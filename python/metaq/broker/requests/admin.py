"""The configuration and the figures of a broker, for tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from metaq._core import BrokerPlane, Clock, Listener, Store
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.runtime_info import Sources, runtime_info
from metaq.broker.state.groups import Groups
from metaq.broker.state.runtime_switches import WIRE_NAMES, Switches
from metaq.broker.state.stats import Statistics
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import INHERIT, READ, WRITE, DataVersion, KVTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import (
    CHANGEABLE_SETTINGS,
    CleanExpiredConsumeQueue,
    ConfigVersion,
    DeleteExpiredCommitLog,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    TriggerDeleteFiles,
    UpdateBrokerConfig,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.handling.process_options import NAMES as PROCESS_OPTIONS
from metaq.protocol.handling.process_options import ProcessOptions
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

CONFIG_BYTES_MAX = 64 * 1024
AUTO_CREATE_TOPIC = "autoCreateTopicEnable"
"""Also adds or removes the template topic."""


@dataclass(slots=True)
class AdminParts:
    """The parts that administration reads and changes."""

    options: BrokerOptions
    broker_id: int
    clock: Clock
    listener: Listener
    plane: BrokerPlane
    store: Store
    topics: Topics
    groups: Groups
    statistics: Statistics
    switches: Switches
    process: ProcessOptions
    address: str
    started_ms: int
    pools: WorkPools
    filter_figures: Callable[[], Mapping[str, str]] = dict
    """Returns a line for each filter function that has been called."""


class Admin:
    """Configuration and figures of the running broker. Changes last until the next start."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._config_version = DataVersion(timestamp=parts.clock.now_ms())
        self.permission = parts.options.permission

    # Configuration

    def config(self) -> dict[str, str]:
        """The settings under Apache's names, so that its tools show them."""
        options, topics, groups = self._parts.options, self._parts.topics, self._parts.groups
        broker, server, store = options.broker, options.server, options.store
        values: dict[str, str | int | bool] = {
            "brokerName": broker.name,
            "brokerClusterName": broker.cluster,
            "brokerId": self._parts.broker_id,
            "brokerPermission": self.permission,
            "brokerIP1": self._parts.address.rpartition(":")[0],
            "listenPort": self._parts.listener.port,
            "namesrvAddr": ";".join(options.nameservers),
            "regionId": broker.region,
            AUTO_CREATE_TOPIC: topics.auto_create,
            "autoCreateSubscriptionGroup": groups.auto_create,
            "defaultTopicQueueNums": options.default_topic_queues,
            "longPollingEnable": broker.long_polling,
            "shortPollingTimeMills": broker.short_polling_ms,
            "flushConsumerOffsetInterval": int(options.offsets_persist_interval_s * 1000),
            "registerNameServerPeriod": int(options.register_interval_clamped_s * 1000),
            "channelExpiredTimeout": int(options.client_expiry_s * 1000),
            "flushDiskType": "SYNC_FLUSH" if store.flush == "sync" else "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": store.commit_log_file_bytes,
            "maxMessageSize": store.message_size_bytes_max,
            "fileReservedTime": store.file_reserved_hours,
            "deleteWhen": store.delete_when,
            "diskMaxUsedSpaceRatio": store.disk_clean_percent,
            "serverChannelMaxIdleTimeSeconds": server.idle_timeout_ms // 1000,
            "enablePropertyFilter": options.enable_property_filter,
            **{key: getattr(self._parts.switches, name) for key, name in WIRE_NAMES.items()},
            **self._parts.process.values(),
        }
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
        }

    @handles(GetBrokerConfig)
    def get_broker_config(self, command: GetBrokerConfig, request: Request) -> Response:
        text = "".join(f"{key}={value}\n" for key, value in sorted(self.config().items()))
        version = ConfigVersion(version=self._config_version.encode().decode())
        return Response(fields=version, body=text.encode())

    @handles(UpdateBrokerConfig)
    async def update_broker_config(self, command: UpdateBrokerConfig, request: Request) -> None:
        wanted = parse_properties(request.body)
        changes = [(key, value, self._change_of(key, value)) for key, value in wanted.items()]
        permission = self.permission
        for key, value, apply in changes:
            peer_log.write(
                _log,
                logging.WARNING,
                request.remote,
                "configuration %s=%s set by %s until the next start",
                key,
                value,
                request.remote,
            )
            apply()
        if changes:
            self._config_version = self._config_version.next(self._parts.clock.now_ms())
        touched = [names.TEMPLATE_TOPIC] if AUTO_CREATE_TOPIC in wanted else []
        if self.permission != permission:
            # Name servers show it with all topics, none of which has changed.
            self._parts.topics.version_changed()
        if touched or self.permission != permission:
            await self._parts.topics.publish(touched)

    def _change_of(self, key: str, value: str) -> Callable[[], None]:
        """The change of one setting, checked before anything is applied: the change itself refuses nothing.
        No such setting is a path or a command."""
        if key == "brokerPermission":
            permission = _whole_number(key, value, READ | WRITE | INHERIT)
            return lambda: self._set_permission(permission)
        if key == AUTO_CREATE_TOPIC:
            enabled = _yes_or_no(key, value)
            return lambda: self._parts.topics.set_auto_create(enabled)
        if key == "autoCreateSubscriptionGroup":
            enabled = _yes_or_no(key, value)
            return lambda: setattr(self._parts.groups, "auto_create", enabled)
        if key in WIRE_NAMES:
            enabled = _yes_or_no(key, value)
            return lambda: setattr(self._parts.switches, WIRE_NAMES[key], enabled)
        if key in PROCESS_OPTIONS:
            return self._parts.process.change_of(key, value)
        changeable = ", ".join(CHANGEABLE_SETTINGS)
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"setting {key[:64]!a} cannot be changed while the broker runs ({changeable} can): "
            "change its configuration and restart it",
        )

    def _set_permission(self, permission: int) -> None:
        self.permission = permission
        self._parts.plane.set_permission(permission)

    # Figures

    @handles(GetBrokerRuntimeInfo)
    async def get_broker_runtime_info(self, command: GetBrokerRuntimeInfo, request: Request) -> Response:
        table = await self._parts.pools.look_ups.run(request, self._runtime_info)
        return Response(body=KVTable(table=table).encode())

    def _runtime_info(self) -> dict[str, str]:
        parts = self._parts
        sources = Sources(parts.listener, parts.plane, parts.store, parts.statistics)
        return {**runtime_info(parts.options, sources, parts.started_ms), **parts.filter_figures()}

    @handles(TriggerDeleteFiles, CleanExpiredConsumeQueue, DeleteExpiredCommitLog)
    async def clean(self, command: Command, request: Request) -> None:
        # An administrator may clean at any hour, but files that are not old enough stay.
        deleted = await self._parts.pools.administration.run(
            request, lambda: self._parts.store.clean(force=True)
        )
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "retention applied for %s: %d commit-log files deleted",
            request.remote,
            deleted,
        )


def concerns_process(wanted: Collection[str]) -> bool:
    """Returns whether nothing but options of the process is to be changed."""
    return all(key in PROCESS_OPTIONS for key in wanted)


def parse_properties(body: bytes) -> dict[str, str]:
    """Reads `key=value` lines. Raises Refused for anything else."""
    if len(body) > CONFIG_BYTES_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the configuration has {len(body)} bytes, the limit is {CONFIG_BYTES_MAX}",
        )
    values: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{text[:64]!a} is not of the form key=value")
        values[key.strip()] = value.strip()
    return values


def _whole_number(key: str, value: str, limit: int) -> int:
    # The length comes first: Python refuses to read a number of thousands of digits.
    if len(value) > len(str(limit)) or not value.isdecimal() or int(value) > limit:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{key} takes a number from 0 to {limit}, not {value[:32]!a}"
        )
    return int(value)


def _yes_or_no(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{key} takes true or false, not {value[:32]!a}")
    return value.lower() == "true"
