//! Columns read back as Arrow reads them, and compared with the records they were made of.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::compression::{CompressionFormat, compress};
use crate::consume::testing::TestRecord;

fn source() -> RowSource {
    RowSource {
        topic: "orders".to_owned(),
        broker: "broker-a".to_owned(),
        queue_id: 3,
        hidden_names: HashSet::from(["UNIQ_KEY".to_owned()]),
        inflated_bytes_max: 1000,
    }
}

fn offsets(buffer: &[u8]) -> Vec<usize> {
    buffer.chunks_exact(4).map(|four| i32::from_le_bytes(*four.first_chunk().unwrap()) as usize).collect()
}

fn numbers(column: &ColumnBuffers) -> Vec<i64> {
    assert_eq!((column.nulls, &column.buffers[0]), (0, &None));
    let values = column.buffers[1].as_ref().unwrap();
    values.chunks_exact(8).map(|eight| i64::from_le_bytes(*eight.first_chunk().unwrap())).collect()
}

fn values(offsets_buffer: &[u8], bytes: &[u8]) -> Vec<Vec<u8>> {
    offsets(offsets_buffer).windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

fn variable(column: &ColumnBuffers) -> Vec<Option<Vec<u8>>> {
    let [validity, offsets, bytes] = &column.buffers[..] else { panic!("three buffers") };
    let is_valid = |row: usize| validity.as_ref().is_none_or(|bits| (bits[row / 8] >> (row % 8)) & 1 == 1);
    let all = values(offsets.as_ref().unwrap(), bytes.as_ref().unwrap());
    let rows: Vec<_> =
        all.into_iter().enumerate().map(|(row, value)| is_valid(row).then_some(value)).collect();
    assert_eq!(rows.iter().filter(|row| row.is_none()).count(), column.nulls);
    assert_eq!(validity.is_none(), column.nulls == 0);
    rows
}

fn map(column: &ColumnBuffers) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let buffers: Vec<&[u8]> = column.buffers.iter().map(|buffer| buffer.as_deref().unwrap()).collect();
    let (names, items) = (values(buffers[1], buffers[2]), values(buffers[3], buffers[4]));
    let pairs: Vec<_> = names.into_iter().zip(items).collect();
    offsets(buffers[0]).windows(2).map(|pair| pairs[pair[0]..pair[1]].to_vec()).collect()
}

fn build(columns: &[Column], records: &[Vec<u8>]) -> Vec<ColumnBuffers> {
    let source = source();
    let mut builder = ColumnsBuilder::new(&source, columns);
    for record in records {
        builder.push(&Record::decode(record).unwrap()).unwrap();
    }
    assert_eq!(builder.rows(), records.len());
    builder.finish()
}

#[test]
fn every_column_has_the_name_that_spark_shows() {
    let names = [
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "msgId",
        "keys",
        "tags",
        "body",
        "bornTimestamp",
        "storeTimestamp",
        "sysFlag",
        "reconsumeTimes",
        "properties",
    ];
    let columns: HashSet<String> =
        names.iter().map(|name| format!("{:?}", Column::from_name(name).unwrap())).collect();
    assert_eq!(columns.len(), names.len());
    assert_eq!(Column::from_name("offset"), None);
}

#[test]
fn a_row_is_read_from_its_record_and_its_source() {
    let properties = b"TAGS\x01red\x02a\x011\x02UNIQ_KEY\x01id\x02a\x012\x02";
    let records = [TestRecord { properties, ..TestRecord::at(5) }.encode(), TestRecord::at(6).encode()];
    let wanted = [
        Column::Topic,
        Column::BrokerName,
        Column::QueueOffset,
        Column::MessageId,
        Column::Keys,
        Column::Tags,
        Column::Body,
        Column::Properties,
    ];
    let found = build(&wanted, &records);
    let text = |value: &str| Some(value.as_bytes().to_vec());
    assert_eq!(variable(&found[0]), [text("orders"), text("orders")]);
    assert_eq!(variable(&found[1]), [text("broker-a"), text("broker-a")]);
    assert_eq!(numbers(&found[2]), [5, 6]);
    assert_eq!(variable(&found[3]), [text("id"), text("7F00000100002A9F00000000000003EE")]);
    assert_eq!(variable(&found[4]), [None, None]);
    assert_eq!(variable(&found[5]), [text("red"), None]);
    assert_eq!(variable(&found[6]), [text("body"), text("body")]);
    let expected = vec![(b"TAGS".to_vec(), b"red".to_vec()), (b"a".to_vec(), b"2".to_vec())];
    assert_eq!(map(&found[7]), [expected, vec![]]);
}

