//! The stored record: one layout for the commit log and for what consumers pull.

use std::net::{IpAddr, SocketAddr};

use crate::bytes::Reader;
use crate::checksum::{self, CHECKSUM_BYTES, Coverage, Form, MARK};
use crate::error::WireError;
use crate::properties::{self, VALUE_END};

/// Byte positions and constants of the record layout.
pub mod layout {
    /// Topic length in one byte.
    pub const MAGIC_V1: u32 = 0xDAA3_20A7;
    /// Topic length in two bytes; only for topics past [`TOPIC_BYTES_MAX_V1`].
    pub const MAGIC_V2: u32 = 0xDAA3_20AB;
    /// Fills the end of a file where the next record does not fit.
    pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
    /// A blank has only size and magic.
    pub const BLANK_BYTES: usize = 8;

    pub const TOPIC_BYTES_MAX_V1: usize = 127;
    pub const TOPIC_BYTES_MAX: usize = 255;
    pub const PROPERTIES_BYTES_MAX: usize = 32_767;

    /// `system_flag` bit: the born host is an IPv6 address.
    pub const BORN_HOST_V6: i32 = 1 << 4;
    /// `system_flag` bit: the store host is an IPv6 address.
    pub const STORE_HOST_V6: i32 = 1 << 5;
    pub const HOST_V4_BYTES: usize = 8;
    pub const HOST_V6_BYTES: usize = 20;

    /// A V1 record with IPv4 hosts, empty topic, body and properties: 88 + the topic length byte + 2.
    pub const RECORD_BYTES_MIN: usize = 91;

    /// `system_flag` bits of a transaction's state.
    pub const TRANSACTION_MASK: i32 = 3 << 2;
    pub const TRANSACTION_PREPARED: i32 = 1 << 2;
    pub const TRANSACTION_COMMIT: i32 = 2 << 2;
    pub const TRANSACTION_ROLLBACK: i32 = 3 << 2;

    /// Positions of the fields that are the same in every record.
    pub mod at {
        pub const SIZE: usize = 0;
        pub const MAGIC: usize = 4;
        pub const BODY_CRC: usize = 8;
        pub const QUEUE_ID: usize = 12;
        pub const FLAG: usize = 16;
        pub const QUEUE_OFFSET: usize = 20;
        pub const PHYSICAL_OFFSET: usize = 28;
        pub const SYSTEM_FLAG: usize = 36;
        pub const BORN_TIMESTAMP: usize = 40;
        pub const BORN_HOST: usize = 48;
    }

    /// The position of the store timestamp. It follows the born host, whose length depends on the system flag.
    pub fn store_timestamp_at(system_flag: i32) -> usize {
        at::BORN_HOST + if system_flag & BORN_HOST_V6 == 0 { HOST_V4_BYTES } else { HOST_V6_BYTES }
    }
}

use layout::{BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, STORE_HOST_V6, at};

/// The checksum of a body: its CRC-32, cut to 31 bits; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    checksum::crc31(body)
}

/// A record to be stored: everything but the offsets and the time that the commit log assigns.
#[derive(Clone, Debug)]
pub struct NewRecord<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub flag: i32,
    pub system_flag: i32,
    pub born_timestamp_ms: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    /// [`body_crc`] of the body, computed before the lock is taken.
    pub body_crc: u32,
    /// Written back to back: the client's properties, then those that the broker adds.
    pub properties: [&'a [u8]; 3],
}

