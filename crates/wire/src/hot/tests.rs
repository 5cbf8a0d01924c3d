use super::*;
use crate::encode::FrameEncoder;
use crate::frame::{Encoding, FRAME_BYTES_MAX, next_frame};

/// A request with these fields in both encodings, given to a check that must hold for either.
fn each_encoding(fields: &[(&str, &str)], check: impl Fn(&Header<'_>)) {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut out = Vec::new();
        let mut encoder = FrameEncoder::request(&mut out, encoding, 310, 1, 0);
        for (name, value) in fields {
            encoder.field(name, value);
        }
        encoder.finish(0).unwrap();
        let frame = next_frame(&out, FRAME_BYTES_MAX).unwrap().unwrap();
        check(&Header::parse(encoding, frame.header).unwrap());
    }
}

const SEND_VALUES: [(&str, &str, &str); 13] = [
    ("producerGroup", "a", "group"),
    ("topic", "b", "orders"),
    ("defaultTopic", "c", "TBW102"),
    ("defaultTopicQueueNums", "d", "4"),
    ("queueId", "e", "3"),
    ("sysFlag", "f", "1"),
    ("bornTimestamp", "g", "1760000000123"),
    ("flag", "h", "-5"),
    ("properties", "i", "TAGS\u{1}a\u{2}"),
    ("reconsumeTimes", "j", "2"),
    ("unitMode", "k", "TRUE"),
    ("maxReconsumeTimes", "l", "16"),
    ("batch", "m", "true"),
];

#[test]
fn send_headers_with_long_and_with_short_names() {
    let expected = SendHeader {
        producer_group: "group".into(),
        topic: "orders".into(),
        default_topic: "TBW102".into(),
        default_topic_queues: 4,
        queue_id: 3,
        system_flag: 1,
        born_timestamp_ms: 1_760_000_000_123,
        flag: -5,
        properties: "TAGS\u{1}a\u{2}".into(),
        reconsume_times: 2,
        unit_mode: true,
        batch: true,
        max_reconsume_times: Some(16),
    };
    let long = SEND_VALUES.map(|(long, _, value)| (long, value));
    let short = SEND_VALUES.map(|(_, short, value)| (short, value));
    for mut fields in [long.to_vec(), short.to_vec()] {
        fields.extend([("n", "broker-a"), ("bname", "broker-a"), ("unheardOf", "x")]);
        each_encoding(&fields, |header| assert_eq!(SendHeader::scan(header).unwrap(), expected));
    }
}

#[test]
fn a_send_needs_only_its_topic() {
    let expected = SendHeader { topic: "T".into(), ..SendHeader::default() };
    each_encoding(&[("b", "T")], |header| assert_eq!(SendHeader::scan(header).unwrap(), expected));
    let missing = Err(WireError::MissingField("topic"));
    each_encoding(&[("a", "group")], |header| assert_eq!(SendHeader::scan(header), missing));
    each_encoding(&[("b", "")], |header| assert_eq!(SendHeader::scan(header), missing));
}

#[test]
fn a_wrong_number_is_told_by_its_long_name() {
    for (short, name) in
        [("d", "defaultTopicQueueNums"), ("e", "queueId"), ("g", "bornTimestamp"), ("l", "maxReconsumeTimes")]
    {
        let wrong = Err(WireError::BadField { name });
        each_encoding(&[("b", "T"), (short, "x1")], |header| assert_eq!(SendHeader::scan(header), wrong));
    }
}

#[test]
fn a_send_reads_its_last_topic_as_field_does() {
    each_encoding(&[("b", "public"), ("topic", "secret")], |header| {
        assert_eq!(SendHeader::scan(header).unwrap().topic, "secret");
    });
    each_encoding(&[("b", "x"), ("b", "y")], |header| {
        assert_eq!(SendHeader::scan(header).unwrap().topic, "y");
        assert_eq!(header.field("b"), Ok(Some("y".into())));
    });
}

