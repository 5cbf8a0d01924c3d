//! Numbers as Java reads them from a text. Digits are ASCII; hexadecimal doubles, which nobody writes, are not read.
//! Neither are texts of more than [`NUMBER_BYTES_MAX`]: an expression can compare one property a thousand times.

pub(super) const NUMBER_BYTES_MAX: usize = 1_024;

pub(super) fn parse_integer(text: &[u8]) -> Option<i32> {
    parse_long(text)?.try_into().ok()
}

pub(super) fn parse_long(text: &[u8]) -> Option<i64> {
    if text.len() > NUMBER_BYTES_MAX {
        return None;
    }
    // Rust reads just what Java does: a sign of either kind, digits, no space around them.
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a number as Java does. It may have spaces around it and one of `fFdD` after it. `NaN` and `Infinity` are read
/// only in this spelling.
pub(super) fn parse_double(text: &[u8]) -> Option<f64> {
    if text.len() > NUMBER_BYTES_MAX {
        return None;
    }
    let text = trim(text);
    let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    let sign = if text.first() == Some(&b'-') { -1.0 } else { 1.0 };
    match unsigned {
        b"NaN" => return Some(f64::NAN),
        b"Infinity" => return Some(sign * f64::INFINITY),
        _ => {}
    }
    let digits = match unsigned.split_last() {
        Some((b'f' | b'F' | b'd' | b'D', digits)) => digits,
        _ => unsigned,
    };
    // The rest must start like a number: Rust would also accept a second sign and the names of infinity.
    if !digits.first().is_some_and(|first| first.is_ascii_digit() || *first == b'.') {
        return None;
    }
    let value: f64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(sign * value)
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let [b'\0'..=b' ', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b'\0'..=b' '] = text {
        text = rest;
    }
    text
}
