//! Tables as Arrow lays them out, and tables that lie.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::produce::testing::{SentMessage, TOPIC, TestBuffer};

const LIMITS: RowLimits = RowLimits { body_bytes_max: 100, batch_bytes_max: 1000, is_half: false };

/// Owns the memory of a column of texts.
struct Texts {
    data: Vec<u8>,
    offsets: Vec<u8>,
    validity: Vec<u8>,
}

impl Texts {
    fn new<T: AsRef<[u8]>>(values: &[Option<T>]) -> Texts {
        let (mut data, mut offsets) = (Vec::new(), 0_i32.to_le_bytes().to_vec());
        for value in values {
            data.extend_from_slice(value.as_ref().map(AsRef::as_ref).unwrap_or_default());
            offsets.extend_from_slice(&i32::try_from(data.len()).unwrap().to_le_bytes());
        }
        Texts { data, offsets, validity: bits(values.iter().map(Option::is_some)) }
    }

    fn column(&self) -> VariableColumn<'_> {
        VariableColumn {
            data: &self.data,
            offsets: &self.offsets,
            validity: Some(&self.validity),
            first_bit: 0,
        }
    }
}

struct Numbers {
    values: Vec<u8>,
    validity: Vec<u8>,
}

impl Numbers {
    fn new(values: &[Option<i64>]) -> Numbers {
        let bytes = values.iter().flat_map(|value| value.unwrap_or(0).to_le_bytes()).collect();
        Numbers { values: bytes, validity: bits(values.iter().map(Option::is_some)) }
    }

    fn column(&self) -> NumberColumn<'_> {
        NumberColumn { values: &self.values, validity: Some(&self.validity), first_bit: 0 }
    }
}

fn bits(valid: impl ExactSizeIterator<Item = bool>) -> Vec<u8> {
    let mut bits = vec![0; valid.len() / 8 + 1];
    for (row, is_valid) in valid.enumerate() {
        bits[row / 8] |= u8::from(is_valid) << (row % 8);
    }
    bits
}

