#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const GOLDEN: [u8; 98] = [
    0, 0, 0, 98, // size: 91 + topic 1 + body 2 + properties 4
    0xDA, 0xA3, 0x20, 0xA7, // magic V1
    0x58, 0x93, 0x2A, 0xAC, // crc32("hi") is D8932AAC; the top bit is cut off
    0, 0, 0, 3, // queue id
    0, 0, 0, 5, // flag
    0, 0, 0, 0, 0, 0, 0, 7, // queue offset, at 20
    0, 0, 0, 0, 0, 0, 1, 0, // physical offset, at 28
    0, 0, 0, 1, // system flag, at 36
    0, 0, 0, 0, 0, 0, 0x10, 0, // born timestamp
    10, 0, 0, 1, 0, 0, 0xC3, 0x50, // born host 10.0.0.1:50000, at 48
    0, 0, 0, 0, 0, 0, 0x10, 1, // store timestamp, at 56
    127, 0, 0, 1, 0, 0, 0x2A, 0x9F, // store host 127.0.0.1:10911
    0, 0, 0, 2, // reconsume times
    0, 0, 0, 0, 0, 0, 0, 99, // prepared transaction offset
    0, 0, 0, 2, b'h', b'i', // body
    1, b'T', // topic
    0, 4, b'a', 1, b'b', 2, // properties
];

fn golden() -> NewRecord<'static> {
    NewRecord {
        topic: b"T",
        queue_id: 3,
        flag: 5,
        system_flag: 1,
        born_timestamp_ms: 0x1000,
        born_host: SocketAddr::from(([10, 0, 0, 1], 50_000)),
        store_host: SocketAddr::from(([127, 0, 0, 1], 10_911)),
        reconsume_times: 2,
        prepared_transaction_offset: 99,
        body: b"hi",
        body_crc: body_crc(b"hi"),
        properties: [b"a\x01", b"", b"b\x02"],
    }
}

fn written(record: &NewRecord<'_>) -> Vec<u8> {
    let bytes = record.encode(7, 0x100, 0x1001).unwrap();
    assert_eq!(bytes.len(), record.size());
    bytes
}

#[test]
fn writes_the_golden_record() {
    assert_eq!(written(&golden()), GOLDEN);
}

#[test]
fn reads_the_golden_record() {
    let mut followed = GOLDEN.to_vec();
    followed.extend_from_slice(b"the next record");
    let record = Record::decode(&followed).unwrap();
    assert_eq!((record.size, record.queue_id, record.flag), (98, 3, 5));
    assert_eq!((record.queue_offset, record.physical_offset, record.system_flag), (7, 0x100, 1));
    assert_eq!((record.born_timestamp_ms, record.store_timestamp_ms), (0x1000, 0x1001));
    assert_eq!((record.born_host, record.store_host), (golden().born_host, golden().store_host));
    assert_eq!((record.reconsume_times, record.prepared_transaction_offset), (2, 99));
    assert_eq!((record.topic, record.body, record.properties), (&b"T"[..], &b"hi"[..], &b"a\x01b\x02"[..]));
    assert!(record.crc_matches());
    assert_eq!(record.property("a"), Some(&b"b"[..]));
}

#[test]
fn the_layout_says_where_things_are() {
    use layout::at;
    let word = |at: usize| u32::from_be_bytes(GOLDEN[at..at + 4].try_into().unwrap());
    let long = |at: usize| i64::from_be_bytes(GOLDEN[at..at + 8].try_into().unwrap());
    assert_eq!((word(at::SIZE), word(at::MAGIC), word(at::BODY_CRC)), (98, layout::MAGIC_V1, 0x5893_2AAC));
    assert_eq!((word(at::QUEUE_ID), word(at::FLAG), word(at::SYSTEM_FLAG)), (3, 5, 1));
    assert_eq!((long(at::QUEUE_OFFSET), long(at::PHYSICAL_OFFSET)), (7, 0x100));
    assert_eq!((long(at::BORN_TIMESTAMP), GOLDEN[at::BORN_HOST]), (0x1000, 10));
    assert_eq!((layout::store_timestamp_at(1), long(layout::store_timestamp_at(1))), (56, 0x1001));
    assert_eq!(layout::store_timestamp_at(layout::BORN_HOST_V6), 68);
}

#[test]
fn an_empty_body_has_no_checksum() {
    assert_eq!(body_crc(b""), 0);
    assert_eq!(body_crc(b"hi"), 0x5893_2AAC);
}

#[test]
fn a_long_topic_makes_a_v2_record() {
    let topic = [b't'; 128];
    let long = NewRecord { topic: &topic, ..golden() };
    let bytes = written(&long);
    assert_eq!(bytes.len(), 98 + 127 + 1);
    assert_eq!(bytes[4..8], [0xDA, 0xA3, 0x20, 0xAB]);
    assert_eq!(bytes[90..93], [0, 128, b't']);
    assert_eq!(Record::decode(&bytes).unwrap().topic, topic);
    let short = NewRecord { topic: &topic[..127], ..golden() };
    assert_eq!(written(&short)[4..8], GOLDEN[4..8]);
}

