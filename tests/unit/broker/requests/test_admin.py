"""Configuration at run time: a short list of settings and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq._core import BrokerPlane, Listener, Store
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.admin import Admin, AdminParts, parse_properties
from metaq.broker.state.run_time_options import RunTimeOptions
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.stats import Statistics
from metaq.config import Setting, load
from metaq.protocol.bodies import KVTable, TopicConfig
from metaq.protocol.commands.admin import GetBrokerConfig, GetBrokerRuntimeInfo, UpdateBrokerConfig
from metaq.protocol.commands.options import ChangeOptions, OptionChanges, OptionState, OptionStates
from metaq.protocol.errors import Refused
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings
from metaq.work_pools import WorkPools


class FakeListener:
    port = 10911

    def figures(self) -> SimpleNamespace:
        return SimpleNamespace(
            messages_in=3,
            bytes_in=0,
            messages_out=0,
            sends_slowed=0,
            sends_over_limit=0,
            pulls_paced=0,
            memory_bytes=0,
            memory_bytes_peak=0,
            group_memory_bytes=0,
            group_memory_bytes_peak=0,
            connections_cut=0,
        )


class FakePlane:
    permission = 6

    def set_permission(self, permission: int) -> None:
        self.permission = permission

    def delay_offsets(self) -> dict[int, int]:
        return {3: 7}

    def figures(self) -> SimpleNamespace:
        return SimpleNamespace(
            limits_waiting=0,
            transactions_open=0,
            timers_queue_offset=0,
            timers_behind_ms=0,
            timers_pending=0,
            timers_delivered=0,
            timers_recalled=0,
        )


class FakeStore:
    def __init__(self) -> None:
        self.retention: list[StoreSettings] = []

    def set_retention(self, settings: StoreSettings) -> None:
        self.retention.append(settings)

    def figures(self) -> SimpleNamespace:
        return SimpleNamespace(
            commit_log_min_offset=0,
            commit_log_max_offset=100,
            flushed_offset=60,
            dispatched_offset=100,
            disk_used_percent=0,
        )

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 9

    def record_at(self, physical_offset: int) -> bytes | None:
        return None


class Desk:
    def __init__(self, tables: Any, directory: Path, settings: Mapping[str, Setting] | None = None) -> None:
        self.tables = tables
        self.plane = FakePlane()
        self.switches = Switches()
        self.slow_requests = cast(SlowRequests, SimpleNamespace(limit_ms=1000))
        plane, store = cast(BrokerPlane, self.plane), cast(Store, FakeStore())
        listener = cast(Listener, FakeListener())
        options = BrokerOptions(
            broker=BrokerSettings(cluster="c", name="b", store_host="127.0.0.1:0"),
            server=ServerSettings(host="127.0.0.1", port=0),
            store=StoreSettings(directory=str(directory)),
            settings=settings or {},
        )
        self.options = options
        self.store = store
        self.run_time = RunTimeOptions(self)
        self.admin = Admin(
            AdminParts(
                options=options,
                broker_id=0,
                clock=tables.clock,
                listener=listener,
                plane=plane,
                store=store,
                topics=tables.topics,
                groups=tables.groups,
                statistics=Statistics(listener, store, tables.clock, "c"),
                run_time=self.run_time,
                address="127.0.0.1:10911",
                started_ms=tables.clock.now_ms(),
                pools=WorkPools(),
            )
        )


@pytest.fixture
def desk(tables: Any, tmp_path: Path) -> Desk:
    return Desk(tables, tmp_path)


def update(desk: Desk, request: Any) -> None:
    asyncio.run(desk.admin.update_broker_config(UpdateBrokerConfig(), request))


def test_the_configuration_is_told_in_upstreams_names(desk: Desk, request_with: Any) -> None:
    answer = desk.admin.get_broker_config(GetBrokerConfig(), request_with())
    told = parse_properties(answer.body)
    assert told["brokerName"] == "b"
    assert told["flushDiskType"] == "SYNC_FLUSH"
    assert told["autoCreateTopicEnable"] == "true"
    assert told["enablePropertyFilter"] == "true"
    assert '"counter":0' in answer.header()["version"]


def test_what_may_change_changes(desk: Desk, request_with: Any) -> None:
    body = (
        b"# comment\nbrokerPermission=4\nautoCreateTopicEnable = false\nautoCreateSubscriptionGroup=false\n"
    )
    update(desk, request_with(body))
    assert desk.plane.permission == desk.admin.permission == 4
    assert not desk.tables.topics.auto_create
    assert not desk.tables.groups.auto_create
    assert desk.tables.published, "the name servers hear of it"
    assert desk.admin.config()["brokerPermission"] == "4"


def test_switches_are_set_and_shown_by_apaches_names(desk: Desk, request_with: Any) -> None:
    assert desk.admin.config()["useServerSideResetOffset"] == "true"
    update(desk, request_with(b"useServerSideResetOffset=false\nstoreReplyMessageEnable=false"))
    assert not desk.switches.server_side_reset
    assert not desk.switches.store_replies
    assert desk.admin.config()["storeReplyMessageEnable"] == "false"


@pytest.mark.parametrize(
    ("body", "published"),
    [
        (b"brokerPermission=4", []),
        (b"brokerPermission=6", []),
        (b"autoCreateTopicEnable=false", ["TBW102"]),
        (b"storeReplyMessageEnable=false", []),
    ],
)
def test_a_change_publishes_no_topic_that_stays_as_it_is(
    desk: Desk, request_with: Any, body: bytes, published: list[str]
) -> None:
    version = desk.tables.topics.data_version
    update(desk, request_with(body))
    assert desk.tables.published == published
    # Name servers take the permission from a registration with a new version.
    assert (desk.tables.topics.data_version != version) == (
        body in (b"brokerPermission=4", b"autoCreateTopicEnable=false")
    )


def test_the_template_topic_needs_no_room(make_tables: Any, tmp_path: Path, request_with: Any) -> None:
    topics_max = len(make_tables(auto_create_topic=False).topics)
    desk = Desk(make_tables(auto_create_topic=False, topics_max=topics_max), tmp_path)
    update(desk, request_with(b"brokerPermission=4\nautoCreateTopicEnable=true"))
    assert desk.admin.permission == 4 and desk.tables.topics.auto_create
    assert "TBW102" in desk.tables.topics and desk.tables.published == ["TBW102"]
    with pytest.raises(Refused, match="topics_max"):
        desk.tables.topics.put(TopicConfig(topic_name="one-more"))


def test_options_of_the_process_change_without_a_registration(desk: Desk, request_with: Any) -> None:
    update(desk, request_with(b"slow_request_ms=50"))
    assert desk.slow_requests.limit_ms == 50
    assert desk.admin.config()["slow_request_ms"] == "50"
    assert (
        '"counter":1' in desk.admin.get_broker_config(GetBrokerConfig(), request_with()).header()["version"]
    )
    assert not desk.tables.published, "name servers do not show them"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"storePathRootDir=/elsewhere", 16),
        (b"brokerPermission=4\nlog_level=loud", 29),
        (b"brokerPermission=4\nnamesrvAddr=1.2.3.4:5", 16),
        (b"brokerPermission=8", 29),
        (b"brokerPermission=-1", 29),
        (b"brokerPermission=" + b"1" * 5_000, 29),
        (b"autoCreateTopicEnable=perhaps", 29),
        (b"nonsense", 29),
        (b"x" * 70_000, 29),
    ],
)
def test_anything_else_is_refused_and_nothing_is_half_done(
    desk: Desk, request_with: Any, body: bytes, code: int
) -> None:
    with pytest.raises(Refused) as raised:
        update(desk, request_with(body))
    assert raised.value.code == code
    assert desk.plane.permission == 6


def change(desk: Desk, request: Any) -> dict[str, OptionState]:
    answer = asyncio.run(desk.admin.change_options(ChangeOptions(), request))
    return {state.name: state for state in OptionStates.decode(answer.body).options}


def test_levels_of_the_disk_change_together_or_not_at_all(desk: Desk, request_with: Any) -> None:
    with pytest.raises(Refused, match="must rise in this order; set those that are in the way"):
        update(desk, request_with(b"diskMaxUsedSpaceRatio=95"))
    assert desk.admin.config()["diskMaxUsedSpaceRatio"] == "75"
    update(
        desk, request_with(b"diskMaxUsedSpaceRatio=95\ndisk_force_clean_percent=96\ndisk_refuse_percent=97")
    )
    assert cast(Any, desk.store).retention[-1].disk_refuse_percent == 97
    assert desk.options.store.disk_clean_percent == 95
    assert desk.admin.config()["diskSpaceWarningLevelRatio"] == "97"


def test_a_value_is_kept_shown_with_its_source_and_forgotten(desk: Desk, request_with: Any) -> None:
    body = OptionChanges({"fileReservedTime": "24"}, persist=True).encode()
    state = change(desk, request_with(body))["file_reserved_hours"]
    assert (state.value, state.source, state.next_start) == ("24", "kept", "24")
    update(desk, request_with(b"fileReservedTime=12"))
    state = desk.run_time.state("file_reserved_hours")
    assert (state.value, state.source, state.next_start) == ("12", "now", "24")
    again = RunTimeOptions(desk)
    assert again.state("file_reserved_hours").next_start == "24", "a later start reads it"
    state = change(desk, request_with(OptionChanges(forget=("file_reserved_hours",)).encode()))[
        "file_reserved_hours"
    ]
    assert (state.value, state.source, state.next_start) == ("72", "default", "72")
    assert desk.options.store.file_reserved_hours == 72


def test_a_value_that_a_flag_would_beat_at_the_next_start_is_not_kept(
    tables: Any, tmp_path: Path, request_with: Any
) -> None:
    settings = load({"flush": "sync"}, assignments=["file_reserved_hours=48"], environment={}).settings
    desk = Desk(tables, tmp_path, settings)
    with pytest.raises(Refused, match="--set sets 48 at each start"):
        change(desk, request_with(OptionChanges({"file_reserved_hours": "24"}, persist=True).encode()))
    assert desk.run_time.value("file_reserved_hours") == 48
    assert not (tmp_path / "options.json").exists()


@given(body=st.binary(max_size=100))
def test_no_bytes_do_harm(body: bytes) -> None:
    try:
        values = parse_properties(body)
    except Refused:
        return
    assert all(isinstance(value, str) for value in values.values())


def test_figures_are_true(desk: Desk, request_with: Any) -> None:
    answer = asyncio.run(desk.admin.get_broker_runtime_info(GetBrokerRuntimeInfo(), request_with()))
    table = KVTable.decode(answer.body).table
    assert table["brokerVersion"] == "513"
    assert table["dispatchBehindBytes"] == "0"
    assert table["remainHowManyDataToFlush"] == "40 B"
    assert table["msgPutTotalTodayNow"] == "3"
    assert table["putTps"] == "0.0 0.0 0.0"
    assert table["scheduleMessageOffset_3"] == "7,9"
    assert table["earliestMessageTimeStamp"] == "-1", "the store is empty"
