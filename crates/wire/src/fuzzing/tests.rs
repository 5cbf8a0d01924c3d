//! Runs the fuzz targets on valid input with a few damaged bytes, which gets further than random bytes.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Damage {
    Set(u8),
    Add(u8),
    Insert(u8),
    Remove(usize),
    Cut,
    Repeat(usize),
}

fn damages() -> impl Strategy<Value = Vec<(prop::sample::Index, Damage)>> {
    let telling = prop::sample::select(b"\0\x01\x02\x7F\x80\xFF\"\\{}[]:,u ".to_vec());
    let damage = prop_oneof![
        telling.clone().prop_map(Damage::Set),
        any::<u8>().prop_map(Damage::Set),
        prop::sample::select(vec![1, 0xFF, 0x80]).prop_map(Damage::Add),
        telling.prop_map(Damage::Insert),
        (1usize..9).prop_map(Damage::Remove),
        Just(Damage::Cut),
        (1usize..40).prop_map(Damage::Repeat),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), damage), 0..4)
}

fn damaged(mut bytes: Vec<u8>, damages: &[(prop::sample::Index, Damage)]) -> Vec<u8> {
    for (index, damage) in damages {
        if bytes.is_empty() {
            break;
        }
        let at = index.index(bytes.len());
        let end = |length: &usize| (at + length).min(bytes.len());
        match damage {
            Damage::Set(byte) => bytes[at] = *byte,
            Damage::Add(step) => bytes[at] = bytes[at].wrapping_add(*step),
            Damage::Insert(byte) => bytes.insert(at, *byte),
            Damage::Remove(length) => drop(bytes.drain(at..end(length))),
            Damage::Cut => bytes.truncate(at),
            Damage::Repeat(length) => bytes.extend_from_within(at..end(length)),
        }
    }
    bytes
}

fn request(encoding: Encoding) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = FrameEncoder::request(&mut out, encoding, 310, 77, 2);
    encoder.remark("a \"remark\"");
    encoder.field("b", "orders").field("e", "3").field("g", "1760000000123").field("k", "false");
    encoder.field("i", "KEYS\u{1}k1 k2\u{2}TAGS\u{1}😀é\u{2}").field_i64("queueId", -1);
    encoder.field("consumerGroup", "group").field_i64("queueOffset", 5).field("topic", "orders");
    encoder.finish(0).unwrap();
    out
}

fn stored(topic_length: usize, v6: bool) -> Vec<u8> {
    let v4 = SocketAddr::from(([10, 0, 0, 1], 10_911));
    let other = if v6 { "[fe80::1]:50000".parse().unwrap() } else { v4 };
    let record = NewRecord {
        topic: &vec![b't'; topic_length],
        queue_id: 1,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 1,
        born_host: other,
        store_host: v4,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"a body",
        body_crc: crate::record::body_crc(b"a body"),
        properties: [b"TAGS\x01a\x02", b"", b"KEYS\x01b\x02"],
    };
    let laid_out = record.laid_out(v6).unwrap();
    let mut place = vec![0; laid_out.size];
    laid_out.write(&mut place, 1, 2, 3);
    place
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn frames(damages in damages()) {
        for (encoding, target) in [(Encoding::Json, frame_json as fn(&[u8])), (Encoding::Binary, frame_binary)] {
            let request = request(encoding);
            target(&damaged(request.clone(), &damages));
            target(&damaged(request[8..].to_vec(), &damages));
        }
    }

    #[test]
    fn records(damages in damages()) {
        for (topic_length, v6) in [(5, false), (5, true), (200, false)] {
            record(&damaged(stored(topic_length, v6), &damages));
        }
    }

    #[test]
    fn batches(damages in damages()) {
        let mut bytes = Vec::new();
        for body in [&b"first"[..], b"", b"third"] {
            BatchRecord { flag: 1, body, properties: b"TAGS\x01a\x02" }.encode(&mut bytes).unwrap();
        }
        batch(&damaged(bytes, &damages));
    }

    #[test]
    fn property_blocks(damages in damages()) {
        properties(&damaged(b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02WAIT\x01true\x02KEYS\x01k3".to_vec(), &damages));
    }

    #[test]
    fn message_ids(damages in damages()) {
        message_id(&damaged(b"7F00000100002A9F0000000000A1B2C3".to_vec(), &damages));
        message_id(&damaged(b"FE80000000000000000000000001000200002A9FFFFFFFFFFFFFFFFF".to_vec(), &damages));
    }
}
