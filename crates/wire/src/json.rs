//! The JSON header encoding (type 0), read in one forward scan without building a tree.

use crate::error::WireError;
use crate::header::{Header, LANGUAGE_JAVA, LANGUAGE_OTHER, LANGUAGES, RawField, RawFields};
use crate::scan::{Scan, Scanner};
use crate::text::{RawText, parse_i64};

/// Decodes a JSON header.
///
/// ```text
/// { "code": int, "language": name, "version": int, "opaque": int, "flag": int, "remark": text | null,
///   "extFields": { name: value, ... } | null, anything else: ignored }
/// ```
/// Keys come in any order, with any white space, and each may be missing or null. Control characters are accepted raw
/// or escaped.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header<'_>, WireError> {
    scan_header(bytes).map_err(WireError::BadHeader)
}

fn scan_header(bytes: &[u8]) -> Scan<Header<'_>> {
    let mut header = Header {
        code: 0,
        language: LANGUAGE_JAVA,
        version: 0,
        opaque: 0,
        flag: 0,
        remark: None,
        fields: RawFields::None,
    };
    let mut scanner = Scanner::new(bytes, 0);
    scanner.expect(b'{')?;
    let mut first = true;
    while let Some(key) = scanner.next_key(first)? {
        first = false;
        match &*key.octets() {
            b"code" => header.code = integer(scanner.value()?)?,
            b"version" => header.version = integer(scanner.value()?)?,
            b"opaque" => header.opaque = integer(scanner.value()?)?,
            b"flag" => header.flag = integer(scanner.value()?)?,
            b"language" => header.language = language(scanner.value()?),
            b"remark" => header.remark = scanner.value()?.map(RawText::text),
            b"extFields" => header.fields = fields(&mut scanner, bytes)?,
            _ => {
                scanner.value()?;
            }
        }
    }
    if !scanner.is_at_end() {
        return Err("bytes after the end of the JSON header");
    }
    Ok(header)
}

fn integer(value: Option<RawText<'_>>) -> Scan<i32> {
    let Some(value) = value else { return Ok(0) };
    parse_i64(&value.octets())
        .and_then(|wide| i32::try_from(wide).ok())
        .ok_or("a number of the JSON header is not a 32-bit integer")
}

/// Reads the language, which some clients send as a name and others as a number.
fn language(value: Option<RawText<'_>>) -> u8 {
    let Some(value) = value else { return LANGUAGE_OTHER };
    let name = value.octets();
    let position = LANGUAGES.iter().position(|known| *known.as_bytes() == *name);
    let number = || parse_i64(&name).and_then(|number| usize::try_from(number).ok());
    position
        .or_else(number)
        .filter(|code| *code < LANGUAGES.len())
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(LANGUAGE_OTHER)
}

/// The number of fields whose positions are recorded while the header is parsed. A send header has 13 or 14, a signed
/// one a few more; further fields are scanned again on use.
const NOTED_MAX: usize = 18;

/// The fields of a JSON header: the positions of the first ones, and where the others begin.
#[derive(Copy, Clone, Debug)]
pub(crate) struct JsonFields<'a> {
    header: &'a [u8],
    noted: [(Span, Span); NOTED_MAX],
    noted_count: usize,
    /// After the last recorded field, if there are more.
    more_at: Option<usize>,
}

/// A text within the header, which is shorter than 16 MiB.
#[derive(Copy, Clone, Debug, Default)]
struct Span {
    start: u32,
    /// Twice the length, plus 1 if the text has escapes.
    length_and_escaped: u32,
}

impl Span {
    #[inline(always)]
    fn of(header: &[u8], text: RawText<'_>) -> Span {
        let start = text.bytes.as_ptr().addr().wrapping_sub(header.as_ptr().addr());
        Span {
            start: start as u32,
            length_and_escaped: ((text.bytes.len() as u32) << 1) | u32::from(text.escaped),
        }
    }

    #[inline(always)]
    fn text(self, header: &[u8]) -> RawText<'_> {
        let start = self.start as usize;
        let end = start + (self.length_and_escaped >> 1) as usize;
        RawText {
            bytes: header.get(start..end).unwrap_or_default(),
            escaped: self.length_and_escaped & 1 == 1,
        }
    }
}

/// Reads `extFields`: an object or null. Fields that are null are left out.
fn fields<'a>(scanner: &mut Scanner<'a>, header: &'a [u8]) -> Scan<RawFields<'a>> {
    if scanner.peek()? == b'n' {
        scanner.value()?;
        return Ok(RawFields::None);
    }
    scanner.expect(b'{')?;
    let mut fields = JsonFields {
        header,
        noted: [(Span::default(), Span::default()); NOTED_MAX],
        noted_count: 0,
        more_at: None,
    };
    let mut first = true;
    let mut before = scanner.position();
    while let Some(name) = scanner.next_key(first)? {
        first = false;
        if let Some(value) = scanner.value()? {
            match fields.noted.get_mut(fields.noted_count) {
                Some(place) => {
                    *place = (Span::of(header, name), Span::of(header, value));
                    fields.noted_count += 1;
                }
                None => fields.more_at = fields.more_at.or(Some(before)),
            }
        }
        before = scanner.position();
    }
    Ok(RawFields::Json(fields))
}

impl<'a> JsonFields<'a> {
    #[inline]
    pub(crate) fn iter(&self) -> JsonFieldsIter<'_, 'a> {
        let noted = self.noted.get(..self.noted_count).unwrap_or_default();
        JsonFieldsIter { header: self.header, noted: noted.iter(), more_at: self.more_at }
    }
}

/// Iterates over the fields: first the recorded ones, then the others by scanning. Numbers, booleans and nested values
/// come as their text.
pub(crate) struct JsonFieldsIter<'h, 'a> {
    header: &'a [u8],
    noted: std::slice::Iter<'h, (Span, Span)>,
    more_at: Option<usize>,
}

impl<'a> JsonFieldsIter<'_, 'a> {
    /// The next field after the recorded ones. Parsing has checked it, so it is valid.
    #[cold]
    fn scan_more(&mut self) -> Option<RawField<'a>> {
        let mut scanner = Scanner::new(self.header, self.more_at.take()?);
        while let Ok(Some(name)) = scanner.next_key(false) {
            if let Some(value) = scanner.value().ok()? {
                self.more_at = Some(scanner.position());
                return Some((name, value));
            }
        }
        None
    }
}

impl<'a> Iterator for JsonFieldsIter<'_, 'a> {
    type Item = RawField<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RawField<'a>> {
        match self.noted.next() {
            Some((name, value)) => Some((name.text(self.header), value.text(self.header))),
            None if self.more_at.is_none() => None,
            None => self.scan_more(),
        }
    }
}

#[cfg(test)]
mod tests;
