//! Says from the first bytes of a connection which protocol the peer speaks.
//!
//! ```text
//! remoting   | length: i32, 4 to the limit | …
//! TLS        | 16 (handshake) or 15 (alert) | 03 | 00 to 04 | length: u16 | …
//! HTTP/2     | "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" |
//! HTTP/1     | a method and a space, or "HTTP/1." |
//! PROXY      | "PROXY " (v1) | or | 0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A (v2) |
//! ```
//! Read as the length of a remoting frame, every other protocol begins with 200 MiB or more, which no limit allows.

use std::fmt;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PROXY_V1: &[u8] = b"PROXY ";
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const HTTP1: [&[u8]; 9] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ", b"HTTP/1."];
const TLS_ALERT: u8 = 0x15;
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;
const TLS_MINOR_MAX: u8 = 4;

/// A protocol that its first bytes identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// RocketMQ's own.
    Remoting,
    Tls,
    Http1,
    Http2,
    ProxyV1,
    ProxyV2,
    Unknown,
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Protocol::Remoting => "RocketMQ's remoting protocol",
            Protocol::Tls => "TLS",
            Protocol::Http1 => "HTTP/1",
            Protocol::Http2 => "HTTP/2",
            Protocol::ProxyV1 => "the PROXY protocol, version 1",
            Protocol::ProxyV2 => "the PROXY protocol, version 2",
            Protocol::Unknown => "an unknown protocol",
        })
    }
}

/// The protocol of a peer whose first bytes these are; `None` while more bytes are needed to tell, which is never the
/// case from 24 bytes on. More bytes never change an answer.
pub fn sniff(first_bytes: &[u8], frame_bytes_max: usize) -> Option<Protocol> {
    if first_bytes.is_empty() {
        return None;
    }
    let signatures =
        [(HTTP2_PREFACE, Protocol::Http2), (PROXY_V1, Protocol::ProxyV1), (PROXY_V2, Protocol::ProxyV2)];
    let texts = signatures.into_iter().chain(HTTP1.map(|text| (text, Protocol::Http1)));
    let mut is_open = false;
    for (signature, protocol) in texts {
        match compare(first_bytes, signature) {
            Match::Whole => return Some(protocol),
            Match::SoFar => is_open = true,
            Match::None => {}
        }
    }
    match tls(first_bytes) {
        Match::Whole => return Some(Protocol::Tls),
        Match::SoFar => is_open = true,
        Match::None => {}
    }
    if is_open {
        return None;
    }
    let length_word = first_bytes.first_chunk::<4>()?;
    let is_frame = usize::try_from(i32::from_be_bytes(*length_word))
        .is_ok_and(|length| length >= 4 && length.saturating_add(4) <= frame_bytes_max);
    Some(if is_frame { Protocol::Remoting } else { Protocol::Unknown })
}

/// Why the bytes of a peer are not a frame, in words: its first bytes may say what it speaks instead.
pub fn not_a_frame(protocol: Option<Protocol>, error: &dyn fmt::Display) -> String {
    match protocol {
        Some(Protocol::Remoting | Protocol::Unknown) | None => {
            format!("the peer sent no valid frame: {error}")
        }
        Some(protocol) => format!("the peer speaks {protocol}, not {}", Protocol::Remoting),
    }
}

enum Match {
    Whole,
    SoFar,
    None,
}

fn compare(first_bytes: &[u8], signature: &[u8]) -> Match {
    if first_bytes.starts_with(signature) {
        Match::Whole
    } else if signature.starts_with(first_bytes) {
        Match::SoFar
    } else {
        Match::None
    }
}

