//! Writes frames: appends them to a connection's write buffer and patches the lengths in at the end.

use crate::bytes::find_unescaped;
use crate::error::WireError;
use crate::frame::{Encoding, FRAME_BYTES_MAX};
use crate::header::{FLAG_RESPONSE, Header, LANGUAGE_JAVA, language_name};

/// The version number that clients see: that of RocketMQ 5.5.0, whose behaviour we follow.
pub const WIRE_VERSION: i32 = 513;

/// Bytes before the header: the length word and the header word.
const PREFIX_BYTES: usize = 8;
const HEADER_BYTES_MAX: usize = 0xFF_FFFF;

#[derive(Copy, Clone, PartialEq, Eq)]
enum Stage {
    /// The fixed part is written.
    Start,
    /// The remark is written or skipped.
    Remark,
    /// The fields are open; `bool` says whether one was written.
    Fields(bool),
}

/// Writes one frame without its body: open it, add remark and fields, finish it with the length of the body, then
/// append the body or hand it to a vectored write.
///
/// ```text
/// | length: i32 | encoding: u8 | header length: u24 | header | body, by the caller |
/// ```
#[must_use = "a frame without finish() has no length"]
pub struct FrameEncoder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    encoding: Encoding,
    stage: Stage,
    /// Position of the length of the fields block; binary only.
    fields_length_at: usize,
}

impl<'a> FrameEncoder<'a> {
    pub fn response(out: &'a mut Vec<u8>, encoding: Encoding, code: i32, opaque: i32) -> Self {
        FrameEncoder::request(out, encoding, code, opaque, FLAG_RESPONSE)
    }

    pub fn request(out: &'a mut Vec<u8>, encoding: Encoding, code: i32, opaque: i32, flag: i32) -> Self {
        FrameEncoder::request_in(out, encoding, LANGUAGE_JAVA, code, opaque, flag)
    }

    /// A request that says in which language its sender is written. Brokers list it beside connected clients.
    #[inline]
    pub fn request_in(
        out: &'a mut Vec<u8>,
        encoding: Encoding,
        language: u8,
        code: i32,
        opaque: i32,
        flag: i32,
    ) -> Self {
        let start = out.len();
        // Enough for nearly every header.
        out.reserve(256);
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        match encoding {
            Encoding::Json => {
                out.extend_from_slice(b"{\"code\":");
                push_integer(out, code);
                out.extend_from_slice(b",\"flag\":");
                push_integer(out, flag);
                out.extend_from_slice(b",\"language\":\"");
                out.extend_from_slice(language_name(language).as_bytes());
                out.extend_from_slice(b"\",\"opaque\":");
                push_integer(out, opaque);
                out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
                push_integer(out, WIRE_VERSION);
            }
            Encoding::Binary => {
                // This encoding has 16 bits for code and version.
                out.extend_from_slice(&(code as i16).to_be_bytes());
                out.push(language);
                out.extend_from_slice(&(WIRE_VERSION as i16).to_be_bytes());
                out.extend_from_slice(&opaque.to_be_bytes());
                out.extend_from_slice(&flag.to_be_bytes());
            }
        }
        FrameEncoder { out, start, encoding, stage: Stage::Start, fields_length_at: 0 }
    }

    /// Opens a copy of another frame, for a peer that passes frames on: everything but the fields is the same, except for
    /// the opaque.
    pub fn copy(out: &'a mut Vec<u8>, encoding: Encoding, header: &Header<'_>, opaque: i32) -> Self {
        let start = out.len();
        out.reserve(512);
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        match encoding {
            Encoding::Json => {
                out.extend_from_slice(b"{\"code\":");
                push_integer(out, header.code);
                out.extend_from_slice(b",\"flag\":");
                push_integer(out, header.flag);
                out.extend_from_slice(b",\"language\":");
                push_json_string(out, header.language_name());
                out.extend_from_slice(b",\"opaque\":");
                push_integer(out, opaque);
                out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
                push_integer(out, header.version);
            }
            Encoding::Binary => {
                out.extend_from_slice(&(header.code as i16).to_be_bytes());
                out.push(header.language);
                out.extend_from_slice(&(header.version as i16).to_be_bytes());
                out.extend_from_slice(&opaque.to_be_bytes());
                out.extend_from_slice(&header.flag.to_be_bytes());
            }
        }
        let mut copy = FrameEncoder { out, start, encoding, stage: Stage::Start, fields_length_at: 0 };
        if let Some(remark) = &header.remark {
            copy.remark(remark);
        }
        copy
    }

