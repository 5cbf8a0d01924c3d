#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::properties::find;
use crate::record::{Expected, NewRecord, Record, body_crc};

fn new<'a>(properties: [&'a [u8]; 3], body: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        topic: b"orders",
        queue_id: 3,
        flag: 0x0102_0304,
        system_flag: 8,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: ([10, 0, 0, 1], 50_000).into(),
        store_host: ([127, 0, 0, 1], 10_911).into(),
        reconsume_times: 2,
        prepared_transaction_offset: 99,
        body,
        body_crc: body_crc(body),
        properties,
    }
}

fn written(record: &NewRecord<'_>, with_checksum: bool) -> Vec<u8> {
    let laid_out = record.laid_out(with_checksum).unwrap();
    let mut place = vec![0xEE; laid_out.size];
    laid_out.write(&mut place, 7, 0x100, 1_700_000_000_001);
    place
}

fn sealed() -> Vec<u8> {
    written(
        &new([b"KEYS\x01a b\x02TAGS\x01red", b"\x02UNIQ_KEY\x01k1\x02", b""], b"a body of a record"),
        true,
    )
}

/// The same without the mark in front, as Apache's broker writes it.
fn apaches() -> Vec<u8> {
    let mut record = sealed();
    let properties_at = 88 + 18 + 1 + 6;
    record.remove(properties_at + 2);
    let (size, length) = (record.len() as u32, (record.len() - properties_at - 2) as u16);
    record[..4].copy_from_slice(&size.to_be_bytes());
    record[properties_at..properties_at + 2].copy_from_slice(&length.to_be_bytes());
    seal(&mut record);
    record
}

fn is_sound(record: &[u8]) -> bool {
    Record::decode(record).is_ok_and(|record| record.crc_matches())
}

#[test]
fn a_record_ends_with_its_checksum() {
    let bytes = sealed();
    let (covered, property) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    let number = crc32fast::hash(covered) & 0x7FFF_FFFF;
    let digits: String = format!("{number:010}").chars().rev().collect();
    assert_eq!(property, format!("__CRC32#\u{1}{digits}\u{2}").as_bytes());
    let read = Record::decode(&bytes).unwrap();
    assert_eq!((read.coverage(), read.size), (Coverage::Record, bytes.len()));
    assert_eq!(read.properties, b"KEYS\x01a b\x02TAGS\x01red\x02UNIQ_KEY\x01k1\x02");
    assert!(read.crc_matches());
}

#[test]
fn numbers_are_written_with_the_least_significant_digit_first() {
    for number in
        [0, 1, 9, 10, 99, 100, 9_999, 10_000, 12_345_678, 99_999_999, 100_000_000, 0x7FFF_FFFF, u32::MAX]
    {
        let (low, high) = digits(number);
        let text: String = format!("{number:010}").chars().rev().collect();
        assert_eq!([&low[..], &high].concat(), text.as_bytes(), "{number}");
    }
}

/// A copy as brokers of the former version write it: the properties of the original without the mark, changed, and the
/// checksum of the original at their end.
fn copied() -> Vec<u8> {
    let original = sealed();
    let properties =
        [b"\x02DELAY\x013\x02UNIQ_KEY\x01k1\x02", &original[original.len() - CHECKSUM_BYTES..]].concat();
    let kept = [&properties[1..], b"", b""];
    let mut bytes = written(&new([kept[0], b"", b""], b"a body of a record"), false);
    // The writer of this version leaves the checksum out.
    let properties_at = 88 + 18 + 1 + 6;
    bytes.truncate(properties_at + 2);
    bytes[properties_at..].copy_from_slice(&(kept[0].len() as u16).to_be_bytes());
    bytes.extend(kept[0]);
    let size = bytes.len() as u32;
    bytes[..4].copy_from_slice(&size.to_be_bytes());
    bytes
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = sealed();
    assert!(is_sound(&good));
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_sound(&bytes), "bit {bit} of {}", bytes.len() * 8);
    }
}

#[test]
fn a_copy_with_the_checksum_of_its_original_is_sound() {
    let good = copied();
    let read = Record::decode(&good).unwrap();
    assert_eq!((read.coverage(), read.crc_matches()), (Coverage::Body, true));
    assert_eq!(read.properties, b"DELAY\x013\x02UNIQ_KEY\x01k1\x02");
    let body = 88..88 + 18;
    for at in body {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        assert!(!is_sound(&bytes), "byte {at} of the body");
    }
    for at in 115..good.len() {
        for damage in [0, 0xFF] {
            let mut bytes = good.clone();
            bytes[at] = damage;
            assert!(!is_sound(&bytes), "{damage} at {at} is no text");
        }
    }
    let bare = [&b"__CRC32#\x01"[..], b"0123456789\x02"].concat();
    let mut bytes = good[..113].to_vec();
    bytes.extend((bare.len() as u16).to_be_bytes());
    bytes.extend(&bare);
    let size = bytes.len() as u32;
    bytes[..4].copy_from_slice(&size.to_be_bytes());
    assert!(is_sound(&bytes), "it has no other property");
}

#[test]
fn damage_of_a_record_of_apache_is_noticed_in_its_body_and_its_lengths() {
    let good = apaches();
    assert!(is_sound(&good));
    let noticed = |byte: usize| {
        let mut bytes = good.clone();
        bytes[byte] ^= 1;
        !is_sound(&bytes)
    };
    // Sizes, magic, checksum of the body; the body with its length; the lengths of topic and properties.
    for byte in (0..12).chain(84..88 + 18 + 1).chain(113..115) {
        assert!(noticed(byte), "byte {byte}");
    }
    let mut unnoticed = good.clone();
    unnoticed[118] ^= 1;
    assert_eq!(Record::decode(&unnoticed).unwrap().coverage(), Coverage::Body, "like a copy");
    assert!(is_sound(&unnoticed));
}

