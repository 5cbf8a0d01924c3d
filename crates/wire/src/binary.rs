//! The binary header encoding ("ROCKETMQ", type 1).

use std::borrow::Cow;

use crate::bytes::Reader;
use crate::error::WireError;
use crate::header::{FLAG_RESPONSE, Header, RawField, RawFields};
use crate::text::RawText;

const TRUNCATED: WireError = WireError::BadHeader("binary header ends too early");
const NEGATIVE: WireError = WireError::BadHeader("negative length in binary header");

/// Decodes a binary header.
///
/// ```text
/// | code: i16 | language: i8 | version: i16 | opaque: i32 | flag: i32 |
/// | remark length: i32 | remark | fields length: i32 | fields |
/// ```
/// A length of 0 stands for null.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header<'_>, WireError> {
    let mut reader = Reader::new(bytes);
    let code = reader.i16().ok_or(TRUNCATED)?;
    let language = reader.u8().ok_or(TRUNCATED)?;
    let version = reader.i16().ok_or(TRUNCATED)?;
    let opaque = reader.i32().ok_or(TRUNCATED)?;
    let flag = reader.i32().ok_or(TRUNCATED)?;
    let remark = block(&mut reader)?;
    let fields = block(&mut reader)?;
    if !reader.is_empty() {
        return Err(WireError::BadHeader("bytes after the end of the binary header"));
    }
    let mut check = BinaryFields::new(fields);
    while !check.reader.is_empty() {
        check.field()?;
    }
    let is_response = flag & FLAG_RESPONSE != 0;
    Ok(Header {
        code: if is_response { i32::from(code) } else { whole_code(code) },
        language,
        version: i32::from(version),
        opaque,
        flag,
        remark: if remark.is_empty() { None } else { Some(text(remark)) },
        fields: RawFields::Binary(fields),
    })
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    RawText::plain(bytes).text()
}

/// `| length: i32 | bytes |`
#[inline(always)]
fn block<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let length = reader.i32().ok_or(TRUNCATED)?;
    let length =
        usize::try_from(length).map_err(|_| WireError::BadHeader("negative length in binary header"))?;
    reader.take(length).ok_or(TRUNCATED)
}

/// The request code that was cut to 16 bits on its way. Pop and lite requests have codes past 200 000; no other
/// request has a code in the range that they are cut to.
fn whole_code(code: i16) -> i32 {
    const CUT_OFF: i32 = 3 << 16;
    match code {
        3442..=3448 | 3462..=3471 | 3543 => i32::from(code) + CUT_OFF,
        other => i32::from(other),
    }
}

/// Walks a fields block that has been checked. Fields whose name or value is null are left out.
///
/// ```text
/// ( | name length: i16 | name | value length: i32 | value | )*
/// ```
pub(crate) struct BinaryFields<'a> {
    reader: Reader<'a>,
}

impl<'a> BinaryFields<'a> {
    pub(crate) fn new(block: &'a [u8]) -> Self {
        BinaryFields { reader: Reader::new(block) }
    }

    #[inline(always)]
    fn field(&mut self) -> Result<RawField<'a>, WireError> {
        let name_length = self.reader.i16().ok_or(TRUNCATED)?;
        let name_length = usize::try_from(name_length).map_err(|_| NEGATIVE)?;
        let name = self.reader.take(name_length).ok_or(TRUNCATED)?;
        let value = block(&mut self.reader)?;
        Ok((RawText::plain(name), RawText::plain(value)))
    }
}

impl<'a> Iterator for BinaryFields<'a> {
    type Item = RawField<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RawField<'a>> {
        loop {
            let (name, value) = self.field().ok()?;
            if !name.bytes.is_empty() && !value.bytes.is_empty() {
                return Some((name, value));
            }
        }
    }
}