    /// Writes the remark, which explains the code. It must come before the fields; a later or second one is ignored.
    pub fn remark(&mut self, remark: &str) -> &mut Self {
        if self.stage != Stage::Start {
            return self;
        }
        match self.encoding {
            Encoding::Json => {
                self.out.extend_from_slice(b",\"remark\":");
                push_json_string(self.out, remark);
            }
            Encoding::Binary => self.push_block(remark),
        }
        self.stage = Stage::Remark;
        self
    }

    pub fn field(&mut self, name: &str, value: &str) -> &mut Self {
        self.open_field();
        match self.encoding {
            Encoding::Json => {
                push_json_string(self.out, name);
                self.out.push(b':');
                push_json_string(self.out, value);
            }
            Encoding::Binary => {
                let name_length = i16::try_from(name.len()).unwrap_or(0);
                self.out.extend_from_slice(&name_length.to_be_bytes());
                if name_length > 0 {
                    self.out.extend_from_slice(name.as_bytes());
                }
                self.push_block(value);
            }
        }
        self
    }

    pub fn field_i64(&mut self, name: &str, value: i64) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.field(name, digits.format(value))
    }

    /// Closes the header and patches both length words for a body of `body_length` bytes, which the caller sends
    /// after it. Returns the size of the whole frame. If a peer would not accept that size, the frame is removed from
    /// the buffer.
    pub fn finish(mut self, body_length: usize) -> Result<usize, WireError> {
        self.open_fields();
        match self.encoding {
            Encoding::Json => self.out.extend_from_slice(b"}}"),
            Encoding::Binary => {
                let fields_length = self.out.len() - self.fields_length_at - 4;
                self.patch(self.fields_length_at, fields_length);
            }
        }
        let header_length = self.out.len() - self.start - PREFIX_BYTES;
        let size = (PREFIX_BYTES + header_length).saturating_add(body_length);
        if header_length > HEADER_BYTES_MAX || size > FRAME_BYTES_MAX {
            self.out.truncate(self.start);
            return Err(WireError::FrameTooLong { length: size, limit: FRAME_BYTES_MAX });
        }
        self.patch(self.start, size - 4);
        self.patch(self.start + 4, (usize::from(self.encoding.code()) << 24) | header_length);
        Ok(size)
    }

    /// Opens the fields. They are written even if there are none, because Java clients read the map of a send response
    /// without checking for null.
    fn open_fields(&mut self) {
        if matches!(self.stage, Stage::Fields(_)) {
            return;
        }
        match self.encoding {
            Encoding::Json => self.out.extend_from_slice(b",\"extFields\":{"),
            Encoding::Binary => {
                if self.stage == Stage::Start {
                    self.push_block("");
                }
                self.fields_length_at = self.out.len();
                self.out.extend_from_slice(&[0; 4]);
            }
        }
        self.stage = Stage::Fields(false);
    }

    fn open_field(&mut self) {
        self.open_fields();
        if self.stage == Stage::Fields(true) && self.encoding == Encoding::Json {
            self.out.push(b',');
        }
        self.stage = Stage::Fields(true);
    }

    /// `| length: i32 | bytes |`
    fn push_block(&mut self, text: &str) {
        // A length that does not fit makes the whole frame too long, and finish() refuses it.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    fn patch(&mut self, at: usize, value: usize) {
        let word = u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
        if let Some(place) = self.out.get_mut(at..at + 4) {
            place.copy_from_slice(&word);
        }
    }
}