const PULL_VALUES: [(&str, &str); 12] = [
    ("consumerGroup", "group"),
    ("topic", "orders"),
    ("queueId", "3"),
    ("queueOffset", "5000000000"),
    ("maxMsgNums", "32"),
    ("sysFlag", "6"),
    ("commitOffset", "41"),
    ("suspendTimeoutMillis", "15000"),
    ("subscription", "a || b"),
    ("subVersion", "1760000000123"),
    ("expressionType", "TAG"),
    ("maxMsgBytes", "262144"),
];

#[test]
fn pull_headers() {
    let expected = PullHeader {
        consumer_group: "group".into(),
        topic: "orders".into(),
        queue_id: 3,
        queue_offset: 5_000_000_000,
        count_max: 32,
        system_flag: 6,
        commit_offset: 41,
        suspend_timeout_ms: 15_000,
        subscription: Some("a || b".into()),
        subscription_version: 1_760_000_000_123,
        expression_type: Some("TAG".into()),
        bytes_max: Some(262_144),
    };
    each_encoding(&PULL_VALUES, |header| assert_eq!(PullHeader::scan(header).unwrap(), expected));
}

#[test]
fn a_pull_must_say_where_to_read() {
    each_encoding(&PULL_VALUES[..4], |header| {
        let pull = PullHeader::scan(header).unwrap();
        assert_eq!((pull.count_max, pull.subscription, pull.bytes_max), (0, None, None));
    });
    for left_out in 0..4 {
        let mut fields = PULL_VALUES.to_vec();
        let (name, _) = fields.remove(left_out);
        each_encoding(&fields, |header| {
            assert_eq!(PullHeader::scan(header), Err(WireError::MissingField(name)));
        });
    }
}

#[test]
fn queue_headers() {
    let fields = [
        ("consumerGroup", "group"),
        ("topic", "orders"),
        ("queueId", "3"),
        ("commitOffset", "41"),
        ("timestamp", "1760000000123"),
        ("boundaryType", "upper"),
        ("setZeroIfNotFound", "false"),
    ];
    let expected = QueueHeader {
        consumer_group: Some("group".into()),
        topic: "orders".into(),
        queue_id: 3,
        commit_offset: Some(41),
        timestamp_ms: Some(1_760_000_000_123),
        upper: true,
        zero_if_not_found: Some(false),
    };
    each_encoding(&fields, |header| assert_eq!(QueueHeader::scan(header).unwrap(), expected));
    let bare = QueueHeader { topic: "orders".into(), queue_id: 3, ..QueueHeader::default() };
    each_encoding(&fields[1..3], |header| assert_eq!(QueueHeader::scan(header).unwrap(), bare));
    each_encoding(&fields[..2], |header| {
        assert_eq!(QueueHeader::scan(header), Err(WireError::MissingField("queueId")));
    });
    each_encoding(&fields[2..3], |header| {
        assert_eq!(QueueHeader::scan(header), Err(WireError::MissingField("topic")));
    });
}

const END_VALUES: [(&str, &str); 5] = [
    ("producerGroup", "group"),
    ("tranStateTableOffset", "41"),
    ("commitLogOffset", "5000000000"),
    ("commitOrRollback", "8"),
    ("fromTransactionCheck", "true"),
];

#[test]
fn an_end_of_a_transaction_must_name_its_half_message() {
    let expected = EndTransactionHeader {
        producer_group: "group".into(),
        queue_offset: 41,
        commit_log_offset: 5_000_000_000,
        commit_or_rollback: 8,
        from_check: true,
    };
    each_encoding(&END_VALUES, |header| assert_eq!(EndTransactionHeader::scan(header).unwrap(), expected));
    for left_out in 0..4 {
        let mut fields = END_VALUES.to_vec();
        let (name, _) = fields.remove(left_out);
        each_encoding(&fields, |header| {
            assert_eq!(EndTransactionHeader::scan(header), Err(WireError::MissingField(name)));
        });
    }
}
