//! The stored record: one layout for the commit log and for what consumers pull.

use std::net::{IpAddr, SocketAddr};

use crate::bytes::Reader;
use crate::error::WireError;
use crate::properties;

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

use layout::{BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, STORE_HOST_V6};

/// The checksum of a record: the CRC-32 of its body, cut to 31 bits; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
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
    /// Checks that every part fits its length field. Call it before the record is appended.
    pub fn check(&self) -> Result<(), WireError> {
        if self.topic.is_empty() || self.topic.len() > layout::TOPIC_BYTES_MAX {
            return Err(WireError::BadRecord("topic is empty or longer than 255 bytes"));
        }
        if self.properties_length() > layout::PROPERTIES_BYTES_MAX {
            return Err(WireError::BadRecord("properties are longer than 32767 bytes"));
        }
        if i32::try_from(self.size()).is_err() {
            return Err(WireError::BadRecord("body is too long"));
        }
        Ok(())
    }

    fn properties_length(&self) -> usize {
        self.properties.iter().map(|part| part.len()).sum()
    }

    fn is_v2(&self) -> bool {
        self.topic.len() > layout::TOPIC_BYTES_MAX_V1
    }

    /// Bytes of the whole record.
    pub fn size(&self) -> usize {
        let hosts = host_bytes(self.born_host) + host_bytes(self.store_host);
        let fixed = layout::RECORD_BYTES_MIN - 2 * HOST_V4_BYTES + usize::from(self.is_v2());
        fixed + hosts + self.body.len() + self.topic.len() + self.properties_length()
    }

    /// Lays the record out in `dst`, which has [`NewRecord::size`] bytes. [`Record::decode`] has the diagram.
    pub fn write(&self, dst: &mut [u8], queue_offset: i64, physical_offset: i64, store_timestamp_ms: i64) {
        debug_assert_eq!(dst.len(), self.size(), "a record fills its place exactly");
        let mut system_flag = self.system_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
        if host_bytes(self.born_host) == HOST_V6_BYTES {
            system_flag |= BORN_HOST_V6;
        }
        if host_bytes(self.store_host) == HOST_V6_BYTES {
            system_flag |= STORE_HOST_V6;
        }
        let magic = if self.is_v2() { layout::MAGIC_V2 } else { layout::MAGIC_V1 };
        let topic_length = (self.topic.len() as u16).to_be_bytes();

        let size = dst.len() as u32;
        let mut writer = Writer { rest: dst };
        writer.put(&size.to_be_bytes());
        writer.put(&magic.to_be_bytes());
        writer.put(&self.body_crc.to_be_bytes());
        writer.put(&self.queue_id.to_be_bytes());
        writer.put(&self.flag.to_be_bytes());
        writer.put(&queue_offset.to_be_bytes());
        writer.put(&physical_offset.to_be_bytes());
        writer.put(&system_flag.to_be_bytes());
        writer.put(&self.born_timestamp_ms.to_be_bytes());
        writer.put_host(self.born_host);
        writer.put(&store_timestamp_ms.to_be_bytes());
        writer.put_host(self.store_host);
        writer.put(&self.reconsume_times.to_be_bytes());
        writer.put(&self.prepared_transaction_offset.to_be_bytes());
        writer.put(&(self.body.len() as u32).to_be_bytes());
        writer.put(self.body);
        writer.put(if self.is_v2() { &topic_length } else { &topic_length[1..] });
        writer.put(self.topic);
        writer.put(&(self.properties_length() as u16).to_be_bytes());
        for part in self.properties {
            writer.put(part);
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
    pub properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// Decodes the record at the beginning of `bytes` and ignores what follows. Its parts must fill its size exactly.
    /// The checksum of the body is not computed: see [`Record::crc_matches`].
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
        let size = Reader::new(bytes).i32().ok_or(WireError::BadRecord("ends within its size"))?;
        let size = usize::try_from(size).map_err(|_| WireError::BadRecord("negative size"))?;
        if size < layout::RECORD_BYTES_MIN {
            return Err(WireError::BadRecord("size is smaller than any record"));
        }
        let whole = bytes.get(..size).ok_or(WireError::BadRecord("runs past the end"))?;
        let mut reader = Reader::new(whole);
        reader.take(4);
        let is_v2 = match reader.u32() {
            Some(layout::MAGIC_V1) => false,
            Some(layout::MAGIC_V2) => true,
            _ => return Err(WireError::BadRecord("unknown magic")),
        };
        Record::parts(size, is_v2, reader).ok_or(WireError::BadRecord("lengths do not fit the size"))
    }

    /// Decodes everything after the magic; `None` unless it fills the record exactly.
    fn parts(size: usize, is_v2: bool, mut reader: Reader<'a>) -> Option<Record<'a>> {
        let body_crc = reader.u32()?;
        let queue_id = reader.i32()?;
        let flag = reader.i32()?;
        let queue_offset = reader.i64()?;
        let physical_offset = reader.i64()?;
        let system_flag = reader.i32()?;
        let born_timestamp_ms = reader.i64()?;
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
        let properties = reader.take(properties_length)?;
        reader.is_empty().then_some(Record {
            size,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            system_flag,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties,
        })
    }

    pub fn crc_matches(&self) -> bool {
        body_crc(self.body) == self.body_crc
    }

    /// The value of one property.
    pub fn property(&self, name: &str) -> Option<&'a [u8]> {
        properties::find(self.properties, name)
    }
}

/// `| ip: 4 or 16 bytes | port: u32 |`
fn host(reader: &mut Reader<'_>, is_v6: bool) -> Option<SocketAddr> {
    let ip = if is_v6 { IpAddr::from(reader.octets::<16>()?) } else { IpAddr::from(reader.octets::<4>()?) };
    let port = u16::try_from(reader.u32()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests;
