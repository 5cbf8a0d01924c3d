//! Offset message ids: the position of a record, as the text that clients see.

use std::net::{IpAddr, SocketAddr};

use crate::bytes::Reader;

/// Characters of the id of a record stored by an IPv6 host; IPv4 gives 32.
const MESSAGE_ID_CHARS_MAX: usize = 56;
const OFFSET_CHARS: usize = 16;

/// The ids of one broker's records: they differ only in their last 16 characters.
#[derive(Clone, Copy, Debug)]
pub struct MessageIds {
    text: [u8; MESSAGE_ID_CHARS_MAX],
    length: usize,
}

impl MessageIds {
    pub fn of(store_host: SocketAddr) -> Self {
        let mut ids = MessageIds { text: [b'0'; MESSAGE_ID_CHARS_MAX], length: 0 };
        match store_host.ip().to_canonical() {
            IpAddr::V4(ip) => ids.push(&ip.octets()),
            IpAddr::V6(ip) => ids.push(&ip.octets()),
        }
        ids.push(&u32::from(store_host.port()).to_be_bytes());
        ids.length += OFFSET_CHARS;
        ids
    }

    fn push(&mut self, bytes: &[u8]) {
        for (pair, byte) in self.text[self.length..].chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&hex_pair(*byte));
        }
        self.length += bytes.len() * 2;
    }

    /// The id of the record at `physical_offset`.
    pub fn at(&mut self, physical_offset: i64) -> &str {
        std::str::from_utf8(self.bytes_at(physical_offset)).unwrap_or_default()
    }

    /// The same id as ASCII, for callers that join many.
    #[inline]
    pub fn bytes_at(&mut self, physical_offset: i64) -> &[u8] {
        let offset_text = &mut self.text[self.length - OFFSET_CHARS..self.length];
        for (pair, byte) in offset_text.chunks_exact_mut(2).zip(physical_offset.to_be_bytes()) {
            pair.copy_from_slice(&hex_pair(byte));
        }
        &self.text[..self.length]
    }
}

#[inline]
fn hex_pair(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// Reads an id; `None` if the text is not one. The unique id of a client has the same shape and may read as an address
/// and offset: only a look at that position tells them apart.
///
/// ```text
/// hex of | ip: 4 or 16 bytes | port: u32 | physical offset: i64 |
/// ```
pub fn parse_message_id(text: &str) -> Option<(SocketAddr, i64)> {
    let mut raw = [0; MESSAGE_ID_CHARS_MAX / 2];
    let used = raw.get_mut(..text.len() / 2)?;
    if !matches!(text.len(), 32 | 56) {
        return None;
    }
    for (byte, pair) in used.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for &digit in pair {
            let digit = char::from(digit).to_digit(16)?;
            *byte = (*byte << 4) | u8::try_from(digit).ok()?;
        }
    }
    let mut reader = Reader::new(used);
    let ip = match text.len() {
        32 => IpAddr::from(reader.octets::<4>()?),
        _ => IpAddr::from(reader.octets::<16>()?),
    };
    let port = u16::try_from(reader.u32()?).ok()?;
    Some((SocketAddr::new(ip, port), reader.i64()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(store_host: SocketAddr, physical_offset: i64) -> String {
        MessageIds::of(store_host).at(physical_offset).to_owned()
    }

    #[test]
    fn golden_ids() {
        let v4 = SocketAddr::from(([127, 0, 0, 1], 10_911));
        assert_eq!(text(v4, 0xA1_B2C3), "7F00000100002A9F0000000000A1B2C3");
        let v6: SocketAddr = "[fe80::1:2]:10911".parse().unwrap();
        assert_eq!(text(v6, -1), "FE80000000000000000000000001000200002A9FFFFFFFFFFFFFFFFF");
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:10911".parse().unwrap();
        assert_eq!(text(mapped, 0xA1_B2C3), text(v4, 0xA1_B2C3));
        assert_eq!(parse_message_id("7f00000100002a9f0000000000a1b2c3"), Some((v4, 0xA1_B2C3)));
    }

    #[test]
    fn refuses_what_is_no_id() {
        let long = "0".repeat(58);
        let wide_port = "7F000001000100000000000000A1B2C3";
        for bad in ["", "7F", &long, wide_port, "7F00000100002A9F0000000000A1B2CG", "é".repeat(16).as_str()]
        {
            assert_eq!(parse_message_id(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(v4: [u8; 4], v6: [u8; 16], port: u16, physical_offset: i64) {
            let host = SocketAddr::from((v4, port));
            prop_assert_eq!(parse_message_id(&text(host, physical_offset)), Some((host, physical_offset)));
            let host = SocketAddr::new(IpAddr::from(v6).to_canonical(), port);
            prop_assert_eq!(parse_message_id(&text(host, physical_offset)), Some((host, physical_offset)));
        }

        #[test]
        fn never_panics(text in "([0-9a-fA-F]{32}|[0-9a-fA-F]{56}|.{0,60})") {
            crate::fuzzing::message_id(text.as_bytes());
        }
    }
}
