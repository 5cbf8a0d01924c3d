//! A header value in its buffer, decoded only when it is used.

use std::borrow::Cow;

use crate::bytes::find;
use crate::error::WireError;

/// The bytes of one name or value. `escaped` says that it contains JSON escapes, so reading it needs a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawText<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) escaped: bool,
}

impl<'a> RawText<'a> {
    pub(crate) fn plain(bytes: &'a [u8]) -> Self {
        RawText { bytes, escaped: false }
    }

    #[inline(always)]
    pub(crate) fn octets(self) -> Cow<'a, [u8]> {
        if self.escaped { Cow::Owned(unescape(self.bytes)) } else { Cow::Borrowed(self.bytes) }
    }

    /// The text. Invalid UTF-8 becomes U+FFFD, as in the Java broker: some C++ producers send properties in another
    /// charset, and must not lose their connection for it.
    pub(crate) fn text(self) -> Cow<'a, str> {
        if self.escaped {
            return Cow::Owned(owned_text(unescape(self.bytes)));
        }
        match std::str::from_utf8(self.bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => String::from_utf8_lossy(self.bytes),
        }
    }

    #[inline]
    pub(crate) fn i64(self, name: &'static str) -> Result<i64, WireError> {
        // Not through octets(): the separate branch is faster, and escaped digits occur only in tests.
        let value = if self.escaped { parse_i64(&unescape(self.bytes)) } else { parse_i64(self.bytes) };
        value.ok_or(WireError::BadField { name })
    }

    #[inline]
    pub(crate) fn i32(self, name: &'static str) -> Result<i32, WireError> {
        let wide = self.i64(name)?;
        i32::try_from(wide).map_err(|_| WireError::BadField { name })
    }

    /// Reads a boolean as Java does: true for "true" in any case, false for everything else.
    pub(crate) fn boolean(self) -> bool {
        self.octets().eq_ignore_ascii_case(b"true")
    }
}

fn owned_text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// A decimal number with an optional sign, nothing around it.
#[inline]
pub(crate) fn parse_i64(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counts downwards, because -i64::MIN does not fit.
    let mut value: i64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Resolves JSON escapes. The scanner has checked them; an invalid one still becomes U+FFFD.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    // An escape never grows: \uXXXX is 6 bytes for at most 3, a surrogate pair 12 for 4.
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = find(rest, 0, b'\\') {
        let (run, escape) = rest.split_at(at);
        out.extend_from_slice(run);
        rest = match escape {
            // \u0001 and \u0002, the separators of properties, are nearly all of the escapes.
            [_, b'u', b'0', b'0', b'0', digit @ b'0'..=b'9', rest @ ..] => {
                out.push(digit - b'0');
                rest
            }
            [_, b'u', rest @ ..] => {
                let (character, rest) = unicode_escape(rest);
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest
            }
            [_, letter, rest @ ..] => {
                out.push(match letter {
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'f' => 12,
                    b'r' => b'\r',
                    other => *other,
                });
                rest
            }
            _ => &[],
        };
    }
    out.extend_from_slice(rest);
    out
}

/// Reads what follows `\u`: four hex digits, and the other half of a surrogate pair if there is one.
fn unicode_escape(bytes: &[u8]) -> (char, &[u8]) {
    let Some((first, rest)) = hex_unit(bytes) else {
        return (char::REPLACEMENT_CHARACTER, bytes);
    };
    let other_half = match rest {
        [b'\\', b'u', low @ ..] if (0xD800..0xDC00).contains(&first) => hex_unit(low),
        _ => None,
    };
    let (code, rest) = match other_half {
        Some((second @ 0xDC00..=0xDFFF, after)) => {
            (0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00), after)
        }
        _ => (first, rest),
    };
    (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), rest)
}

/// Four hex digits as a UTF-16 unit, and what follows them.
pub(crate) fn hex_unit(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = bytes.split_first_chunk::<4>()?;
    let mut unit = 0;
    for &digit in digits {
        unit = (unit << 4) | char::from(digit).to_digit(16)?;
    }
    Some((unit, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unescaped(text: &str) -> String {
        RawText { bytes: text.as_bytes(), escaped: true }.text().into_owned()
    }

    #[test]
    fn resolves_every_kind_of_escape() {
        assert_eq!(unescaped(r"TAGS\u0001a\u0002"), "TAGS\u{1}a\u{2}");
        assert_eq!(unescaped(r#"\"\\\/\b\f\n\r\t"#), "\"\\/\u{8}\u{c}\n\r\t");
        assert_eq!(unescaped(r"\u00e9\u4E2d\u001f"), "é中\u{1f}");
        assert_eq!(unescaped(r"x\ud83d\ude00y"), "x😀y");
    }

    #[test]
    fn a_lone_surrogate_becomes_the_replacement_character() {
        assert_eq!(unescaped(r"a\ud83db"), "a\u{fffd}b");
        assert_eq!(unescaped(r"\ude00"), "\u{fffd}");
        assert_eq!(unescaped(r"\ud83d\u0041"), "\u{fffd}A");
        assert_eq!(unescaped(r"\ud83d\ud83d\ude00"), "\u{fffd}😀");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(RawText::plain(&[b'a', 0xC4, 0xE3]).text(), "a\u{fffd}\u{fffd}");
        assert!(matches!(RawText::plain(b"plain").text(), Cow::Borrowed("plain")));
    }

    #[test]
    fn numbers_keep_to_their_range() {
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        for bad in ["9223372036854775808", "-9223372036854775809", "", "-", "+", "1.0", "1 ", "0x1"] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad}");
        }
        let wide = RawText::plain(b"2147483648").i32("queueId");
        assert_eq!(wide, Err(WireError::BadField { name: "queueId" }));
        assert_eq!(RawText { bytes: br"\u00312", escaped: true }.i32("queueId"), Ok(12));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = RawText { bytes: &bytes, escaped: true };
            prop_assert!(text.octets().len() <= bytes.len().max(3) + 3);
            let _ = (text.text(), text.i64("x"), text.boolean());
        }

        #[test]
        fn numbers_round_trip(value: i64) {
            prop_assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
        }
    }
}