impl NewRecord<'_> {
    /// How the record is laid out: with the checksum of the whole record if that is asked for and its properties have
    /// room for it. Fails if a part does not fit its length field.
    #[inline]
    pub fn laid_out(&self, with_checksum: bool) -> Result<LaidOut<'_>, WireError> {
        if self.topic.is_empty() || self.topic.len() > layout::TOPIC_BYTES_MAX {
            return Err(WireError::BadRecord("topic is empty or longer than 255 bytes"));
        }
        let mut properties = self.properties;
        if properties[0].is_empty() || properties[0].first() == Some(&MARK) {
            properties = unmarked(properties);
        }
        let mut properties_bytes = properties_bytes(properties);
        let last = properties.iter().rev().find_map(|part| part.last());
        let sealed_bytes =
            1 + properties_bytes + usize::from(last.is_some_and(|last| *last != VALUE_END)) + CHECKSUM_BYTES;
        let has_checksum = with_checksum && sealed_bytes <= layout::PROPERTIES_BYTES_MAX;
        if has_checksum {
            properties_bytes = sealed_bytes;
        } else {
            properties = unlike_checked(properties);
            properties_bytes = self::properties_bytes(properties);
        }
        if properties_bytes > layout::PROPERTIES_BYTES_MAX {
            return Err(WireError::BadRecord("properties are longer than 32767 bytes"));
        }
        let hosts = host_bytes(self.born_host) + host_bytes(self.store_host);
        let fixed = layout::RECORD_BYTES_MIN - 2 * HOST_V4_BYTES + usize::from(self.is_v2());
        let size = fixed + hosts + self.body.len() + self.topic.len() + properties_bytes;
        if i32::try_from(size).is_err() {
            return Err(WireError::BadRecord("body is too long"));
        }
        Ok(LaidOut { record: self, properties, properties_bytes, has_checksum, size })
    }

    fn is_v2(&self) -> bool {
        self.topic.len() > layout::TOPIC_BYTES_MAX_V1
    }

    /// Bytes of the whole record without a checksum; 0 if it cannot be stored.
    pub fn size(&self) -> usize {
        self.laid_out(false).map_or(0, |laid_out| laid_out.size)
    }

    /// The whole record without a checksum, with these offsets and this time.
    pub fn encode(
        &self,
        queue_offset: i64,
        physical_offset: i64,
        store_timestamp_ms: i64,
    ) -> Result<Vec<u8>, WireError> {
        let laid_out = self.laid_out(false)?;
        let mut bytes = vec![0; laid_out.size];
        laid_out.write(&mut bytes, queue_offset, physical_offset, store_timestamp_ms);
        Ok(bytes)
    }
}

fn properties_bytes(parts: [&[u8]; 3]) -> usize {
    parts[0].len() + parts[1].len() + parts[2].len()
}

/// The properties without the mark of a checksum in front. Nobody but the broker sets it.
#[cold]
fn unmarked(mut parts: [&[u8]; 3]) -> [&[u8]; 3] {
    for part in &mut parts {
        while let [MARK, rest @ ..] = part {
            *part = rest;
        }
        if !part.is_empty() {
            break;
        }
    }
    parts
}

/// The properties without what a reader would take for a checksum at their end.
#[cold]
fn unlike_checked(mut parts: [&[u8]; 3]) -> [&[u8]; 3] {
    if let Some(last) = parts.iter_mut().rev().find(|part| !part.is_empty()) {
        *last = checksum::without_likeness(last);
    }
    parts
}

/// A new record whose size is known. It is the only writer of records.
#[derive(Copy, Clone, Debug)]
pub struct LaidOut<'a> {
    record: &'a NewRecord<'a>,
    properties: [&'a [u8]; 3],
    /// With the checksum.
    properties_bytes: usize,
    has_checksum: bool,
    /// Bytes of the whole record.
    pub size: usize,
}

impl LaidOut<'_> {
    /// Writes the record to `dst`, which has [`LaidOut::size`] bytes. [`Record::decode`] has the diagram.
    pub fn write(&self, dst: &mut [u8], queue_offset: i64, physical_offset: i64, store_timestamp_ms: i64) {
        debug_assert_eq!(dst.len(), self.size, "a record fills its place exactly");
        let record = self.record;
        let mut system_flag = record.system_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
        if host_bytes(record.born_host) == HOST_V6_BYTES {
            system_flag |= BORN_HOST_V6;
        }
        if host_bytes(record.store_host) == HOST_V6_BYTES {
            system_flag |= STORE_HOST_V6;
        }
        let is_v2 = record.is_v2();
        let magic = if is_v2 { layout::MAGIC_V2 } else { layout::MAGIC_V1 };
        let topic_length = (record.topic.len() as u16).to_be_bytes();

        let size = dst.len() as u32;
        let mut writer = Writer { rest: &mut *dst };
        writer.put(&size.to_be_bytes());
        writer.put(&magic.to_be_bytes());
        writer.put(&record.body_crc.to_be_bytes());
        writer.put(&record.queue_id.to_be_bytes());
        writer.put(&record.flag.to_be_bytes());
        writer.put(&queue_offset.to_be_bytes());
        writer.put(&physical_offset.to_be_bytes());
        writer.put(&system_flag.to_be_bytes());
        writer.put(&record.born_timestamp_ms.to_be_bytes());
        writer.put_host(record.born_host);
        writer.put(&store_timestamp_ms.to_be_bytes());
        writer.put_host(record.store_host);
        writer.put(&record.reconsume_times.to_be_bytes());
        writer.put(&record.prepared_transaction_offset.to_be_bytes());
        writer.put(&(record.body.len() as u32).to_be_bytes());
        writer.put(record.body);
        writer.put(if is_v2 { &topic_length } else { &topic_length[1..] });
        writer.put(record.topic);
        writer.put(&(self.properties_bytes as u16).to_be_bytes());
        if self.has_checksum {
            writer.put(&[MARK]);
        }
        for part in self.properties {
            writer.put(part);
        }
        if self.has_checksum {
            if writer.rest.len() > CHECKSUM_BYTES {
                writer.put(&[VALUE_END]);
            }
            checksum::seal(dst);
        }
    }
}