fn table(bodies: VariableColumn<'_>, count: usize) -> Rows<'_> {
    Rows {
        count,
        topic: Some(TOPIC),
        topics: None,
        bodies,
        tags: None,
        keys: None,
        properties: None,
        sharding_keys: None,
        brokers: None,
        queue_ids: None,
        delay_levels: None,
        deliver_ms: None,
    }
}

fn put(rows: Rows<'_>) -> Result<Vec<SentMessage>, (usize, String)> {
    let test = TestBuffer::start(1 << 20, None);
    let outcome = RowWriter::new(&test.buffer, LIMITS, rows).put();
    let messages = test.into_messages();
    match outcome {
        RowsPut::All => Ok(messages),
        RowsPut::Invalid { row, reason } => Err((row, reason)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn columns_become_messages() {
    let bodies = Texts::new(&[Some("one"), Some(""), Some("three")]);
    let tags = Texts::new(&[Some("a"), Some(""), None]);
    let keys = Texts::new(&[Some("k1 k2"), None, Some("")]);
    let (names, values) = (Texts::new(&[Some("x"), Some("y")]), Texts::new(&[Some("1"), Some("2")]));
    let map_offsets: Vec<u8> = [0_i32, 1, 1, 2].iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let properties = MapColumn {
        offsets: &map_offsets,
        validity: None,
        first_bit: 0,
        names: names.column(),
        values: values.column(),
    };
    let queue_ids = Numbers::new(&[Some(1), None, Some(0)]);
    let brokers = Texts::new(&[None, None, Some("b")]);
    let levels = Numbers::new(&[None, Some(0), Some(3)]);
    let rows = Rows {
        tags: Some(tags.column()),
        keys: Some(keys.column()),
        properties: Some(properties),
        queue_ids: Some(queue_ids.column()),
        brokers: Some(brokers.column()),
        delay_levels: Some(levels.column()),
        ..table(bodies.column(), 3)
    };
    let message = |body: &str, properties: &[(&str, &str)], queue: Option<(&str, i32)>, is_alone| {
        let named = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        SentMessage {
            body: body.as_bytes().to_vec(),
            properties: named.collect(),
            queue: queue.map(|(broker, id)| (broker.to_owned(), id)),
            is_alone,
        }
    };
    let mut found = put(rows).unwrap();
    found.sort();
    let one = [("x", "1"), ("TAGS", "a"), ("KEYS", "k1 k2")];
    let three = [("y", "2"), ("DELAY", "3")];
    let expected = [
        message("", &[], None, false),
        message("one", &one, Some(("a", 1)), false),
        message("three", &three, Some(("b", 0)), true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_slice_begins_where_its_first_offset_and_bit_say() {
    let offsets: Vec<u8> = [10_i32, 11, 13].iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let bodies = VariableColumn { data: b"bcd", offsets: &offsets, validity: Some(&[0x18]), first_bit: 3 };
    let bodies: Vec<_> = put(table(bodies, 2)).unwrap().into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, [b"b".to_vec(), b"cd".to_vec()]);
}

#[test]
fn half_messages_hold_rows_that_would_otherwise_go_alone() {
    let test = TestBuffer::start(1 << 20, Some("TRAN_MSG\u{1}true\u{2}"));
    let bodies = Texts::new(&[Some("a"), Some("b")]);
    let levels = Numbers::new(&[Some(2), None]);
    let rows = Rows { delay_levels: Some(levels.column()), ..table(bodies.column(), 2) };
    let limits = RowLimits { is_half: true, ..LIMITS };
    assert_eq!(RowWriter::new(&test.buffer, limits, rows).put(), RowsPut::All);
    assert!(test.into_messages().iter().all(|message| !message.is_alone));
}

#[test]
fn a_full_buffer_lets_a_writer_wait_in_line() {
    let test = TestBuffer::start(200, None);
    let bodies = Texts::new(&[Some([1; 100]), Some([2; 100])]);
    let mut writer = RowWriter::new(&test.buffer, LIMITS, table(bodies.column(), 2));
    assert_eq!(writer.put(), RowsPut::Full);
    assert!(!writer.wait(Duration::from_millis(1)));
    assert_eq!(writer.put(), RowsPut::Full, "a writer that comes too early stands at the end of the line");
    drop(writer);
    let small = Texts::new(&[Some("x")]);
    let outcome = RowWriter::new(&test.buffer, LIMITS, table(small.column(), 1)).put();
    assert_eq!(outcome, RowsPut::All, "a writer that is dropped leaves the line");
    test.buffer.close();
    let outcome = RowWriter::new(&test.buffer, LIMITS, table(small.column(), 1)).put();
    assert_eq!(outcome, RowsPut::Closed);
}

#[test]
fn the_first_invalid_row_is_named() {
    let bodies = Texts::new(&[Some("a"), Some("b")]);
    let good = table(bodies.column(), 2);
    let expect = |rows: Rows<'_>, row: usize, reason: &str| {
        let (found, text) = put(rows).unwrap_err();
        assert!(found == row && text.contains(reason), "{found}: {text}");
    };
    let texts = |first: Option<&str>, second: Option<&str>| Texts::new(&[first, second]);
    let numbers = |first, second| Numbers::new(&[first, second]);
    let null = texts(Some("a"), None);
    expect(Rows { bodies: null.column(), ..good }, 1, "body is null");
    let long = "x".repeat(101);
    let long = texts(Some("a"), Some(&long));
    expect(Rows { bodies: long.column(), ..good }, 1, "101 bytes: at most 100");
    expect(Rows { topic: None, ..good }, 0, "topic is null");
    let named = texts(Some("t"), None);
    expect(Rows { topic: None, topics: Some(named.column()), ..good }, 1, "topic is null");
    let pair = texts(Some("a||b"), None);
    expect(Rows { tags: Some(pair.column()), ..good }, 0, "||");
    let separator = texts(None, Some("a\u{1}b"));
    expect(Rows { tags: Some(separator.column()), ..good }, 1, "character 1");
    let bytes = Texts::new(&[None, Some(b"\xff")]);
    expect(Rows { keys: Some(bytes.column()), ..good }, 1, "keys is not UTF-8");
    let many = "k".repeat(40_000);
    let many = texts(Some(&many), None);
    expect(Rows { keys: Some(many.column()), ..good }, 0, "more than 32767");
    let ids = numbers(Some(0), None);
    expect(Rows { queue_ids: Some(ids.column()), ..good }, 0, "several brokers");
    let ids = numbers(None, Some(7));
    expect(Rows { queue_ids: Some(ids.column()), ..good }, 1, "queueId is 7");
    let broker = texts(Some("a"), None);
    expect(Rows { brokers: Some(broker.column()), ..good }, 0, "without queueId");
    let (ids, keys) = (numbers(Some(1), Some(1)), texts(None, Some("k")));
    let both = Rows { queue_ids: Some(ids.column()), sharding_keys: Some(keys.column()), ..good };
    expect(both, 1, "both");
    let key = texts(Some("k"), None);
    expect(Rows { topic: Some("other"), sharding_keys: Some(key.column()), ..good }, 0, "no route");
    let levels = numbers(Some(-1), Some(0));
    expect(Rows { delay_levels: Some(levels.column()), ..good }, 0, "delayLevel is -1");
    let (levels, times) = (numbers(Some(1), Some(1)), numbers(None, Some(5)));
    let both = Rows { delay_levels: Some(levels.column()), deliver_ms: Some(times.column()), ..good };
    expect(both, 1, "both");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tables_come_out_as_they_went_in(
        given in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..50), prop::option::of("[a-z]{1,5}")), 0..30),
    ) {
        let bodies = Texts::new(&given.iter().map(|(body, _)| Some(body)).collect::<Vec<_>>());
        let tags = Texts::new(&given.iter().map(|(_, tag)| tag.as_ref()).collect::<Vec<_>>());
        let rows = Rows { tags: Some(tags.column()), ..table(bodies.column(), given.len()) };
        let found: Vec<_> =
            put(rows).unwrap().into_iter().map(|message| (message.body, message.properties)).collect();
        let expected: Vec<_> = given
            .into_iter()
            .map(|(body, tag)| {
                (body, tag.map(|tag| ("TAGS".to_owned(), tag)).into_iter().collect::<BTreeMap<_, _>>())
            })
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn columns_that_lie_are_refused_and_read_nothing_else(
        data in prop::collection::vec(any::<u8>(), 0..40),
        offsets in prop::collection::vec(prop_oneof![any::<i32>(), 0..40_i32], 0..6),
        validity in prop::option::of(prop::collection::vec(any::<u8>(), 0..2)),
        count in 0..6_usize,
        first_bit in prop_oneof![0..20_usize, any::<usize>()],
    ) {
        let offsets: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let validity = validity.as_deref();
        let wild = VariableColumn { data: &data, offsets: &offsets, validity, first_bit };
        let sound = Texts::new(&vec![Some("x"); count]);
        let map = MapColumn { offsets: &offsets, validity, first_bit, names: wild, values: wild };
        let numbers = NumberColumn { values: &data, validity, first_bit };
        for rows in [
            table(wild, count),
            Rows { properties: Some(map), ..table(sound.column(), count) },
            Rows { queue_ids: Some(numbers), ..table(sound.column(), count) },
        ] {
            if let Err((row, _)) = put(rows) {
                prop_assert!(row < count);
            }
        }
    }
}
