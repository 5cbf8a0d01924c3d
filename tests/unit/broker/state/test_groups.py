"""The table of groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from metaq.broker.requests.paging import page_of
from metaq.broker.requests.spaced_work import UPDATES_AT_ONCE
from metaq.broker.state import groups as groups_module
from metaq.broker.state.groups import SYSTEM_GROUPS, Groups
from metaq.protocol.bodies import (
    DataVersion,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from metaq.protocol.commands.groups import (
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from metaq.protocol.errors import ProtocolError, Refused

APACHE_FILE = """{
\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},
\t"forbiddenTable":{"billing":{"orders":4}},
\t"subscriptionGroupTable":{
\t\t"billing":{
\t\t\t"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":false,
\t\t\t"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,
\t\t\t"groupName":"billing","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,
\t\t\t"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":2,
\t\t\t"subscriptionDataSet":null,"whichBrokerWhenConsumeSlowly":1
\t\t}
\t}
}"""


def test_system_groups_are_always_there(tables: Any) -> None:
    assert {group.group_name for group in tables.groups} == set(SYSTEM_GROUPS)


def test_apaches_file_is_read_and_ours_has_its_form(tmp_path: Path, make_tables: Callable[..., Any]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(APACHE_FILE)
    groups: Groups = make_tables().groups
    billing = groups.get("billing")
    assert billing is not None
    assert (billing.consume_enable, billing.retry_max_times, billing.retry_queue_nums) == (False, 3, 2)
    ours, theirs = json.loads(groups.table().encode()), json.loads(APACHE_FILE)
    del theirs["subscriptionGroupTable"]["billing"]["subscriptionDataSet"]
    assert ours["subscriptionGroupTable"]["billing"] == theirs["subscriptionGroupTable"]["billing"]
    assert ours["forbiddenTable"] == theirs["forbiddenTable"]


def test_groups_are_made_on_first_use_where_allowed(make_tables: Callable[..., Any]) -> None:
    assert make_tables().groups.find_or_create("new").retry_max_times == 16
    strict: Groups = make_tables(auto_create_group=False).groups
    assert strict.find_or_create("new") is None
    assert strict.find_or_create("CID_RMQ_SYS_NEW") is not None
    assert strict.find_or_create("TOOLS_CONSUMER") is not None


@pytest.mark.parametrize("name", ["", "a b", "g" * 121])
def test_a_malformed_group_is_never_made(tables: Any, name: str) -> None:
    assert tables.groups.find_or_create(name) is None


def test_the_number_of_groups_is_bounded(make_tables: Callable[..., Any]) -> None:
    groups: Groups = make_tables(groups_max=len(make_tables().groups)).groups
    with pytest.raises(Refused, match="groups_max"):
        groups.find_or_create("one-more")
    assert groups.find_or_create("TOOLS_CONSUMER") is not None


def update(tables: Any, request: Any) -> None:
    asyncio.run(tables.groups.update_and_create_group(UpdateAndCreateSubscriptionGroup(), request))


def test_an_update_is_published_and_survives(make_tables: Callable[..., Any], request_with: Any) -> None:
    tables = make_tables()
    body = SubscriptionGroupConfig(group_name="billing", consume_enable=False).encode()
    update(tables, request_with(body))
    assert tables.published == ["billing"]
    assert make_tables().groups.get("billing").consume_enable is False


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"groupName":"a b"}', "other than"),
        (b'{"groupName":""}', "blank"),
        (b'{"groupName":"g","retryQueueNums":-1}', "limit is 0 to"),
        (b'{"groupName":"g","retryQueueNums":100000}', "limit is 0 to"),
    ],
)
def test_bad_groups_are_refused_by_name(tables: Any, request_with: Any, body: bytes, says: str) -> None:
    with pytest.raises(Refused) as raised:
        update(tables, request_with(body))
    assert raised.value.code == 29
    assert says in raised.value.remark


def test_a_body_that_is_none_is_refused(tables: Any, request_with: Any) -> None:
    with pytest.raises(ProtocolError):
        update(tables, request_with(b"\xff\xfe"))


def test_a_list_is_taken_whole_or_not_at_all(tables: Any, request_with: Any) -> None:
    body = b'{"groupConfigList":[{"groupName":"good"},{"groupName":"not good"}]}'
    with pytest.raises(Refused):
        asyncio.run(
            tables.groups.update_and_create_group_list(
                UpdateAndCreateSubscriptionGroupList(), request_with(body)
            )
        )
    assert tables.groups.get("good") is None


def test_all_groups_come_whole_or_in_pages(tables: Any, request_with: Any) -> None:
    whole = asyncio.run(tables.groups.get_all_groups(GetAllSubscriptionGroupConfig(), request_with()))
    table = SubscriptionGroupTable.decode(whole.body)
    assert len(table.subscription_group_table) == len(SYSTEM_GROUPS)
    version = table.data_version.encode().decode()
    seen: list[str] = []
    while len(seen) < len(SYSTEM_GROUPS):
        command = GetAllSubscriptionGroupConfig(group_seq=len(seen), max_group_num=3, data_version=version)
        answer = asyncio.run(tables.groups.get_all_groups(command, request_with()))
        page = SubscriptionGroupTable.decode(answer.body)
        seen += page.subscription_group_table
    assert sorted(seen) == sorted(SYSTEM_GROUPS)


def test_a_reader_of_an_older_table_starts_over() -> None:
    table = {str(number): number for number in range(10)}
    old, new = DataVersion(counter=1).encode().decode(), DataVersion(counter=2)
    assert page_of(table, first=5, count=2, version=new, version_seen=old) == ["0", "1"]
    assert page_of(table, first=5, count=2, version=new, version_seen="{nonsense") == ["0", "1"]
    assert page_of(table, first=-5, count=-2, version=new, version_seen=None) == sorted(table)


def test_one_group_is_told_or_named_as_missing(make_tables: Callable[..., Any], request_with: Any) -> None:
    strict = make_tables(auto_create_group=False)
    with pytest.raises(Refused) as raised:
        asyncio.run(strict.groups.get_group(GetSubscriptionGroupConfig(group="nobody"), request_with()))
    assert raised.value.code == 26
    assert "autoCreateSubscriptionGroup" in raised.value.remark


def test_a_group_is_kept_from_a_topic_and_let_in_again(tables: Any, request_with: Any) -> None:
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))

    def told(readable: bool | None) -> bool:
        command = UpdateAndGetGroupForbidden(group="g", topic="orders", readable=readable)
        answer = asyncio.run(tables.groups.update_and_get_group_forbidden(command, request_with()))
        return GroupForbidden.decode(answer.body).readable

    assert told(None) is True
    assert told(False) is False
    assert told(None) is False
    assert tables.groups.forbidden_topics("g") == ["orders"]
    assert tables.groups.table().forbidden_table == {"g": {"orders": 4}}, "as Apache writes it"
    assert told(True) is True
    assert tables.groups.table().forbidden_table == {}
    with pytest.raises(Refused) as raised:
        command = UpdateAndGetGroupForbidden(group="nobody", topic="orders")
        asyncio.run(tables.groups.update_and_get_group_forbidden(command, request_with()))
    assert raised.value.code == 26


def test_groups_are_kept_from_a_limited_number_of_topics(
    tables: Any, monkeypatch: pytest.MonkeyPatch, request_with: Any
) -> None:
    groups: Groups = tables.groups
    monkeypatch.setattr(groups_module, "FORBIDDEN_MAX", 2)
    monkeypatch.setattr(groups_module, "FORBIDDEN_BY_ALL_MAX", 3)

    def forbid(group: str, topic: str, readable: bool = False) -> None:
        groups.find_or_create(group)
        command = UpdateAndGetGroupForbidden(group=group, topic=topic, readable=readable)
        asyncio.run(groups.update_and_get_group_forbidden(command, request_with()))

    for topic in ("a", "b", "a"):
        forbid("one", topic)
    with pytest.raises(Refused, match="kept from 2 topics already, the limit is 2"):
        forbid("one", "c")
    forbid("two", "a")
    with pytest.raises(Refused, match="topics 3 times already, the limit is 3"):
        forbid("two", "b")
    assert groups.forbidden_topics("one") == ["a", "b"]
    assert groups.forbidden_topics("two") == ["a"]
    forbid("one", "a", readable=True)
    forbid("two", "b")


def test_a_retry_policy_that_nobody_knows_is_not_kept(tables: Any, request_with: Any) -> None:
    groups: Groups = tables.groups
    command = UpdateAndCreateSubscriptionGroup()
    for policy, is_known in (("EXPONENTIAL", True), ("x" * 4_000, False)):
        config = SubscriptionGroupConfig(group_name=policy[:20])
        config.group_retry_policy.type = policy
        request = request_with(body=config.encode())
        if is_known:
            asyncio.run(groups.update_and_create_group(command, request))
        else:
            with pytest.raises(Refused, match="use CUSTOMIZED or EXPONENTIAL"):
                asyncio.run(groups.update_and_create_group(command, request))
        assert (groups.get(policy[:20]) is not None) == is_known


async def _work_by_turn(work: Coroutine[object, object, object], done: Callable[[], int]) -> list[int]:
    """How much was done in each turn of the event loop until the work ended."""
    task = asyncio.create_task(work)  # type: ignore[arg-type]
    by_turn, before = [], done()
    while not task.done():
        await asyncio.sleep(0)
        now = done()
        by_turn.append(now - before)
        before = now
    await task
    return by_turn


def _list_of(*names: str) -> bytes:
    configs = [SubscriptionGroupConfig(group_name=name) for name in names]
    return SubscriptionGroupList(group_config_list=configs).encode()


def test_a_long_list_is_checked_and_published_in_turns(tables: Any, request_with: Any) -> None:
    groups: Groups = tables.groups
    checked: list[str] = []
    groups._convert = lambda config: checked.append(config.group_name)
    body = _list_of(*(f"g{number}" for number in range(1_000)))
    work = groups.update_and_create_group_list(UpdateAndCreateSubscriptionGroupList(), request_with(body))
    by_turn = asyncio.run(_work_by_turn(work, lambda: len(checked) + len(tables.published)))
    assert max(by_turn) <= 2 * UPDATES_AT_ONCE, "the last part is checked as the first one is published"
    assert sum(by_turn) == 2_000 and len(tables.published) == 1_000


def test_a_list_that_is_refused_leaves_nothing_even_if_others_take_its_room(
    make_tables: Callable[..., Any], request_with: Any
) -> None:
    count = len(make_tables().groups)
    tables = make_tables(groups_max=count + 200)
    groups: Groups = tables.groups
    command = UpdateAndCreateSubscriptionGroupList()

    async def scenario() -> None:
        body = _list_of(*(f"g{number}" for number in range(200)))
        update = asyncio.create_task(groups.update_and_create_group_list(command, request_with(body)))
        while not update.done():
            groups.find_or_create("the-last-place")
            await asyncio.sleep(0)
        with pytest.raises(Refused, match="groups_max"):
            await update

    asyncio.run(scenario())
    assert len(groups) == count + 1 and groups.get("g0") is None
    assert tables.published == []


def test_a_list_changes_a_group_as_it_is_now(tables: Any, request_with: Any) -> None:
    groups: Groups = tables.groups
    listed = [SubscriptionGroupConfig(group_name=f"g{number}") for number in range(200)]
    listed[0].attributes = {"-consume.rate.messages": ""}
    groups.put(SubscriptionGroupConfig(group_name="g0", attributes={"consume.rate.messages": "5"}))

    async def scenario() -> None:
        body = SubscriptionGroupList(group_config_list=listed).encode()
        command = UpdateAndCreateSubscriptionGroupList()
        update = asyncio.create_task(groups.update_and_create_group_list(command, request_with(body)))
        while not update.done():
            groups.put(SubscriptionGroupConfig(group_name="g0"))
            await asyncio.sleep(0)
        with pytest.raises(Refused, match="it is not set"):
            await update

    asyncio.run(scenario())
    assert groups.get("g1") is None


def test_a_changed_group_waits_for_the_replicas(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        held = asyncio.Event()
        groups: Groups = tables.groups
        monkeypatch.setattr(groups, "_replicated", wait(held))
        groups.put(SubscriptionGroupConfig(group_name="billing"))
        publishing = asyncio.create_task(groups.publish(["billing"]))
        await asyncio.sleep(0.05)
        assert not publishing.done()
        held.set()
        await publishing
        held.clear()
        await groups.publish(())

    def wait(held: asyncio.Event) -> Callable[[], Awaitable[None]]:
        async def replicated() -> None:
            await held.wait()

        return replicated

    asyncio.run(scenario())