/// An IPv4 peer of a dual-stack socket appears as ::ffff:a.b.c.d and is stored as an IPv4 address.
fn host_bytes(host: SocketAddr) -> usize {
    if host.ip().to_canonical().is_ipv4() { HOST_V4_BYTES } else { HOST_V6_BYTES }
}

struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    /// Copies a part to the front of the rest; a part that does not fit is left out.
    #[inline]
    fn put(&mut self, part: &[u8]) {
        let rest = std::mem::take(&mut self.rest);
        if let Some((place, rest)) = rest.split_at_mut_checked(part.len()) {
            place.copy_from_slice(part);
            self.rest = rest;
        }
    }

    /// `| ip: 4 or 16 bytes | port: u32 |`
    #[inline]
    fn put_host(&mut self, host: SocketAddr) {
        match host.ip().to_canonical() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }
}

/// A stored record, borrowed from the file or from a pulled body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Bytes of the whole record; the next record follows them.
    pub size: usize,
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub system_flag: i32,
    pub born_timestamp_ms: i64,
    pub born_host: SocketAddr,
    pub store_timestamp_ms: i64,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    /// Without the checksum of the record.
    pub properties: &'a [u8],
    form: Form,
    /// All of its bytes.
    whole: &'a [u8],
}

impl<'a> Record<'a> {
    /// Decodes the record at the beginning of `bytes` and ignores what follows. Its parts must fill its size exactly.
    /// Checksums are not computed: see [`Record::crc_matches`].
    ///
    /// ```text
    ///  0 | size: i32 | magic: u32 | body crc: u32 | queue id: i32 | flag: i32 |
    /// 20 | queue offset: i64 | physical offset: i64 | system flag: i32 |
    /// 40 | born timestamp: i64 | born host: ip (4|16) port (4) |
    ///    | store timestamp: i64 | store host: ip (4|16) port (4) |
    ///    | reconsume times: i32 | prepared transaction offset: i64 |
    ///    | body length: i32 | body | topic length: i8 (V1) or i16 (V2) | topic |
    ///    | properties length: i16 | properties |
    /// ```
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, WireError> {
        let head: &[u8; at::BORN_HOST] =
            bytes.first_chunk().ok_or(WireError::BadRecord("ends within its head"))?;
        let size = i32::from_be_bytes(field(head, at::SIZE));
        let size = usize::try_from(size).map_err(|_| WireError::BadRecord("negative size"))?;
        if size < layout::RECORD_BYTES_MIN {
            return Err(WireError::BadRecord("size is smaller than any record"));
        }
        let whole = bytes.get(..size).ok_or(WireError::BadRecord("runs past the end"))?;
        let is_v2 = match u32::from_be_bytes(field(head, at::MAGIC)) {
            layout::MAGIC_V1 => false,
            layout::MAGIC_V2 => true,
            _ => return Err(WireError::BadRecord("unknown magic")),
        };
        Record::parts(whole, head, is_v2).ok_or(WireError::BadRecord("lengths do not fit the size"))
    }