fn tls(first_bytes: &[u8]) -> Match {
    match first_bytes {
        [TLS_HANDSHAKE | TLS_ALERT, TLS_MAJOR, 0..=TLS_MINOR_MAX, ..] => Match::Whole,
        [TLS_HANDSHAKE | TLS_ALERT, TLS_MAJOR] | [TLS_HANDSHAKE | TLS_ALERT] => Match::SoFar,
        _ => Match::None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, next_frame};
    use proptest::prelude::*;

    /// `openssl s_client -tls1_2`, cut after the random.
    const CLIENT_HELLO_12: &[u8] = &[
        0x16, 0x03, 0x01, 0x00, 0xC5, 0x01, 0x00, 0x00, 0xC1, 0x03, 0x03, 0x9A, 0x3F, 0x01, 0x77, 0x5B, 0x5E,
    ];
    /// `curl https://…` with TLS 1.3: the record still says 3.1.
    const CLIENT_HELLO_13: &[u8] = &[
        0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03, 0x1D, 0x0C, 0x44, 0x90, 0xAB, 0x10,
    ];
    /// A TLS server's answer to bytes that are not TLS: fatal, unexpected_message.
    const TLS_ALERT_RECORD: &[u8] = &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0A];
    /// `curl --http2-prior-knowledge`: the preface, then SETTINGS.
    const HTTP2: &[u8] =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64";
    const HTTP1_REQUEST: &[u8] =
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:10911\r\nUser-Agent: curl/7.88.1\r\n\r\n";
    const HTTP1_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    const PROXY_V1_TCP4: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.3 56324 10911\r\n";
    /// The signature, PROXY over TCP4, 12 bytes of addresses: 192.0.2.7:56324 to 198.51.100.3:10911.
    const PROXY_V2_TCP4: &[u8] = &[
        0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A, 0x21, 0x11, 0x00, 0x0C, 0xC0,
        0x00, 0x02, 0x07, 0xC6, 0x33, 0x64, 0x03, 0xDC, 0x04, 0x2A, 0x9F,
    ];

    fn examples() -> Vec<(Vec<u8>, Protocol)> {
        let frame = |encoding| {
            let mut out = Vec::new();
            let mut frame = FrameEncoder::request(&mut out, encoding, 105, 1, 0);
            frame.field("topic", "TBW102");
            frame.finish(0).unwrap();
            out
        };
        let mut all =
            vec![(frame(Encoding::Json), Protocol::Remoting), (frame(Encoding::Binary), Protocol::Remoting)];
        let foreign: [(&[u8], Protocol); 9] = [
            (CLIENT_HELLO_12, Protocol::Tls),
            (CLIENT_HELLO_13, Protocol::Tls),
            (TLS_ALERT_RECORD, Protocol::Tls),
            (HTTP2, Protocol::Http2),
            (HTTP1_REQUEST, Protocol::Http1),
            (HTTP1_RESPONSE, Protocol::Http1),
            (PROXY_V1_TCP4, Protocol::ProxyV1),
            (PROXY_V2_TCP4, Protocol::ProxyV2),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", Protocol::Unknown),
        ];
        all.extend(foreign.map(|(bytes, protocol)| (bytes.to_vec(), protocol)));
        all
    }

    #[test]
    fn real_first_bytes_are_told_apart() {
        for (bytes, protocol) in examples() {
            assert_eq!(sniff(&bytes, FRAME_BYTES_MAX), Some(protocol), "{bytes:02X?}");
        }
    }

    #[test]
    fn bytes_may_arrive_one_by_one() {
        for (bytes, protocol) in examples() {
            let told: Vec<Option<Protocol>> =
                (0..=bytes.len()).map(|length| sniff(&bytes[..length], FRAME_BYTES_MAX)).collect();
            assert_eq!(told[0], None);
            let first = told.iter().position(Option::is_some).unwrap();
            assert!(
                told[first..].iter().all(|protocol_then| *protocol_then == Some(protocol)),
                "{bytes:02X?}"
            );
        }
    }

    #[test]
    fn a_length_that_no_frame_has_is_unknown() {
        assert_eq!(sniff(&[0, 0, 0, 3], FRAME_BYTES_MAX), Some(Protocol::Unknown));
        assert_eq!(sniff(&[0x80, 0, 0, 0], FRAME_BYTES_MAX), Some(Protocol::Unknown));
        assert_eq!(sniff(&[0, 0, 1, 0], 259), Some(Protocol::Unknown));
        assert_eq!(sniff(&[0, 0, 1, 0], 260), Some(Protocol::Remoting));
    }

    fn first_bytes() -> impl Strategy<Value = Vec<u8>> {
        let texts: Vec<Vec<u8>> = examples().into_iter().map(|(bytes, _)| bytes).collect();
        let damaged = (prop::sample::select(texts), 0..40_usize, any::<u8>(), 0..60_usize).prop_map(
            |(mut bytes, place, byte, length)| {
                if let Some(damaged) = bytes.get_mut(place) {
                    *damaged = byte;
                }
                bytes.truncate(length);
                bytes
            },
        );
        prop_oneof![prop::collection::vec(any::<u8>(), 0..40), damaged]
    }

    proptest! {
        #[test]
        fn an_answer_comes_within_24_bytes_and_stays(bytes in first_bytes()) {
            let told: Vec<Option<Protocol>> =
                (0..=bytes.len()).map(|length| sniff(&bytes[..length], FRAME_BYTES_MAX)).collect();
            let answers: Vec<Protocol> = told.iter().copied().flatten().collect();
            prop_assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
            prop_assert!(bytes.len() < 24 || told[24].is_some());
        }

        /// `sniff` calls a connection remoting exactly if the codec accepts its first bytes.
        #[test]
        fn it_agrees_with_the_codec_about_frames(bytes in first_bytes()) {
            if let Some(protocol) = sniff(&bytes, FRAME_BYTES_MAX).filter(|_| bytes.len() >= 4) {
                let is_length = next_frame(&bytes[..4], FRAME_BYTES_MAX).is_ok();
                prop_assert_eq!(protocol == Protocol::Remoting, is_length);
            }
        }
    }
}
