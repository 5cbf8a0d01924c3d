//! Finds the records in the body of a pull, and answers what a message shows of its record.

use std::borrow::Cow;

use bytes::Bytes;
use metaq_wire::properties::find;
use metaq_wire::{MessageIds, Record, WireError, layout};

use crate::compression::COMPRESSED_FLAG;

pub(crate) const TAGS: &str = "TAGS";
pub(crate) const KEYS: &str = "KEYS";
pub(crate) const UNIQUE_KEY: &str = "UNIQ_KEY";
const RETRY_TOPIC: &str = "RETRY_TOPIC";

/// The wanted records of one pull's body, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    pub body: Bytes,
    /// Byte positions in `body`; a whole record begins at each.
    pub positions: Vec<u32>,
    /// Which bodies are compressed, in the order of `positions`. Empty if none is; entries after the last compressed
    /// one may be missing.
    pub compressed: Vec<bool>,
}

impl Records {
    /// Finds the records from `from_offset` on that `is_wanted` accepts. Every record is checked whole, wanted or not.
    pub fn find(
        body: Bytes,
        from_offset: i64,
        is_wanted: impl Fn(&Record<'_>) -> bool,
    ) -> Result<Records, WireError> {
        let (mut positions, mut compressed) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
            let record = Record::decode(rest)?;
            if record.queue_offset >= from_offset && is_wanted(&record) {
                if record.system_flag & COMPRESSED_FLAG != 0 {
                    compressed.resize(positions.len(), false);
                    compressed.push(true);
                }
                positions.push(
                    u32::try_from(at).map_err(|_| WireError::BadRecord("begins too far into the body"))?,
                );
            }
            // A decoded record is at least as long as its header, so this loop ends.
            at += record.size.max(1);
        }
        Ok(Records { body, positions, compressed })
    }

    pub(crate) fn queue_offset(&self, number: usize) -> Option<i64> {
        queue_offset_at(&self.body, *self.positions.get(number)? as usize)
    }
}

/// Whether a record has one of these tags; an empty list accepts every record. Brokers compare only the hashes of
/// tags, so clients compare the tags themselves.
pub fn has_wanted_tag(record: &Record<'_>, tags: &[String]) -> bool {
    tags.is_empty()
        || find(record.properties, TAGS)
            .is_some_and(|tag| tags.iter().any(|wanted| *wanted == String::from_utf8_lossy(tag)))
}

/// The queue offset of the record that begins at this position, without decoding the record.
pub fn queue_offset_at(body: &[u8], at: usize) -> Option<i64> {
    let bytes = body.get(at.checked_add(layout::at::QUEUE_OFFSET)?..)?.first_chunk()?;
    Some(i64::from_be_bytes(*bytes))
}

/// Whether the body of the record that begins at this position is compressed.
pub fn is_compressed_at(body: &[u8], at: usize) -> bool {
    let flag = || {
        let bytes = body.get(at.checked_add(layout::at::SYSTEM_FLAG)?..)?.first_chunk()?;
        Some(i32::from_be_bytes(*bytes))
    };
    flag().is_some_and(|flag| flag & COMPRESSED_FLAG != 0)
}

pub fn is_compressed(record: &Record<'_>) -> bool {
    record.system_flag & COMPRESSED_FLAG != 0
}

/// The id that the sender's client gave, or the offset id if there is none.
pub fn message_id<'a>(record: &Record<'a>) -> Cow<'a, str> {
    match find(record.properties, UNIQUE_KEY) {
        Some(id) => String::from_utf8_lossy(id),
        None => Cow::Owned(offset_id(record)),
    }
}

/// The id that the broker gave: its address and the physical offset.
pub fn offset_id(record: &Record<'_>) -> String {
    MessageIds::of(record.store_host).at(record.physical_offset).to_owned()
}

pub fn tag<'a>(record: &Record<'a>) -> Option<Cow<'a, str>> {
    find(record.properties, TAGS).map(String::from_utf8_lossy)
}

/// All keys in one text, separated by white space.
pub fn joined_keys<'a>(record: &Record<'a>) -> Option<Cow<'a, str>> {
    find(record.properties, KEYS).map(String::from_utf8_lossy)
}

