"""The commands of Apache's mqadmin, and ours for them.

docs/commands.md has this as a table, which `make docs` writes. A person who types a command of mqadmin gets
ours as a suggestion."""

from __future__ import annotations

from typing import Final

_NO_CONTROLLER = (
    "There is no controller: `metaq cluster status` and `metaq cluster switch` look after masters."
)
_NO_USERS = "There is no access control yet."
_NO_LITE = "There are no lite topics."
_NO_ROCKSDB = "Nothing is kept in RocksDB: consume queues and configuration are plain files."
_ITSELF = "Not needed: brokers do this themselves."

COUNTERPARTS: Final = {
    "updateTopic": "topic create, topic update",
    "updateTopicList": "topic create, topic update",
    "updateTopicPerm": "topic update --permission",
    "deleteTopic": "topic delete",
    "topicList": "topic list",
    "topicRoute": "topic show",
    "topicStatus": "topic show",
    "topicClusterList": "topic show",
    "updateOrderConf": "topic update --order",
    "statsAll": "topic list, group list",
    "updateSubGroup": "group create, group limit",
    "updateSubGroupList": "group create, group limit",
    "deleteSubGroup": "group delete",
    "getConsumerConfig": "group show",
    "consumerConnection": "group show",
    "consumerProgress": "group list, group show",
    "consumerStatus": "group show --stacks",
    "brokerConsumeStats": "group list",
    "producer": "cluster connections",
    "producerConnection": "cluster connections",
    "startMonitoring": "doctor",
    "resetOffsetByTime": "group reset",
    "skipAccumulatedMessage": "group reset --to latest",
    "cloneGroupOffset": "group clone",
    "sendMessage": "send",
    "consumeMessage": "consume, tail",
    "queryMsgById": "message get",
    "queryMsgByKey": "message find --key",
    "queryMsgByUniqueKey": "message get",
    "queryMsgByOffset": "tail --queue --from --count 1",
    "queryMsgTraceById": "message trace",
    "printMsg": "tail --from",
    "printMsgByQueue": "tail --queue",
    "sendMsgStatus": "bench produce --messages",
    "checkMsgSendRT": "bench produce",
    "clusterRT": "bench produce",
    "clusterList": "cluster status",
    "addWritePerm": "cluster config set",
    "brokerStatus": "cluster status",
    "getNamesrvConfig": "cluster config get",
    "updateNamesrvConfig": "cluster config set",
    "getBrokerConfig": "cluster config get",
    "updateBrokerConfig": "cluster config set",
    "haStatus": "cluster status",
    "exportConfigs": "cluster support-bundle",
    "exportMetadata": "cluster support-bundle",
    "exportMetrics": "cluster support-bundle",
    "electMaster": "cluster switch",
    "getSyncStateSet": "cluster status",
    "getBrokerEpoch": "cluster status",
    "wipeWritePerm": "cluster config set",
}
"""Our commands, without `metaq`; several are separated by commas."""

WITHOUT: Final = {
    "allocateMQ": "`metaq group show` prints the real owner of each queue.",
    "setConsumeMode": "Pop consumption is not there yet.",
    "cleanUnusedTopic": _ITSELF,
    "queryCq": "Entries of a consume queue are an internal format; `metaq tail --queue` shows the messages.",
    "resetMasterFlushOffset": _ITSELF,
    "cleanExpiredCQ": _ITSELF,
    "deleteExpiredCommitLog": _ITSELF,
    "getColdDataFlowCtrInfo": "Reads of old messages are not slowed.",
    "updateColdDataFlowCtrGroupConfig": "Reads of old messages are not slowed.",
    "removeColdDataFlowCtrGroupConfig": "Reads of old messages are not slowed.",
    "setCommitLogReadAheadMode": "Reading ahead is left to the operating system.",
    "listUser": _NO_USERS,
    "listAcl": _NO_USERS,
    "copyUser": _NO_USERS,
    "copyAcl": _NO_USERS,
    "createUser": _NO_USERS,
    "updateUser": _NO_USERS,
    "deleteUser": _NO_USERS,
    "getUser": _NO_USERS,
    "createAcl": _NO_USERS,
    "updateAcl": _NO_USERS,
    "deleteAcl": _NO_USERS,
    "getAcl": _NO_USERS,
    "updateKvConfig": "Only old clients read these values; mqadmin can set them.",
    "deleteKvConfig": "Only old clients read these values; mqadmin can set them.",
    "addBroker": "There are no broker containers: run each broker as a process of its own.",
    "removeBroker": "There are no broker containers: run each broker as a process of its own.",
    "updateStaticTopic": "There are no static topics.",
    "remappingStaticTopic": "There are no static topics.",
    "getControllerMetaData": _NO_CONTROLLER,
    "getControllerConfig": _NO_CONTROLLER,
    "updateControllerConfig": _NO_CONTROLLER,
    "cleanBrokerMetadata": _NO_CONTROLLER,
    "rocksDBConfigToJson": _NO_ROCKSDB,
    "checkRocksdbCqWriteProgress": _NO_ROCKSDB,
    "exportMetadataInRocksDB": _NO_ROCKSDB,
    "exportPopRecord": "Pop consumption is not there yet.",
    "switchTimerEngine": "There is one way of delaying messages.",
    "getBrokerLiteInfo": _NO_LITE,
    "getParentTopicInfo": _NO_LITE,
    "getLiteTopicInfo": _NO_LITE,
    "getLiteClientInfo": _NO_LITE,
    "getLiteGroupInfo": _NO_LITE,
    "triggerLiteDispatch": _NO_LITE,
    "dumpCompactionLog": "There are no compacted topics.",
}
"""Reasons for commands that have no counterpart."""
