//! Plain messages and checked ones, as a broker would get them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::produce::testing::{TOPIC, TestBuffer};

fn checked(unique_id: &str) -> CheckedMessage<'_> {
    CheckedMessage {
        topic: TOPIC,
        body: b"first",
        properties: "UNIQ_KEY\u{1}0102\u{2}",
        unique_id,
        queue: None,
        is_alone: false,
        system_flag: 0,
        flag: 0,
    }
}

fn plain(body: &[u8]) -> PlainMessage<'_> {
    PlainMessage { topic: TOPIC, body, tag: None, keys: None, sharding_key: None }
}

#[test]
fn only_a_checked_message_makes_its_topic_known() {
    let test = TestBuffer::start(1 << 20, None);
    assert!(test.buffer.put_plain(&plain(b"too early")).is_none());
    let id = test.buffer.ids.text(test.buffer.ids.next());
    test.buffer.put_checked(&checked(&id), WhenFull::Refuse).unwrap();
    assert!(test.buffer.put_plain(&plain(b"second")).is_some());
    let foreign = test.buffer.put_checked(&checked("somebody else's"), WhenFull::Refuse);
    assert_eq!(foreign.err(), Some(PutError::TooLong));
    let bodies: Vec<_> = test.into_messages().into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn a_sharding_key_chooses_the_queue() {
    let test = TestBuffer::start(1 << 20, None);
    let queue = test.buffer.routes.get(TOPIC).unwrap().by_key(TOPIC, "k").unwrap().clone();
    let id = test.buffer.ids.text(test.buffer.ids.next());
    test.buffer
        .put_checked(&CheckedMessage { queue: Some(&queue), ..checked(&id) }, WhenFull::Refuse)
        .unwrap();
    let keyed = PlainMessage { sharding_key: Some("k"), ..plain(b"second") };
    test.buffer.put_plain(&keyed).unwrap();
    assert!(test.buffer.put_plain(&PlainMessage { topic: "unknown", ..keyed }).is_none());
    let messages = test.into_messages();
    assert_eq!(messages[1].queue, Some((queue.broker.to_string(), queue.queue_id)));
    assert_eq!(messages[1].properties["__SHARDINGKEY"], "k");
}

#[test]
fn a_batch_has_a_key_if_every_message_has_one() {
    for half_properties in [None, Some("A\u{1}b\u{2}")] {
        let test = TestBuffer::start(1 << 20, half_properties);
        let queue = BrokerQueue { broker: "a".into(), queue_id: 0 };
        let put = |properties: &str, is_alone: bool| {
            let id = test.buffer.ids.text(test.buffer.ids.next());
            let message = CheckedMessage { queue: Some(&queue), properties, is_alone, ..checked(&id) };
            test.buffer.put_checked(&message, WhenFull::Refuse).unwrap().0
        };
        let batch = put("__SHARDINGKEY\u{1}first\u{2}", false);
        assert_eq!(batch.sharding_key(), None, "it is still being filled");
        put("TAGS\u{1}t\u{2}__SHARDINGKEY\u{1}second\u{2}", false);
        test.buffer.flush();
        assert_eq!(batch.sharding_key().as_deref(), Some("first"));
        let mixed = put("__SHARDINGKEY\u{1}first\u{2}", false);
        put("TAGS\u{1}t\u{2}", false);
        test.buffer.flush();
        assert_eq!(mixed.sharding_key(), None);
        assert_eq!(put("__SHARDINGKEY\u{1}alone\u{2}", true).sharding_key().as_deref(), Some("alone"));
        assert_eq!(put("TAGS\u{1}t\u{2}", true).sharding_key(), None);
    }
}

#[test]
fn a_checked_message_can_be_a_request_of_its_own() {
    let test = TestBuffer::start(1 << 20, None);
    let id = test.buffer.ids.text(test.buffer.ids.next());
    let alone = CheckedMessage { is_alone: true, system_flag: 1, flag: 3, ..checked(&id) };
    let (batch, _) = test.buffer.put_checked(&alone, WhenFull::Refuse).unwrap();
    let expected = Form::Alone { properties: alone.properties.to_owned(), system_flag: 1, flag: 3 };
    assert_eq!(batch.contents().unwrap().form, expected);
    assert!(test.into_messages()[0].is_alone);
}

#[test]
fn what_is_large_or_for_a_retry_topic_is_not_plain() {
    let limits = PlainLimits::new(100, 4096, 300);
    assert!(limits.allow("t", &[0; 100]) && !limits.allow("t", &[0; 101]) && !limits.allow("%RETRY%g", b""));
    assert!(!PlainLimits::new(1000, 4096, 300).allow("t", &[0; 151]), "half of a batch");
    assert!(!PlainLimits::new(1000, 50, 300).allow("t", &[0; 50]), "it is compressed");
}

#[test]
fn texts_that_the_wire_cannot_carry_are_refused() {
    assert!(is_property("é b") && !is_property("") && !is_property("a\u{1}") && !is_property("\u{2}"));
    assert!(is_tag("a|b") && !is_tag("a||b") && !is_tag(""));
    assert!(is_ascii_key("k-1") && !is_ascii_key("a b") && !is_ascii_key("é") && !is_ascii_key(""));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_plain_message_arrives_as_it_was_given(
        body in prop::collection::vec(any::<u8>(), 0..100),
        tag in prop::option::of("[a-zé]{1,9}"),
        keys in prop::option::of("[a-z]{1,4}( [a-z]{1,4}){0,2}"),
    ) {
        let test = TestBuffer::start(1 << 20, None);
        let id = test.buffer.ids.text(test.buffer.ids.next());
        test.buffer.put_checked(&checked(&id), WhenFull::Refuse).unwrap();
        let message = PlainMessage { tag: tag.as_deref(), keys: keys.as_deref(), ..plain(&body) };
        test.buffer.put_plain(&message).unwrap();
        let found = test.into_messages().remove(1);
        let named = [("TAGS", tag), ("KEYS", keys)].into_iter();
        let properties: BTreeMap<String, String> =
            named.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        prop_assert_eq!((found.body, found.properties, found.queue), (body, properties, None));
    }
}
