//! Writing frames: appended to the connection's write buffer, lengths patched in at the end.

use crate::error::WireError;
use crate::frame::{Encoding, FRAME_BYTES_MAX};
use crate::header::{FLAG_RESPONSE, LANGUAGE_JAVA};

/// The release whose behaviour we follow, as the number that clients know it by: 5.5.0.
pub const WIRE_VERSION: i32 = 513;

/// Bytes before the header: the length word and the header word.
const PREFIX_BYTES: usize = 8;
const HEADER_BYTES_MAX: usize = 0xFF_FFFF;

#[derive(Copy, Clone, PartialEq, Eq)]
enum Stage {
    /// The fixed part is written.
    Start,
    /// The remark is written, or stepped over.
    Remark,
    /// The fields are open, and `bool` says that there is one already.
    Fields(bool),
}

/// Writes one frame but for its body: open it, add remark and fields, finish it with the length of the body, then
/// put the body behind it (or hand it to a gathering write).
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
    /// Where the length of the fields block stands; binary only.
    fields_length_at: usize,
}

impl<'a> FrameEncoder<'a> {
    pub fn response(out: &'a mut Vec<u8>, encoding: Encoding, code: i32, opaque: i32) -> Self {
        FrameEncoder::request(out, encoding, code, opaque, FLAG_RESPONSE)
    }

    pub fn request(out: &'a mut Vec<u8>, encoding: Encoding, code: i32, opaque: i32, flag: i32) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        match encoding {
            Encoding::Json => {
                out.extend_from_slice(b"{\"code\":");
                push_integer(out, code);
                out.extend_from_slice(b",\"flag\":");
                push_integer(out, flag);
                out.extend_from_slice(b",\"language\":\"JAVA\",\"opaque\":");
                push_integer(out, opaque);
                out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
                push_integer(out, WIRE_VERSION);
            }
            Encoding::Binary => {
                // 16 bits are all the room this encoding has for code and version.
                out.extend_from_slice(&(code as i16).to_be_bytes());
                out.push(LANGUAGE_JAVA);
                out.extend_from_slice(&(WIRE_VERSION as i16).to_be_bytes());
                out.extend_from_slice(&opaque.to_be_bytes());
                out.extend_from_slice(&flag.to_be_bytes());
            }
        }
        FrameEncoder { out, start, encoding, stage: Stage::Start, fields_length_at: 0 }
    }

    /// Why the answer is what it is. Comes before the fields; later or second ones are not written.
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
    /// behind it. Gives the size of the whole frame. Where that is past what a peer accepts, nothing of the
    /// frame stays in the buffer.
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
        self.patch(self.start + 4, usize::from(self.encoding.code()) << 24 | header_length);
        Ok(size)
    }

    /// Opens the fields, which are written even when there are none: Java clients read the map of a send
    /// response without asking whether there is one.
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
        // A length that does not fit makes the whole frame too long, which finish() refuses.
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

/// Writes a JSON string: quotes, backslashes and control characters escaped, all else as it is.
fn push_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
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
