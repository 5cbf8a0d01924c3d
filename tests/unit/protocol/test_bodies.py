"""Bodies as Java and Go peers write and want them."""

from __future__ import annotations

import inspect

import pytest

from metaq.protocol import bodies
from metaq.protocol.bodies import (
    Body,
    BrokerData,
    ConsumerOffsets,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    OffsetWrapper,
    QueueData,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicRouteData,
)
from metaq.protocol.errors import ProtocolError

ROUTE = TopicRouteData(
    [BrokerData({0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, "b", "c")], {}, None, [QueueData("b", 6, 4, 0, 4)]
)
ROUTE_TEXT = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"b",'
    b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b",'
    b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)


def test_a_route_has_sorted_keys_and_no_spaces() -> None:
    assert ROUTE.encode() == ROUTE_TEXT


def test_a_route_for_old_clients() -> None:
    old = ROUTE_TEXT.replace(b'{"0":', b"{0:").replace(b',"1":', b",1:")
    assert ROUTE.encode(bare_integer_keys=True) == old
    assert TopicRouteData.decode(old) == TopicRouteData.decode(ROUTE_TEXT) == ROUTE


def test_what_is_none_is_left_out_and_what_is_set_is_not() -> None:
    route = TopicRouteData(order_topic_conf="b:4")
    assert (
        route.encode() == b'{"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"b:4","queueDatas":[]}'
    )
    assert TopicList(None, []).encode() == b'{"topicList":[]}'
    assert BrokerData(zone_name="z").encode().endswith(b'"zoneName":"z"}')


def test_a_heartbeat_of_4_x() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"c@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
        b'{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":7,'
        b'"tagsSet":[],"topic":"T"}],"unitMode":false}],"producerDataSet":[{"groupName":"p"}]}'
    )
    assert (heartbeat.client_id, heartbeat.heartbeat_fingerprint, heartbeat.without_sub) == ("c@1", 0, False)
    assert heartbeat.consumer_data_set[0].subscription_data_set[0].sub_version == 7


def test_a_heartbeat_of_go_with_nulls() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"g","producerDataSet":null,"consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
        b'[{"topic":"T","tagsSet":null,"codeSet":null,"subVersion":"12"}]}]}'
    )
    subscription = heartbeat.consumer_data_set[0].subscription_data_set[0]
    assert (subscription.tags_set, subscription.sub_version, subscription.sub_string) == ([], 12, "*")


def test_locks() -> None:
    request = LockBatchRequestBody.decode(
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    )
    assert request.mq_set == [MessageQueue("b", 0, "T")]
    assert LockBatchResponseBody(request.mq_set).encode() == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    )


def test_statistics_by_queue() -> None:
    stats = ConsumeStats(0.5, {MessageQueue("b", 1, "T"): OffsetWrapper(9, 7, 1, 8)})
    text = (
        b'{"consumeTps":0.5,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:'
        b'{"brokerOffset":9,"consumerOffset":7,"lastTimestamp":1,"pullOffset":8}}}'
    )
    assert stats.encode() == text
    assert ConsumeStats.decode(text) == stats


def test_offsets_of_apache_s_file() -> None:
    offsets = ConsumerOffsets.decode(b'{\n\t"dataVersion":{"counter":1},"offsetTable":{\n\t"T@g":{0:5,1:6}}}')
    assert offsets.offset_table == {"T@g": {0: 5, 1: 6}}
    assert offsets.data_version == DataVersion(1)
    assert offsets.encode(bare_integer_keys=True).endswith(b'"offsetTable":{"T@g":{0:5,1:6}}}')


def test_a_registration_without_state_version() -> None:
    body = RegisterBrokerBody.decode(
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,"timestamp":3},'
        b'"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}},"topicQueueMappingInfoMap":{}}}'
    )
    wrapper = body.topic_config_serialize_wrapper
    assert wrapper.data_version == DataVersion(2, 0, 3)
    assert wrapper.topic_config_table["T"].read_queue_nums == 4


def test_defaults_are_written() -> None:
    assert b'"perm":6' in TopicConfig(topic_name="T").encode()
    assert b'"retryMaxTimes":16' in SubscriptionGroupConfig(group_name="g").encode()
    assert KVTable().encode() == b'{"table":{}}'


@pytest.mark.parametrize(
    "kind", [kind for _, kind in inspect.getmembers(bodies, inspect.isclass) if issubclass(kind, Body)]
)
def test_every_body_has_usable_defaults(kind: type[Body]) -> None:
    assert kind.decode(b"{}") == kind()
    assert kind.decode(kind().encode()) == kind()
    assert list(kind.__struct_encode_fields__) == sorted(kind.__struct_encode_fields__)
    assert kind.decode(kind().encode(bare_integer_keys=True)) == kind()


def test_a_body_that_is_none() -> None:
    with pytest.raises(ProtocolError, match="the body is not a valid KVTable"):
        KVTable.decode(b"[]")