#[test]
fn times_end_where_the_dates_of_python_do() {
    let records = [i64::MIN, 1, i64::MAX]
        .map(|born_timestamp_ms| TestRecord { born_timestamp_ms, ..TestRecord::at(0) }.encode());
    let found = build(&[Column::BornTimestamp], &records);
    assert_eq!(numbers(&found[0]), [TIMES_MS.0 * 1000, 1000, TIMES_MS.1 * 1000]);
}

#[test]
fn a_body_that_cannot_be_decompressed_is_null_and_the_row_stays() {
    let good = compress(CompressionFormat::Zlib, &[7; 500]).unwrap();
    let long = compress(CompressionFormat::Zlib, &[7; 2000]).unwrap();
    let source = source();
    let mut builder = ColumnsBuilder::new(&source, &[Column::QueueOffset, Column::Body]);
    let outcomes: Vec<bool> = [&good[..], &long, b"damaged", &good]
        .into_iter()
        .enumerate()
        .map(|(row, body)| {
            let bytes =
                TestRecord { body, system_flag: COMPRESSED_FLAG, ..TestRecord::at(row as i64) }.encode();
            builder.push(&Record::decode(&bytes).unwrap()).is_ok()
        })
        .collect();
    assert_eq!(outcomes, [true, false, false, true]);
    assert_eq!(builder.bytes(), 1000);
    let found = builder.finish();
    assert_eq!(numbers(&found[0]), [0, 1, 2, 3]);
    assert_eq!(variable(&found[1]), [Some(vec![7; 500]), None, None, Some(vec![7; 500])]);
}

proptest! {
    #[test]
    fn texts_and_nulls_come_back_in_their_rows(tags in prop::collection::vec(prop::option::of("[a-z]{1,5}"), 0..40)) {
        let records: Vec<Vec<u8>> = tags
            .iter()
            .map(|tag| {
                let properties = tag.as_ref().map(|tag| format!("TAGS\u{1}{tag}\u{2}")).unwrap_or_default();
                TestRecord { properties: properties.as_bytes(), ..TestRecord::at(0) }.encode()
            })
            .collect();
        let found = build(&[Column::Tags], &records);
        let expected: Vec<_> = tags.into_iter().map(|tag| tag.map(String::into_bytes)).collect();
        prop_assert_eq!(variable(&found[0]), expected);
    }

    #[test]
    fn of_several_properties_with_one_name_the_last_counts(
        given in prop::collection::vec(("[a-d]|UNIQ_KEY", "[a-z]{1,3}"), 0..40),
    ) {
        let properties: String = given.iter().flat_map(|(name, value)| [name.as_str(), "\u{1}", value, "\u{2}"]).collect();
        let record = TestRecord { properties: properties.as_bytes(), ..TestRecord::at(0) }.encode();
        let found: HashMap<Vec<u8>, Vec<u8>> = map(&build(&[Column::Properties], &[record])[0]).remove(0).into_iter().collect();
        let expected: HashMap<Vec<u8>, Vec<u8>> = given
            .into_iter()
            .filter(|(name, _)| name != "UNIQ_KEY")
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn texts_are_utf8_whatever_was_sent(properties in prop::collection::vec(any::<u8>(), 0..60)) {
        let record = TestRecord { properties: &properties, ..TestRecord::at(0) }.encode();
        let found = build(&[Column::Tags, Column::Keys, Column::MessageId, Column::Properties], &[record]);
        for buffer in found.iter().filter_map(|column| column.buffers[2].as_ref()) {
            prop_assert!(std::str::from_utf8(buffer).is_ok());
        }
        prop_assert_eq!(map(&found[3]).len(), 1);
    }
}
