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
    /// Fails where body or properties are longer than their length fields can say.
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

/// The messages of a batch body; the first wrong one is told and ends it.
pub fn batch_records(body: &[u8]) -> BatchRecords<'_> {
    BatchRecords { reader: Reader::new(body) }
}

#[derive(Clone)]
pub struct BatchRecords<'a> {
    reader: Reader<'a>,
}

impl<'a> BatchRecords<'a> {
    /// ```text
    /// | size: i32 | magic: i32 | body crc: i32 | flag: i32 |      magic and crc are 0 and not looked at
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