fn push_integer(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a JSON string. Quotes, backslashes and control characters are escaped.
fn push_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = find_unescaped(rest) {
        let (run, tail) = rest.split_at(at);
        out.extend_from_slice(run);
        let Some((&byte, tail)) = tail.split_first() else { break };
        rest = tail;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend([byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
            }
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn golden_json_response() {
        let mut out = b"kept".to_vec();
        let mut encoder = FrameEncoder::response(&mut out, Encoding::Json, 0, 7);
        encoder.field("msgId", "7F\u{1}\"\\é\n").field_i64("queueOffset", -3);
        assert_eq!(encoder.finish(2), Ok(165));
        let header = concat!(
            r#"{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":513,"#,
            r#""extFields":{"msgId":"7F\u0001\"\\é\n","queueOffset":"-3"}}"#
        );
        // 155 bytes of header; 4 + 155 + 2 of body after the length word.
        let expected = [b"kept", &[0, 0, 0, 161, 0, 0, 0, 155][..], header.as_bytes()].concat();
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
    }

    #[test]
    fn golden_binary_response() {
        let mut out = Vec::new();
        let mut encoder = FrameEncoder::response(&mut out, Encoding::Binary, 19, 7);
        encoder.remark("no").field_i64("queueId", 3);
        assert_eq!(encoder.finish(1), Ok(46));
        let expected = [
            0, 0, 0, 42, // 4 + header 37 + body 1
            1, 0, 0, 37, // binary, header of 21 + 2 + 14
            0, 19, 0, 2, 1, 0, 0, 0, 7, 0, 0, 0, 1, // code, JAVA, 513, opaque, flag
            0, 0, 0, 2, b'n', b'o', // remark
            0, 0, 0, 14, // fields
            0, 7, b'q', b'u', b'e', b'u', b'e', b'I', b'd', 0, 0, 0, 1, b'3',
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_copy_differs_in_its_opaque_only() {
        let headers = [
            (
                Encoding::Json,
                &br#"{"code":10,"flag":2,"language":"GO","opaque":5,"version":401,"remark":"\"why\"","extFields":{"a":"1"}}"#[..],
            ),
            (
                Encoding::Binary,
                &[
                    0, 10, 9, 1, 145, 0, 0, 0, 5, 0, 0, 0, 2, // code, GO, 401, opaque, flag
                    0, 0, 0, 5, b'"', b'w', b'h', b'y', b'"', // remark
                    0, 0, 0, 8, 0, 1, b'a', 0, 0, 0, 1, b'1',
                ][..],
            ),
        ];
        for (encoding, bytes) in headers {
            let original = Header::parse(encoding, bytes).unwrap();
            let mut out = Vec::new();
            let mut copy = FrameEncoder::copy(&mut out, encoding, &original, 7);
            copy.field("a", "1");
            let size = copy.finish(0).unwrap();
            assert_eq!(size, out.len());
            let copy = Header::parse(encoding, &out[PREFIX_BYTES..]).unwrap();
            assert_eq!((copy.code, copy.flag, copy.opaque), (10, 2, 7));
            assert_eq!((copy.language_name(), copy.version), ("GO", 401));
            assert_eq!(
                (copy.remark.as_deref(), copy.field("a").unwrap().as_deref()),
                (Some("\"why\""), Some("1"))
            );
        }
    }

    #[test]
    fn fields_are_written_even_when_there_are_none() {
        let mut out = Vec::new();
        FrameEncoder::response(&mut out, Encoding::Json, 0, 1).finish(0).unwrap();
        assert!(out.ends_with(br#""version":513,"extFields":{}}"#));
        out.clear();
        FrameEncoder::response(&mut out, Encoding::Binary, 0, 1).finish(0).unwrap();
        assert_eq!(out[4..8], [1, 0, 0, 21]);
        assert_eq!(out[21..], [0; 8]);
    }

    #[test]
    fn a_late_or_second_remark_is_left_out() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let (mut once, mut twice) = (Vec::new(), Vec::new());
            let mut encoder = FrameEncoder::request(&mut once, encoding, 1, 1, 0);
            encoder.remark("a").field("b", "c");
            encoder.finish(0).unwrap();
            let mut encoder = FrameEncoder::request(&mut twice, encoding, 1, 1, 0);
            encoder.remark("a").remark("x").field("b", "c").remark("y");
            encoder.finish(0).unwrap();
            assert_eq!(once, twice);
        }
    }

    #[test]
    fn a_frame_that_no_peer_accepts_leaves_nothing_behind() {
        let mut out = b"kept".to_vec();
        let encoder = FrameEncoder::response(&mut out, Encoding::Json, 0, 1);
        assert!(matches!(encoder.finish(FRAME_BYTES_MAX), Err(WireError::FrameTooLong { .. })));
        assert_eq!(out, b"kept");
        let encoder = FrameEncoder::response(&mut out, Encoding::Binary, 0, 1);
        assert!(encoder.finish(usize::MAX).is_err());
        let encoder = FrameEncoder::response(&mut out, Encoding::Binary, 0, 1);
        assert_eq!(encoder.finish(FRAME_BYTES_MAX - 29), Ok(FRAME_BYTES_MAX));
    }
}
