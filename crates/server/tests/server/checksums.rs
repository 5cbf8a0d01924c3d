//! Every record that the broker stores ends with its own checksum, and with no other.

use metaq_server::Resend;
use metaq_store::SCHEDULE_TOPIC;
use metaq_wire::Coverage;

use crate::support::request_code::{END_TRANSACTION, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2};
use crate::support::*;

const OLD: (&str, &str) = ("__CRC32#", "0123456789");
/// The broker adds nothing behind the properties of a message that has this one.
const SENT_ON: (&str, &str) = ("CLUSTER", "c");

fn plane(record_checksums: bool) -> Plane {
    Plane::with(|setup| {
        setup.store.record_checksums = record_checksums;
        setup.topics.push(topic("%RETRY%readers"));
    })
}

/// The messages of a queue, whose coverage must be as the setting says. Reading them checks that each record has no
/// other checksum.
fn read(plane: &Plane, topic: &str, queue_id: i32, record_checksums: bool) -> Vec<Message> {
    let expected = if record_checksums { Coverage::Record } else { Coverage::Body };
    let messages = plane.read(topic, queue_id);
    assert!(!messages.is_empty());
    assert!(messages.iter().all(|message| message.coverage == expected), "{messages:?}");
    messages
}

#[test]
fn the_checksum_that_a_sender_read_with_a_message_is_taken_off() {
    for record_checksums in [true, false] {
        let plane = plane(record_checksums);
        let mut client = plane.connect();
        let sent = [
            &[OLD, ("UNIQ_KEY", "K")][..],
            &[("UNIQ_KEY", "K"), SENT_ON, OLD],
            &[OLD, ("A", "1"), OLD, SENT_ON, ("UNIQ_KEY", "K"), OLD, OLD],
        ];
        for pairs in sent {
            let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(pairs)), b"one");
            assert_eq!(answer.code, response_code::SUCCESS, "{answer:?}");
        }
        let parts: Vec<_> = sent.iter().map(|pairs| ("of many", properties(pairs))).collect();
        let parts: Vec<_> = parts.iter().map(|(body, marks)| (*body, marks.as_str())).collect();
        let fields = but(send_fields(""), &[("m", "true")]);
        assert_eq!(client.ask(SEND_BATCH_MESSAGE, &fields, &batch(&parts)).code, response_code::SUCCESS);
        let messages = read(&plane, TOPIC, 0, record_checksums);
        assert_eq!(messages.len(), 6);
        assert!(messages.iter().all(|message| !message.properties.contains_key(OLD.0)));
        assert_eq!(messages[2].properties, messages[5].properties);
        assert_eq!(messages[2].properties["A"], "1");
    }
}

#[test]
fn what_the_broker_stores_itself_has_a_checksum_of_its_own() {
    for record_checksums in [true, false] {
        let plane = plane(record_checksums);
        let mut client = plane.connect();
        let ask = |client: &mut Client, pairs: &[(&str, &str)], body: &[u8]| {
            let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(pairs)), body);
            assert_eq!(answer.code, response_code::SUCCESS, "{answer:?}");
            answer
        };
        ask(&mut client, &[("UNIQ_KEY", "K1"), ("DELAY", "1"), OLD], b"delayed");
        read(&plane, SCHEDULE_TOPIC, 0, record_checksums);
        plane.advance_ms(1_001);
        eventually("it is delivered", || plane.bodies(TOPIC, 0) == ["delayed"]);
        let delivered = read(&plane, TOPIC, 0, record_checksums).remove(0);
        let resend = Resend {
            physical_offset: delivered.physical_offset,
            topic: "%RETRY%readers".to_owned(),
            queue_id: 0,
            reconsume_times: 1,
            delay_level: 0,
            drop: Vec::new(),
            set: vec![("RETRY_TOPIC".to_owned(), TOPIC.to_owned())],
            system_names: Vec::new(),
        };
        plane.broker().sends.resend(&resend).unwrap();
        read(&plane, "%RETRY%readers", 0, record_checksums);

        let marks = [properties(&[("UNIQ_KEY", "A"), OLD]), properties(&[SENT_ON, ("UNIQ_KEY", "B"), OLD])];
        let many = batch(&[("a", &marks[0]), ("b", &marks[1])]);
        for (body, more) in [(&b"paid"[..], None), (&many, Some(("METAQ_HALF_BATCH", "2")))] {
            let pairs: Vec<_> = [("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP), ("UNIQ_KEY", "T"), OLD]
                .into_iter()
                .chain(more)
                .collect();
            ask(&mut client, &pairs, body);
            let half = read(&plane, "RMQ_SYS_TRANS_HALF_TOPIC", 0, record_checksums).pop().unwrap();
            let end = vec![
                ("producerGroup", PRODUCER_GROUP.to_owned()),
                ("tranStateTableOffset", half.queue_offset.to_string()),
                ("commitLogOffset", half.physical_offset.to_string()),
                ("commitOrRollback", "8".to_owned()),
                ("fromTransactionCheck", "false".to_owned()),
                ("msgId", "T".to_owned()),
                ("transactionId", "T".to_owned()),
            ];
            assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS);
        }
        let messages = read(&plane, TOPIC, 0, record_checksums);
        assert_eq!(plane.bodies(TOPIC, 0), ["delayed", "paid", "a", "b"]);
        assert!(messages.iter().all(|message| !message.properties.contains_key(OLD.0)));
    }
}
