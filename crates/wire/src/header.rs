//! The header of a frame, the same for both encodings.

use std::borrow::Cow;

use crate::binary::{self, BinaryFields};
use crate::error::WireError;
use crate::frame::Encoding;
use crate::json::{self, JsonFields, JsonFieldsIter};
use crate::text::RawText;

/// Bit of `flag`: this frame answers a request.
pub const FLAG_RESPONSE: i32 = 1;
/// Bit of `flag`: the sender expects no response.
pub const FLAG_ONEWAY: i32 = 2;

/// The names behind the language codes, in the order of their codes.
pub const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
];
pub const LANGUAGE_JAVA: u8 = 0;
pub const LANGUAGE_PYTHON: u8 = 3;
/// Stands for unknown languages.
pub const LANGUAGE_OTHER: u8 = 7;

/// The name of a language code. Unknown codes are `OTHER`.
#[inline]
pub fn language_name(code: u8) -> &'static str {
    LANGUAGES.get(usize::from(code)).copied().unwrap_or("OTHER")
}

/// A decoded header. Its fields stay in the buffer and are decoded on use; parsing has checked them.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    pub code: i32,
    /// A language code; [`Header::language_name`] has its name.
    pub language: u8,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<Cow<'a, str>>,
    pub(crate) fields: RawFields<'a>,
}

/// The fields: recorded positions of a JSON header, or the binary block.
#[derive(Copy, Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "lives on the stack for one request; a box would allocate")]
pub(crate) enum RawFields<'a> {
    None,
    Json(JsonFields<'a>),
    Binary(&'a [u8]),
}

impl<'a> Header<'a> {
    /// Decodes a header and checks every byte of it. The decoder of each encoding has a diagram.
    pub fn parse(encoding: Encoding, bytes: &'a [u8]) -> Result<Header<'a>, WireError> {
        match encoding {
            Encoding::Json => json::parse(bytes),
            Encoding::Binary => binary::parse(bytes),
        }
    }

    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    pub fn language_name(&self) -> &'static str {
        language_name(self.language)
    }

    /// Name and value of every field, in wire order, without fields that are null. Borrows from the buffer unless an
    /// escape or invalid UTF-8 forces a copy.
    pub fn fields(&self) -> impl Iterator<Item = Result<(Cow<'a, str>, Cow<'a, str>), WireError>> {
        self.raw_fields().map(|(name, value)| Ok((name.text(), value.text())))
    }

    /// The value of one field. If a name occurs twice, the last value counts, here and in the hot headers: two readers
    /// of one request must never see different topics.
    pub fn field(&self, name: &str) -> Result<Option<Cow<'a, str>>, WireError> {
        let mut found = None;
        for (field_name, value) in self.raw_fields() {
            if *field_name.octets() == *name.as_bytes() {
                found = Some(value);
            }
        }
        Ok(found.map(RawText::text))
    }

    #[inline]
    pub(crate) fn raw_fields(&self) -> RawFieldsIter<'_, 'a> {
        match &self.fields {
            RawFields::None => RawFieldsIter::Binary(BinaryFields::new(&[])),
            RawFields::Json(fields) => RawFieldsIter::Json(fields.iter()),
            RawFields::Binary(block) => RawFieldsIter::Binary(BinaryFields::new(block)),
        }
    }
}

pub(crate) enum RawFieldsIter<'h, 'a> {
    Json(JsonFieldsIter<'h, 'a>),
    Binary(BinaryFields<'a>),
}

/// Name and value of a field, not decoded.
pub(crate) type RawField<'a> = (RawText<'a>, RawText<'a>);

impl<'a> Iterator for RawFieldsIter<'_, 'a> {
    type Item = RawField<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RawField<'a>> {
        match self {
            RawFieldsIter::Json(fields) => fields.next(),
            RawFieldsIter::Binary(fields) => fields.next(),
        }
    }
}

#[cfg(test)]
mod tests;