/// The topic that the message was first sent to, if it came through a retry topic.
pub fn first_topic<'a>(record: &Record<'a>) -> Option<Cow<'a, str>> {
    find(record.properties, RETRY_TOPIC).map(String::from_utf8_lossy)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::consume::testing::TestRecord;
    use proptest::prelude::*;

    #[test]
    fn a_message_shows_what_its_record_says() {
        let properties = b"TAGS\x01red\x02KEYS\x01a b\x02UNIQ_KEY\x01id\x02RETRY_TOPIC\x01first\x02";
        let bytes = TestRecord { properties, ..TestRecord::at(7) }.encode();
        let record = Record::decode(&bytes).unwrap();
        assert_eq!((message_id(&record).as_ref(), tag(&record).as_deref()), ("id", Some("red")));
        assert_eq!(joined_keys(&record).as_deref(), Some("a b"));
        assert_eq!(first_topic(&record).as_deref(), Some("first"));
        assert!(has_wanted_tag(&record, &[]) && has_wanted_tag(&record, &["red".to_owned()]));
        assert!(!has_wanted_tag(&record, &["blue".to_owned()]));
        assert_eq!((queue_offset_at(&bytes, 0), queue_offset_at(&bytes, bytes.len())), (Some(7), None));
    }

    #[test]
    fn without_a_unique_id_the_offset_id_is_shown() {
        let bytes = TestRecord::at(7).encode();
        let record = Record::decode(&bytes).unwrap();
        assert_eq!(message_id(&record), "7F00000100002A9F00000000000003EF");
        assert_eq!((tag(&record), first_topic(&record)), (None, None));
        assert!(!has_wanted_tag(&record, &["red".to_owned()]));
    }

    proptest! {
        #[test]
        fn wanted_records_are_found_at_their_positions(
            given in prop::collection::vec((0..50_i64, any::<bool>(), any::<bool>()), 0..20),
            from_offset in 0..50_i64,
        ) {
            let encode = |(queue_offset, is_red, is_compressed): &(i64, bool, bool)| {
                let properties: &[u8] = if *is_red { b"TAGS\x01red\x02" } else { b"" };
                let system_flag = i32::from(*is_compressed);
                TestRecord { properties, system_flag, ..TestRecord::at(*queue_offset) }.encode()
            };
            let body = Bytes::from(given.iter().flat_map(encode).collect::<Vec<u8>>());
            let red = ["red".to_owned()];
            let found = Records::find(body, from_offset, |record| has_wanted_tag(record, &red)).unwrap();
            let expected: Vec<(i64, bool)> = given
                .iter()
                .filter(|(queue_offset, is_red, _)| *is_red && *queue_offset >= from_offset)
                .map(|(queue_offset, _, is_compressed)| (*queue_offset, *is_compressed))
                .collect();
            let read: Vec<(i64, bool)> = (0..found.positions.len())
                .map(|number| {
                    let at = found.positions[number] as usize;
                    let flagged = found.compressed.get(number).copied().unwrap_or_default();
                    assert_eq!(flagged, is_compressed_at(&found.body, at));
                    (found.queue_offset(number).unwrap(), flagged)
                })
                .collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_are_records_or_an_error(
            body in prop::collection::vec(any::<u8>(), 0..200),
            damage in prop::collection::vec((0..400_usize, any::<u8>()), 0..4),
            at in any::<usize>(),
        ) {
            let _outcome = Records::find(Bytes::from(body.clone()), 0, |_| true);
            let (_offset, _flag) = (queue_offset_at(&body, at), is_compressed_at(&body, at));
            let mut damaged = TestRecord::at(1).encode();
            damaged.extend(TestRecord::at(2).encode());
            for (place, byte) in damage {
                let length = damaged.len();
                damaged[place % length] = byte;
            }
            if let Ok(records) = Records::find(Bytes::from(damaged), i64::MIN, |_| true) {
                for position in &records.positions {
                    prop_assert!(Record::decode(&records.body[*position as usize..]).is_ok());
                }
            }
        }
    }
}