#[test]
fn hosts_set_the_flag_bits_themselves() {
    let v6: SocketAddr = "[fe80::1]:9".parse().unwrap();
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:50000".parse().unwrap();
    let lying = NewRecord { system_flag: 0x31, ..golden() };
    assert_eq!(written(&lying), GOLDEN, "bits that the hosts do not bear out are cleared");
    assert_eq!(written(&NewRecord { born_host: mapped, ..golden() }), GOLDEN);
    for (born, store, flag, size) in
        [(v6, golden().store_host, 0x11, 110), (golden().born_host, v6, 0x21, 110), (v6, v6, 0x31, 122)]
    {
        let bytes = written(&NewRecord { born_host: born, store_host: store, ..golden() });
        let record = Record::decode(&bytes).unwrap();
        assert_eq!((record.born_host, record.store_host), (born, store));
        assert_eq!((record.system_flag, record.size), (flag, size));
        assert_eq!(record.body, b"hi");
    }
}

#[test]
fn check_refuses_what_the_lengths_cannot_say() {
    let long = vec![b'x'; 32_768];
    assert!(NewRecord { topic: b"", ..golden() }.laid_out(false).is_err());
    assert!(NewRecord { topic: &long[..256], ..golden() }.laid_out(false).is_err());
    assert!(NewRecord { topic: &long[..255], ..golden() }.laid_out(false).is_ok());
    assert!(NewRecord { properties: [&long[..32_767], b"", b""], ..golden() }.laid_out(false).is_ok());
    assert!(NewRecord { properties: [&long[..32_767], b"", b"x"], ..golden() }.laid_out(false).is_err());
}

#[test]
fn every_cut_and_every_wrong_length_is_an_error() {
    for length in 0..GOLDEN.len() {
        assert!(Record::decode(&GOLDEN[..length]).is_err(), "{length} bytes");
    }
    // size, magic, a v6 flag, ports past 65535, body, topic and properties lengths
    let wrong = [
        (0, 0x80),
        (3, 97),
        (3, 90),
        (7, 0),
        (39, 0x11),
        (39, 0x21),
        (53, 1),
        (69, 1),
        (84, 0xFF),
        (87, 1),
        (87, 3),
        (90, 0),
        (90, 0x81),
        (92, 0x80),
        (93, 3),
        (93, 5),
    ];
    for (at, byte) in wrong {
        let mut bytes = GOLDEN;
        bytes[at] = byte;
        assert!(matches!(Record::decode(&bytes), Err(WireError::BadRecord(_))), "byte {at}");
    }
    let mut blank = GOLDEN;
    blank[4..8].copy_from_slice(&layout::MAGIC_BLANK.to_be_bytes());
    assert_eq!(Record::decode(&blank), Err(WireError::BadRecord("unknown magic")));
}

#[test]
fn a_damaged_body_is_told() {
    let mut bytes = GOLDEN;
    bytes[88] ^= 1;
    assert!(!Record::decode(&bytes).unwrap().crc_matches());
}

fn any_host() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
}

proptest! {
    #[test]
    fn round_trip(
        numbers: (i32, i32, i32, i32), times: (i64, i64, i64, i64, i64),
        (born_host, store_host) in (any_host(), any_host()),
        topic in prop::collection::vec(any::<u8>(), 1..256),
        body in prop::collection::vec(any::<u8>(), 0..200),
        properties in prop::array::uniform3(prop::collection::vec(any::<u8>(), 0..60)),
    ) {
        let [first, second, third] = &properties;
        let new = NewRecord {
            topic: &topic, queue_id: numbers.0, flag: numbers.1, system_flag: numbers.2,
            born_timestamp_ms: times.0, born_host, store_host, reconsume_times: numbers.3,
            prepared_transaction_offset: times.1, body: &body, body_crc: body_crc(&body),
            properties: [first, second, third],
        };
        let place = new.encode(times.2, times.3, times.4).unwrap();
        let read = Record::decode(&place).unwrap();
        let hosts = BORN_HOST_V6 | STORE_HOST_V6;
        prop_assert_eq!(read.size, place.len());
        prop_assert_eq!((read.queue_id, read.flag, read.reconsume_times), (numbers.0, numbers.1, numbers.3));
        prop_assert_eq!(read.system_flag & !hosts, numbers.2 & !hosts);
        prop_assert_eq!((read.born_timestamp_ms, read.prepared_transaction_offset), (times.0, times.1));
        prop_assert_eq!((read.queue_offset, read.physical_offset, read.store_timestamp_ms), (times.2, times.3, times.4));
        prop_assert_eq!((read.born_host, read.store_host), (born_host, store_host));
        prop_assert_eq!((read.topic, read.body), (&topic[..], &body[..]));
        let own = properties.concat();
        let unmarked = own.iter().position(|byte| *byte != MARK).map_or(&[][..], |at| &own[at..]);
        prop_assert_eq!(read.properties, unmarked);
        prop_assert!(read.crc_matches());
    }

    #[test]
    fn never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..160), size in 0u8..160) {
        crate::fuzzing::record(&bytes);
        // After size and magic, which random bytes never hit.
        if let Some(start) = bytes.get_mut(..8) {
            start.copy_from_slice(&[0, 0, 0, size, 0xDA, 0xA3, 0x20, 0xA7]);
        }
        crate::fuzzing::record(&bytes);
    }
}
