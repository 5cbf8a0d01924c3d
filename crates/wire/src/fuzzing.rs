//! The bodies of the fuzz targets: each decodes arbitrary bytes and, if that works, compares the decoder with the
//! encoder. `crates/wire/fuzz` runs them under libFuzzer; the tests below feed them damaged versions of
//! valid input, so that an ordinary test run goes through the same code.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use crate::batch::{BatchRecord, batch_records};
use crate::checksum::{CHECKSUM_BYTES, Coverage};
use crate::encode::FrameEncoder;
use crate::error::WireError;
use crate::frame::{Encoding, FRAME_BYTES_MAX, next_frame};
use crate::header::Header;
use crate::hot::{PullHeader, QueueHeader, SendHeader};
use crate::ids::{MessageIds, parse_message_id};
use crate::properties as stored_properties;
use crate::record::{NewRecord, Record, layout};

/// A JSON header, and the same bytes as a frame.
pub fn frame_json(bytes: &[u8]) {
    frame(bytes);
    header(Encoding::Json, bytes);
}

/// A binary header, and the same bytes as a frame.
pub fn frame_binary(bytes: &[u8]) {
    frame(bytes);
    header(Encoding::Binary, bytes);
}

fn frame(bytes: &[u8]) {
    if let Ok(Some(frame)) = next_frame(bytes, FRAME_BYTES_MAX) {
        assert_eq!(frame.header.len() + frame.body.len() + 8, frame.size);
        header(frame.encoding, frame.header);
    }
}

type Fields = Vec<(String, String)>;

fn all_fields(header: &Header<'_>) -> Fields {
    let owned = |field: Result<_, WireError>| {
        let (name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>) = field.unwrap();
        (name.into_owned(), value.into_owned())
    };
    header.fields().map(owned).collect()
}

fn header(encoding: Encoding, bytes: &[u8]) {
    let Ok(header) = Header::parse(encoding, bytes) else { return };
    let _ = (SendHeader::scan(&header), PullHeader::scan(&header), QueueHeader::scan(&header));
    let fields = all_fields(&header);
    // Replacing invalid UTF-8 can make names longer than the binary encoding allows.
    if encoding == Encoding::Binary && fields.iter().any(|(name, _)| name.len() > 32_767) {
        return;
    }
    let mut out = Vec::new();
    let mut encoder = FrameEncoder::request(&mut out, encoding, header.code, header.opaque, header.flag);
    if let Some(remark) = &header.remark {
        encoder.remark(remark);
    }
    for (name, value) in &fields {
        encoder.field(name, value);
    }
    let Ok(size) = encoder.finish(0) else { return };
    assert_eq!(size, out.len());
    let frame = next_frame(&out, FRAME_BYTES_MAX).unwrap().unwrap();
    let again = Header::parse(encoding, frame.header).unwrap();
    assert_eq!((again.code, again.opaque, again.flag), (header.code, header.opaque, header.flag));
    assert_eq!(again.remark, header.remark);
    assert_eq!(all_fields(&again), fields);
    if let Some((name, _)) = fields.first() {
        let last = fields.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        assert_eq!(again.field(name).unwrap().as_deref(), last);
    }
}

/// A stored record.
pub fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    let _ = (record.crc_matches(), record.property("TAGS"));
    let is_v2 = bytes[4..8] == layout::MAGIC_V2.to_be_bytes();
    let is_ours = is_v2 == (record.topic.len() > layout::TOPIC_BYTES_MAX_V1)
        && [record.born_host, record.store_host].iter().all(|host| is_canonical(host.ip()));
    // A damaged checksum is not written again, nor one without the mark.
    let is_sealed = record.coverage() == Coverage::Record;
    if !is_ours || record.coverage() == Coverage::Broken || !record.crc_matches() && is_sealed {
        return;
    }
    let new = NewRecord {
        topic: record.topic,
        queue_id: record.queue_id,
        flag: record.flag,
        system_flag: record.system_flag,
        born_timestamp_ms: record.born_timestamp_ms,
        born_host: record.born_host,
        store_host: record.store_host,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        body: record.body,
        body_crc: record.body_crc,
        properties: [record.properties, b"", b""],
    };
    let laid_out = new.laid_out(is_sealed).unwrap();
    let mut place = vec![0; laid_out.size];
    laid_out.write(&mut place, record.queue_offset, record.physical_offset, record.store_timestamp_ms);
    if is_sealed {
        assert_eq!(
            Record::decode(&place).unwrap().properties.strip_suffix(&[2]),
            record.properties.strip_suffix(&[2])
        );
    } else if place.len() == record.size {
        assert_eq!(place, bytes[..record.size]);
    } else {
        // The checksum of another record is not written again.
        assert_eq!((record.size - place.len()) % CHECKSUM_BYTES, 0);
    }
}

fn is_canonical(ip: IpAddr) -> bool {
    ip.to_canonical() == ip
}

/// The body of a batch send.
pub fn batch(bytes: &[u8]) {
    let Ok(records) = batch_records(bytes).collect::<Result<Vec<BatchRecord<'_>>, _>>() else { return };
    let mut out = Vec::new();
    for record in &records {
        record.encode(&mut out).unwrap();
    }
    assert_eq!(out.len(), bytes.len());
    let again: Vec<_> = batch_records(&out).map(Result::unwrap).collect();
    assert_eq!(again, records);
}

/// Message properties.
pub fn properties(bytes: &[u8]) {
    let _ = stored_properties::tag_code_of(bytes);
    let mut out = Vec::new();
    for entry in stored_properties::entries(bytes) {
        assert!(bytes[entry.span.clone()].starts_with(entry.name));
        out.extend_from_slice(entry.name);
        out.push(stored_properties::NAME_END);
        out.extend_from_slice(entry.value);
        out.push(stored_properties::VALUE_END);
        if let Ok(name) = std::str::from_utf8(entry.name) {
            let span = stored_properties::find_span(bytes, name).unwrap();
            assert!(span.start >= entry.span.start);
            let value = stored_properties::find(bytes, name).unwrap();
            let stored = &bytes[span];
            assert!(stored.strip_suffix(&[stored_properties::VALUE_END]).unwrap_or(stored).ends_with(value));
        }
    }
    assert!(stored_properties::iterate(bytes).eq(stored_properties::iterate(&out)));
}

/// The text of a message id.
pub fn message_id(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((store_host, physical_offset)) = parse_message_id(text) else { return };
    if is_canonical(store_host.ip()) {
        assert_eq!(MessageIds::of(store_host).at(physical_offset), text.to_ascii_uppercase());
    }
}

#[cfg(test)]
mod tests;
