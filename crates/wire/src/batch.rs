//! The body of SEND_BATCH_MESSAGE: messages of one topic, back to back.

use crate::bytes::Reader;
use crate::error::WireError;

/// Bytes of a batch record apart from body and properties.
const FIXED_BYTES: usize = 22;

/// One message of a batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

impl BatchRecord<'_> {
    /// Appends the record as a client would send it.
    ///
    /// Fails if body or properties do not fit their length fields.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let size = FIXED_BYTES.saturating_add(self.body.len()).saturating_add(self.properties.len());
        let size = i32::try_from(size).map_err(|_| WireError::BadBatch("body too long"))?;
        let body_length = i32::try_from(self.body.len()).map_err(|_| WireError::BadBatch("body too long"))?;
        let properties_length =
            i16::try_from(self.properties.len()).map_err(|_| WireError::BadBatch("properties too long"))?;
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&body_length.to_be_bytes());
        out.extend_from_slice(self.body);
        out.extend_from_slice(&properties_length.to_be_bytes());
        out.extend_from_slice(self.properties);
        Ok(())
    }
}

/// Iterates over the messages of a batch body. The first malformed one yields an error and ends the iteration.
pub fn batch_records(body: &[u8]) -> BatchRecords<'_> {
    BatchRecords { reader: Reader::new(body) }
}

#[derive(Clone)]
pub struct BatchRecords<'a> {
    reader: Reader<'a>,
}

impl<'a> BatchRecords<'a> {
    /// ```text
    /// | size: i32 | magic: i32 | body crc: i32 | flag: i32 |      magic and crc are 0 and ignored
    /// | body length: i32 | body | properties length: i16 | properties |
    /// ```
    fn record(&mut self) -> Result<BatchRecord<'a>, WireError> {
        let available = self.reader.remaining();
        let mut peek = self.reader;
        let size = peek.i32().ok_or(WireError::BadBatch("ends within a record"))?;
        let size = usize::try_from(size).map_err(|_| WireError::BadBatch("negative record size"))?;
        if size > available {
            return Err(WireError::BadBatch("record runs past the end"));
        }
        let record = self.reader.take(size).map(Reader::new);
        record.and_then(parts).ok_or(WireError::BadBatch("lengths of a record do not fit its size"))
    }
}

/// Body and properties of one record; `None` unless they fill it exactly.
fn parts(mut record: Reader<'_>) -> Option<BatchRecord<'_>> {
    record.take(12)?;
    let flag = record.i32()?;
    let body_length = usize::try_from(record.i32()?).ok()?;
    let body = record.take(body_length)?;
    let properties_length = usize::try_from(record.i16()?).ok()?;
    let properties = record.take(properties_length)?;
    record.is_empty().then_some(BatchRecord { flag, body, properties })
}

impl<'a> Iterator for BatchRecords<'a> {
    type Item = Result<BatchRecord<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(record)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: [u8; 28] = [
        0, 0, 0, 28, // size: 22 + body 2 + properties 4
        0, 0, 0, 0, // magic
        0, 0, 0, 0, // body crc
        0, 0, 0, 9, // flag
        0, 0, 0, 2, b'h', b'i', // body
        0, 4, b'a', 1, b'b', 2, // properties
    ];

    fn whole(body: &[u8]) -> Result<Vec<BatchRecord<'_>>, WireError> {
        batch_records(body).collect()
    }

    #[test]
    fn reads_and_writes_the_golden_record() {
        let record = BatchRecord { flag: 9, body: b"hi", properties: b"a\x01b\x02" };
        let twice = [GOLDEN, GOLDEN].concat();
        assert_eq!(whole(&twice), Ok(vec![record, record]));
        let mut written = Vec::new();
        record.encode(&mut written).unwrap();
        assert_eq!(written, GOLDEN);
    }

    #[test]
    fn nothing_is_an_empty_batch() {
        assert_eq!(whole(b""), Ok(vec![]));
    }

    #[test]
    fn every_cut_is_an_error() {
        let twice = [GOLDEN, GOLDEN].concat();
        for length in (1..twice.len()).filter(|length| *length != GOLDEN.len()) {
            assert!(whole(&twice[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn lengths_must_fit_exactly() {
        for (at, wrong) in
            [(0, 0x80), (3, 27), (3, 0), (3, 3), (16, 0xFF), (19, 1), (19, 3), (22, 0x80), (23, 3), (23, 5)]
        {
            let mut bytes = GOLDEN;
            bytes[at] = wrong;
            let mut records = batch_records(&bytes);
            assert!(matches!(records.next(), Some(Err(WireError::BadBatch(_)))), "byte {at}");
            assert_eq!(records.next(), None, "an error ends the walk");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let properties = vec![b'p'; 32_768];
        let mut out = Vec::new();
        let record = BatchRecord { flag: 0, body: b"", properties: &properties };
        assert!(record.encode(&mut out).is_err());
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn round_trip(messages in prop::collection::vec(
            (any::<i32>(), prop::collection::vec(any::<u8>(), 0..50), prop::collection::vec(any::<u8>(), 0..50)), 0..6,
        )) {
            let records: Vec<_> = messages
                .iter()
                .map(|(flag, body, properties)| BatchRecord { flag: *flag, body, properties })
                .collect();
            let mut out = Vec::new();
            for record in &records {
                record.encode(&mut out).unwrap();
            }
            prop_assert_eq!(whole(&out), Ok(records));
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            crate::fuzzing::batch(&bytes);
        }
    }
}
