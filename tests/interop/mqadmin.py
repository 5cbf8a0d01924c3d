"""Every command of Apache's mqadmin 5.5.0: how the test calls it, and the output that it expects.

In arguments and patterns, `{topic}` and the like are names that `Stage` knows. Patterns are regular
expressions that must be found in the output.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaq.protocol.handling import never


@dataclass(frozen=True)
class Trial:
    """One command line and its expected result."""

    line: str
    prints: tuple[str, ...] = ()
    refused: int | None = None
    """The request code that the broker refuses, with a reason."""
    time_limit_ms: int = 60_000
    endless: bool = False
    """Runs until it is stopped."""
    swallowed: bool = False
    """The tool does not print the reason."""

    @property
    def command(self) -> str:
        return self.line.split()[0]

    @property
    def reason(self) -> str:
        assert self.refused is not None
        return never.WHY[self.refused]


WORKING = (
    # Topics
    Trial(
        "updateTopic -b {broker} -t {fresh}_made -r 3 -w 3",
        ("create topic to {broker} success", "writeQueueNums=3"),
    ),
    Trial(
        "updateTopicList -b {broker} -f {home}/topics.json",
        ("submit batch of topic config to {broker} success",),
    ),
    Trial(
        "updateTopicPerm -b {broker} -t {doomed} -p 4",
        ("update topic perm from 6 to 4 in {broker} success", "perm=R--"),
    ),
    Trial(
        "deleteTopic -t {doomed} -c DefaultCluster",
        (r"delete topic \[{doomed}\] from cluster", "from NameServer success"),
    ),
    Trial("topicList", ("(?m)^{topic}$", "(?m)^%RETRY%{group}$")),
    Trial("topicList -c", (r"DefaultCluster +{topic} +{group}",)),
    Trial("topicRoute -t {topic}", ('"brokerName":"broker-a"', '"writeQueueNums":4')),
    Trial("topicStatus -t {topic}", (r"(?m)^broker-a +0 +0 +5 ", r"(?m)^broker-a +3 +0 +5 ")),
    Trial("topicClusterList -t {topic}", ("(?m)^DefaultCluster$",)),
    Trial(
        "updateOrderConf -t {spare} -v broker-a:4 -m put", (r"update orderConf success. topic=\[{spare}\]",)
    ),
    Trial("updateOrderConf -t {topic} -m get", (r"orderConf=\[broker-a:4\]",)),
    Trial("updateOrderConf -t {spare} -m delete", (r"delete orderConf success. topic=\[{spare}\]",)),
    Trial("allocateMQ -t {topic} -i 1.1.1.1,2.2.2.2", ('"1.1.1.1":.*"queueId":', '"2.2.2.2":.*"queueId":')),
    Trial("cleanUnusedTopic -b {broker}", ("success",)),
    Trial("statsAll -t {topic}", (r"(?m)^{topic} +{group} +0 ",)),
    # Groups
    Trial(
        "updateSubGroup -b {broker} -g {fresh}_group -r 3",
        ("create subscription group to {broker} success", "retryMaxTimes=3"),
    ),
    Trial(
        "updateSubGroupList -b {broker} -f {home}/groups.json",
        ("submit batch of group config to {broker} success",),
    ),
    Trial(
        "deleteSubGroup -b {broker} -g {doomed} -r true",
        (r"delete subscription group \[{doomed}\] from broker .* success",),
    ),
    Trial("getConsumerConfig -g {group}", ("groupName += +{group}", "retryMaxTimes += +16")),
    Trial(
        "setConsumeMode -b {broker} -t {topic} -g {group} -m PULL",
        (r"group\[{group}\] consume mode\[PULL\]",),
    ),
    Trial("consumerConnection -g {group}", ("{client}", r"(?m)^{topic} +\*", "MessageModel: CLUSTERING")),
    Trial("consumerProgress -g {group}", (r"(?m)^{topic} +broker-a +0 +5 +5 +0 ", "Consume Diff Total: 0")),
    Trial("consumerProgress", (r"(?m)^{group} +1 +V5_5_0 +PUSH +CLUSTERING",)),
    Trial("consumerStatus -g {group}", ("{client}", "Rebalance OK")),
    Trial(
        "consumerStatus -g {group} -i {client} -s", ("#Consumer Properties#", "#Consumer jstack#", "{topic}")
    ),
    Trial("brokerConsumeStats -b {broker}", (r"(?m)^{topic} +{group} +broker-a +2 +5 +5 +0 ",)),
    Trial("producer -b {broker}", (r"producer group \({producers}\) instance", "language=JAVA, version=513")),
    Trial("producerConnection -g {producers} -t {topic}", ("JAVA +V5_5_0",)),
    Trial("startMonitoring"),
    # Offsets
    Trial(
        "resetOffsetByTime -g {stopped} -t {topic} -s 0", (r"(?m)^broker-a +0 +0 ", r"(?m)^broker-a +3 +0 ")
    ),
    Trial(
        "resetOffsetByTime -g {stopped} -t {topic} -s -1 -b {broker} -q 1 -o 2",
        ("reset consumer offset to 2",),
    ),
    Trial(
        "skipAccumulatedMessage -g {stopped} -t {topic}", (r"(?m)^broker-a +0 +5 ", r"(?m)^broker-a +3 +5 ")
    ),
    Trial(
        "cloneGroupOffset -s {group} -d {stopped} -t {topic}",
        (r"clone group offset success. srcGroup\[{group}\]",),
    ),
    # Messages
    Trial("sendMessage -t {spare} -p hello -k kk -c tt", (r"(?m)^broker-a +\d +SEND_OK",)),
    Trial("consumeMessage -t {topic} -b broker-a -i 0 -o 0 -c 2 -g {reader}", ("Consume ok", "m3")),
    Trial(
        "queryMsgById -t {topic} -i {offset_id}",
        ("OffsetID: +{offset_id}", r"Keys: +\[k0\]", "trackType=CONSUMED"),
    ),
    Trial("queryMsgById -t {topic} -i {offset_id} -g {group} -d {client}", ("consumeResult=CR_SUCCESS",)),
    Trial("queryMsgByKey -t {topic} -k k3", (r"@{topic}@K@k3@|{third_id}",)),
    Trial("queryMsgByUniqueKey -t {topic} -i {unique_id}", (r"Keys: +\[k0\]", "Queue Offset: +0")),
    Trial("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 0", ("Queue ID: +0", r"Tags: +\[A\]")),
    Trial("queryMsgTraceById -i {traced_id}", ("#Type", "Pub")),
    Trial("printMsg -t {topic} -d true", ("minOffset=0, maxOffset=5", "m19")),
    Trial("printMsgByQueue -t {topic} -a broker-a -i 0 -p true -d true", ("queueOffset=4",)),
    Trial(
        "queryCq -t {topic} -q 0 -i 0 -c 3 -b {broker} -g {group}",
        ("max: 5, min: 0", "tagsCode=65.*eval=true"),
    ),
    Trial("sendMsgStatus -b broker-a -c 2", ("sendStatus=SEND_OK",)),
    Trial("checkMsgSendRT -t {spare} -a 3 -s 10", (r"(?m)^broker-a +\d +true", "Avg RT")),
    Trial(
        "clusterRT -a 3 -s 10 -i 1",
        (r"(?m)^DefaultCluster +broker-a +[\d.]+ +3 +0",),
        time_limit_ms=6_000,
        endless=True,
    ),
    # Brokers
    Trial("clusterList", (r"(?m)^DefaultCluster +broker-a +0 +{broker} +V5_5_0 .* true",)),
    Trial("clusterList -m", (r"(?m)^DefaultCluster +broker-a +0 +0 +\d+ +\d+",)),
    Trial(
        "brokerStatus -b {broker}",
        ("brokerVersionDesc +: V5_5_0", r"putTps +: [\d.]+ [\d.]+ [\d.]+", "commitLogMaxOffset"),
    ),
    Trial("getBrokerConfig -b {broker}", ("brokerName += +broker-a", "useServerSideResetOffset += +true")),
    Trial(
        "updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v true",
        ("update broker config success, {broker}",),
    ),
    Trial("haStatus -b {broker}", (r"#MasterAddr\s+{broker}", r"#SlaveNum\s+0")),
    Trial("resetMasterFlushOffset -b {broker} -o 0", ("reset master flush offset to 0 success",)),
    Trial("cleanExpiredCQ -b {broker}", ("success",)),
    Trial("deleteExpiredCommitLog -b {broker}", ("success",)),
    Trial("getColdDataFlowCtrInfo -b {broker}", ('"coldDataFlowControlEnable":false', '"runtimeTable":{{}}')),
    Trial("exportConfigs -c DefaultCluster -f {home}/export", ("export {home}/export/configs.json success",)),
    Trial(
        "exportMetadata -c DefaultCluster -f {home}/export", ("export {home}/export/metadata.json success",)
    ),
    Trial("exportMetrics -c DefaultCluster -f {home}/export", ("export {home}/export/metrics.json success",)),
    # There are no users and no rules, so these print nothing; they must not complain either.
    Trial("listUser -b {broker}"),
    Trial("listAcl -b {broker}"),
    Trial("copyUser -f {broker} -t {broker}"),
    Trial("copyAcl -f {broker} -t {broker}"),
    # Name servers
    Trial("getNamesrvConfig", (r"orderMessageEnable += +true",)),
    Trial("updateNamesrvConfig -k orderMessageEnable -v true", ("update name server config success",)),
    Trial("updateKvConfig -s NS -k a -v b", ("create or update kv config to namespace success",)),
    Trial("deleteKvConfig -s NS -k a", ("delete kv config from namespace success",)),
    Trial(
        "wipeWritePerm -b broker-a",
        (r"wipe write perm of broker\[broker-a\] in name server\[{namesrv}\] OK, \d+",),
    ),
    Trial(
        "addWritePerm -b broker-a",
        (r"add write perm of broker\[broker-a\] in name server\[{namesrv}\] OK, \d+",),
    ),
)

REFUSED = (
    Trial("addBroker -c {broker} -b /broker.conf", refused=902),
    Trial("removeBroker -c {broker} -b DefaultCluster:broker-a:0", refused=903),
    Trial("updateStaticTopic -b broker-a -t {fresh}_static -qn 4", refused=513),
    Trial("getSyncStateSet -a {namesrv} -b broker-a", refused=1005),
    Trial("getBrokerEpoch -b broker-a", refused=1007),
    Trial("getControllerMetaData -a {namesrv}", refused=1005),
    Trial("getControllerConfig -a {namesrv}", refused=1010),
    Trial("updateControllerConfig -a {namesrv} -k x -v y", refused=1009),
    Trial("electMaster -a {namesrv} -b 0 -bn broker-a -c DefaultCluster", refused=1005),
    Trial("cleanBrokerMetadata -a {namesrv} -bn broker-a -c DefaultCluster -b 1", refused=1005),
    Trial("updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1", refused=2001),
    Trial("removeColdDataFlowCtrGroupConfig -b {broker} -g {group}", refused=2002),
    Trial("setCommitLogReadAheadMode -b {broker} -m 1", refused=2004),
    Trial("createUser -b {broker} -u u -p p", refused=3001),
    Trial("updateUser -b {broker} -u u -p p", refused=3002),
    Trial("deleteUser -b {broker} -u u", refused=3003),
    Trial("getUser -b {broker} -u u", refused=3004),
    Trial("createAcl -b {broker} -s User:u -r Topic:x -a Pub -d Allow", refused=3006),
    Trial("updateAcl -b {broker} -s User:u -r Topic:x -a Pub -d Allow", refused=3007),
    Trial("deleteAcl -b {broker} -s User:u", refused=3008),
    Trial("getAcl -b {broker} -s User:u", refused=3009),
    Trial("rocksDBConfigToJson -c DefaultCluster -t topics", refused=355),
    Trial("checkRocksdbCqWriteProgress -c DefaultCluster", refused=354),
    Trial("exportPopRecord -b {broker} -d true", refused=200056),
    Trial("switchTimerEngine -b {broker} -e F", refused=5001),
    Trial("getBrokerLiteInfo -b {broker}", refused=200074),
    Trial("getParentTopicInfo -p {topic}", refused=200075, swallowed=True),
    Trial("getLiteTopicInfo -p {topic} -l x", refused=200076, swallowed=True),
    Trial("getLiteClientInfo -p {topic} -g {group} -c {client}", refused=200077, swallowed=True),
    Trial("getLiteGroupInfo -p {topic} -g {group} -l x", refused=200078, swallowed=True),
    Trial("triggerLiteDispatch -p {topic} -g {group}", refused=200079, swallowed=True),
)

NOT_TRIED = {
    "dumpCompactionLog": "reads a file of a compacted topic on disk; MetaQ has no compacted topics",
    "exportMetadataInRocksDB": "reads a RocksDB directory on disk; MetaQ has none",
    "remappingStaticTopic": "needs a static topic; MetaQ has none",
}
