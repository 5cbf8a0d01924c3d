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

/// Restores a request code that this encoding cut to 16 bits. Pop and lite requests have codes above 200 000, and no
/// other request has a code in the range that they are cut to.
fn whole_code(code: i16) -> i32 {
    const CUT_OFF: i32 = 3 << 16;
    match code {
        3442..=3448 | 3462..=3471 | 3543 => i32::from(code) + CUT_OFF,
        other => i32::from(other),
    }
}

/// Iterates over a fields block that has been checked. Fields whose name or value is null are left out.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: [u8; 48] = [
        0x01, 0x36, // code 310
        9,    // language GO
        0x01, 0xDF, // version 479
        0xFF, 0xFF, 0xFF, 0xF9, // opaque -7
        0, 0, 0, 2, // flag oneway
        0, 0, 0, 3, b'w', b'h', b'y', // remark
        0, 0, 0, 24, // fields
        0, 1, b'b', 0, 0, 0, 1, b'T', // b = T
        0, 1, b'c', 0, 0, 0, 0, // c = null
        0, 1, b'i', 0, 0, 0, 2, 0xC3, 0xA9, // i = é
    ];

    #[test]
    fn reads_the_golden_header() {
        let header = parse(&GOLDEN).unwrap();
        assert_eq!((header.code, header.version, header.opaque, header.flag), (310, 479, -7, 2));
        assert_eq!((header.language_name(), header.remark.as_deref()), ("GO", Some("why")));
        let fields: Vec<_> = header.fields().map(|field| field.unwrap()).collect();
        assert_eq!(fields, [("b".into(), "T".into()), ("i".into(), "é".into())]);
        assert!(fields.iter().all(|(_, value)| matches!(value, Cow::Borrowed(_))));
        assert_eq!(header.field("i"), Ok(Some("é".into())));
        assert_eq!(header.field("c"), Ok(None));
    }

    #[test]
    fn the_fixed_part_alone_is_a_header() {
        let header = parse(&[0; 21]).unwrap();
        assert_eq!((header.code, header.remark.is_none(), header.fields().count()), (0, true, 0));
    }

    #[test]
    fn every_cut_and_every_tail_is_an_error() {
        for length in 0..GOLDEN.len() {
            assert!(parse(&GOLDEN[..length]).is_err(), "{length} bytes");
        }
        assert!(parse(&[&GOLDEN[..], &[0]].concat()).is_err());
    }

    #[test]
    fn wrong_lengths_are_errors() {
        for (at, byte) in [
            (13, 0x80),
            (16, 2),
            (16, 4),
            (20, 0x80),
            (23, 23),
            (23, 25),
            (24, 0x80),
            (25, 2),
            (27, 0x80),
            (30, 2),
        ] {
            let mut bytes = GOLDEN;
            bytes[at] = byte;
            assert!(matches!(parse(&bytes), Err(WireError::BadHeader(_))), "byte {at}");
        }
    }

    #[test]
    fn codes_cut_to_16_bits_are_made_whole() {
        for (cut, whole) in [
            (3442, 200_050),
            (3443, 200_051),
            (3444, 200_052),
            (3445, 200_053),
            (3446, 200_054),
            (3447, 200_055),
            (3448, 200_056),
            (3462, 200_070),
            (3471, 200_079),
            (3543, 200_151),
            (310, 310),
            (3001, 3001),
            (-1, -1),
        ] {
            assert_eq!(whole_code(cut), whole);
            assert_eq!(whole as i16, cut);
        }
        let mut response = [0; 21];
        response[..2].copy_from_slice(&3442i16.to_be_bytes());
        assert_eq!(parse(&response).unwrap().code, 200_050);
        response[12] = 1;
        assert_eq!(parse(&response).unwrap().code, 3442, "the code of an answer is not a request code");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), small in prop::collection::vec(0u8..4, 21..64)) {
            crate::fuzzing::frame_binary(&bytes);
            crate::fuzzing::frame_binary(&small);
        }
    }
}