    /// Decodes everything after the magic; `None` unless it fills the record exactly.
    #[inline]
    fn parts(whole: &'a [u8], head: &[u8; at::BORN_HOST], is_v2: bool) -> Option<Record<'a>> {
        let system_flag = i32::from_be_bytes(field(head, at::SYSTEM_FLAG));
        let mut reader = Reader::new(whole.get(at::BORN_HOST..)?);
        let born_host = host(&mut reader, system_flag & BORN_HOST_V6 != 0)?;
        let store_timestamp_ms = reader.i64()?;
        let store_host = host(&mut reader, system_flag & STORE_HOST_V6 != 0)?;
        let reconsume_times = reader.i32()?;
        let prepared_transaction_offset = reader.i64()?;
        let body_length = usize::try_from(reader.i32()?).ok()?;
        let body = reader.take(body_length)?;
        let topic_length = if is_v2 {
            usize::try_from(reader.i16()?).ok()?
        } else {
            // Signed, as Java reads it: a topic past 127 bytes would have been written as V2.
            usize::try_from(reader.i8()?).ok()?
        };
        let topic = reader.take(topic_length)?;
        let properties_length = usize::try_from(reader.i16()?).ok()?;
        let (form, properties) = checksum::form(reader.take(properties_length)?);
        reader.is_empty().then_some(Record {
            size: whole.len(),
            body_crc: u32::from_be_bytes(field(head, at::BODY_CRC)),
            queue_id: i32::from_be_bytes(field(head, at::QUEUE_ID)),
            flag: i32::from_be_bytes(field(head, at::FLAG)),
            queue_offset: i64::from_be_bytes(field(head, at::QUEUE_OFFSET)),
            physical_offset: i64::from_be_bytes(field(head, at::PHYSICAL_OFFSET)),
            system_flag,
            born_timestamp_ms: i64::from_be_bytes(field(head, at::BORN_TIMESTAMP)),
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties,
            form,
            whole,
        })
    }

    /// Whether the record's checksum is right: that of the whole record, or that of the body if it has no other.
    #[inline]
    pub fn crc_matches(&self) -> bool {
        match self.form {
            Form::Marked => checksum::matches(self.whole),
            Form::Unmarked => checksum::matches(self.whole) || self.has_checksum_of_another(),
            Form::Missing => self.body_matches(),
            Form::Broken => false,
        }
    }

    /// The part of the record that its checksum covers. If an unmarked record ends with a checksum, it is computed.
    #[inline]
    pub fn coverage(&self) -> Coverage {
        match self.form {
            Form::Marked => Coverage::Record,
            Form::Unmarked if checksum::matches(self.whole) || !self.has_checksum_of_another() => {
                Coverage::Record
            }
            Form::Unmarked | Form::Missing => Coverage::Body,
            Form::Broken => Coverage::Broken,
        }
    }

    #[cold]
    fn has_checksum_of_another(&self) -> bool {
        self.body_matches() && checksum::is_of_another(self.whole, self.properties)
    }

    #[inline]
    fn body_matches(&self) -> bool {
        body_crc(self.body) == self.body_crc
    }

    /// The value of one property.
    pub fn property(&self, name: &str) -> Option<&'a [u8]> {
        properties::find(self.properties, name)
    }
}

/// A record that a queue entry leads to, as far as it is known before it is read.
#[derive(Copy, Clone, Debug)]
pub struct Expected<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
}

impl Expected<'_> {
    /// Whether the bytes are this record and nothing else, and its checksum covers all of them and is right. Its other
    /// fields need no look then, so that this costs less than to decode it. False says nothing about other records.
    #[inline]
    pub fn is_sealed(&self, bytes: &[u8]) -> bool {
        self.is_whole(bytes).unwrap_or(false) && checksum::matches(bytes)
    }

    #[inline]
    fn is_whole(&self, bytes: &[u8]) -> Option<bool> {
        let head: &[u8; at::BORN_HOST] = bytes.first_chunk()?;
        let is_v2 = match u32::from_be_bytes(field(head, at::MAGIC)) {
            layout::MAGIC_V1 => false,
            layout::MAGIC_V2 => true,
            _ => return None,
        };
        let host = |is_v6| if is_v6 { HOST_V6_BYTES } else { HOST_V4_BYTES };
        let system_flag = i32::from_be_bytes(field(head, at::SYSTEM_FLAG));
        let hosts = host(system_flag & BORN_HOST_V6 != 0) + host(system_flag & STORE_HOST_V6 != 0);
        let mut reader = Reader::new(bytes.get(at::BORN_HOST + hosts + 8 + 4 + 8..)?);
        let body_length = usize::try_from(reader.i32()?).ok()?;
        reader.take(body_length)?;
        let topic_length = if is_v2 { reader.i16()?.into() } else { i32::from(reader.i8()?) };
        let topic = reader.take(usize::try_from(topic_length).ok()?)?;
        let properties_length = usize::try_from(reader.i16()?).ok()?;
        Some(
            u32::from_be_bytes(field(head, at::SIZE)) as usize == bytes.len()
                && i64::from_be_bytes(field(head, at::PHYSICAL_OFFSET)) == self.physical_offset
                && i64::from_be_bytes(field(head, at::QUEUE_OFFSET)) == self.queue_offset
                && i32::from_be_bytes(field(head, at::QUEUE_ID)) == self.queue_id
                && reader.remaining() == properties_length
                && properties_length >= CHECKSUM_BYTES
                && topic == self.topic,
        )
    }
}

/// The bytes of a field in the part of a record that has the same layout in all.
#[inline(always)]
fn field<const N: usize>(head: &[u8; at::BORN_HOST], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&head[at..at + N]);
    field
}

/// `| ip: 4 or 16 bytes | port: u32 |`
#[inline]
fn host(reader: &mut Reader<'_>, is_v6: bool) -> Option<SocketAddr> {
    let ip = if is_v6 { IpAddr::from(reader.octets::<16>()?) } else { IpAddr::from(reader.octets::<4>()?) };
    let port = u16::try_from(reader.u32()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests;