#[test]
fn a_reader_knows_its_record_at_a_look() {
    let expected = Expected { topic: b"orders", queue_id: 3, queue_offset: 7, physical_offset: 0x100 };
    for good in [sealed(), apaches()] {
        assert!(expected.is_sealed(&good));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!expected.is_sealed(&bytes), "bit {bit}");
        }
        assert!(!expected.is_sealed(&good[..good.len() - 1]) && !expected.is_sealed(b""));
        assert!(!expected.is_sealed(&[&good[..], b"x"].concat()));
        for other in [
            Expected { topic: b"order", ..expected },
            Expected { queue_id: 2, ..expected },
            Expected { queue_offset: 8, ..expected },
            Expected { physical_offset: 0x101, ..expected },
        ] {
            assert!(!other.is_sealed(&good), "{other:?}");
        }
    }
    let uncovered = written(&new([b"TAGS\x01red\x02", b"", b""], b"body"), false);
    assert!(is_sound(&uncovered) && !expected.is_sealed(&uncovered));
    let v6 = NewRecord {
        born_host: ([0xFE80, 0, 0, 0, 0, 0, 0, 1], 9).into(),
        topic: &[b't'; 200],
        ..new([b""; 3], b"b")
    };
    assert!(Expected { topic: &[b't'; 200], ..expected }.is_sealed(&written(&v6, true)));
}

#[test]
fn what_is_missing_is_noticed() {
    let good = sealed();
    let properties_at = 88 + 18 + 1 + 6 + 2;
    for from in properties_at..good.len() {
        let mut bytes = good.clone();
        bytes[from..].fill(0);
        assert!(!is_sound(&bytes), "zeros from {from}");
        let mut bytes = good.clone();
        bytes[from + usize::from(from == properties_at)..].fill(b'x');
        assert!(!is_sound(&bytes), "other bytes from {from}");
    }
}

#[test]
fn a_record_of_apache_has_no_mark() {
    let bytes = apaches();
    let read = Record::decode(&bytes).unwrap();
    assert_eq!((read.coverage(), read.properties.first()), (Coverage::Record, Some(&b'K')));
    assert_eq!(find(read.properties, CHECKSUM_NAME), None);
}

#[test]
fn without_a_checksum_the_body_is_checked() {
    let mut bytes = written(&new([b"TAGS\x01red", b"", b""], b"body"), false);
    let read = Record::decode(&bytes).unwrap();
    assert_eq!((read.coverage(), read.properties), (Coverage::Body, &b"TAGS\x01red"[..]));
    assert!(read.crc_matches());
    bytes[90] ^= 1;
    assert!(!is_sound(&bytes));
}

#[test]
fn properties_without_room_go_without_a_checksum() {
    for (bytes, coverage) in [(32_746, Coverage::Record), (32_747, Coverage::Body), (32_767, Coverage::Body)]
    {
        let long = [&vec![b'x'; bytes - 1][..], &[VALUE_END]].concat();
        let record = written(&new([&long, b"", b""], b""), true);
        let read = Record::decode(&record).unwrap();
        assert_eq!((read.coverage(), read.properties.len()), (coverage, bytes));
        assert!(read.crc_matches());
    }
    let unended = vec![b'x'; 32_746];
    assert_eq!(
        Record::decode(&written(&new([&unended, b"", b""], b""), true)).unwrap().coverage(),
        Coverage::Body
    );
}

#[test]
fn nobody_makes_a_broker_write_a_record_that_counts_as_damaged() {
    let alike = b"__CRC33#\x010000000000\x02";
    let exact = b"__CRC32#\x010000000000\x02";
    let long = [&vec![b'x'; 32_700][..], b"\x02", exact].concat();
    let cases: [[&[u8]; 3]; 7] = [
        [b"\x02", b"", b""],
        [b"\x02\x02", b"\x02", b"A\x011"],
        [b"", b"\x02A\x011\x02", exact],
        [b"A\x011\x02", alike, b""],
        [exact, b"", b""],
        [&long, b"", b""],
        [b"A\x011\x02__CRC32#\x010000000000\x02__CRC32#\x010000000000\x02", b"", b""],
    ];
    for properties in cases {
        for with_checksum in [false, true] {
            assert!(
                is_sound(&written(&new(properties, b"x"), with_checksum)),
                "{properties:?} {with_checksum}"
            );
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_sound_and_read_again(
        properties in prop::array::uniform3("[a-c\u{1}\u{2}_CR32#]{0,30}"),
        body in prop::collection::vec(any::<u8>(), 0..300),
        with_checksum: bool,
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let parts = [properties[0].as_bytes(), properties[1].as_bytes(), properties[2].as_bytes()];
        let record = new(parts, &body);
        let mut bytes = written(&record, with_checksum);
        let read = Record::decode(&bytes).unwrap();
        prop_assert!(read.crc_matches());
        prop_assert_eq!(read.coverage() == Coverage::Record, with_checksum);
        prop_assert!(crate::properties::iterate(read.properties).eq(crate::properties::iterate(&parts.concat())));
        let (good, mark_at) = (bytes.clone(), bytes.len() - CHECKSUM_BYTES.min(bytes.len()) - read.properties.len() - 1);
        for flip in flips {
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // If the mark and something else is damaged, the record may pass for a copy.
        let may_be_copy = bytes[mark_at] != good[mark_at];
        prop_assert!(!with_checksum || may_be_copy || bytes == good || !is_sound(&bytes));
    }
}
