//! The checksum of a whole record. It is the last property of the record, in the form of Apache's brokers.
//!
//! ```text
//! | size … properties length | 0x02 | properties | __CRC32# 0x01 | ten digits | 0x02 |
//! `-------- what it covers, with the mark -------´ `----------- 20 bytes -----------´
//! ```
//! The number is the CRC-32 of all bytes before the property, cut to 31 bits, with its least significant digit first.
//! The 0x02 in front is an empty property, which all readers skip. It marks the record as one that ends with a
//! checksum: if the property itself is damaged, the record does not pass for one that never had it. Apache's brokers
//! write no mark. For their records, a property that almost has the right form counts as a damaged one.
//!
//! An unmarked record may also be a copy that another broker made with the properties of its original, so that the
//! number is that of the original. Such a record is sound, and only its body is covered: see [`is_of_another`].

use std::sync::LazyLock;

use crc32fast::Hasher;

use crate::properties::VALUE_END;

/// The name of the property.
pub const CHECKSUM_NAME: &str = "__CRC32#";
/// Bytes of the property, with its end mark.
pub const CHECKSUM_BYTES: usize = NAME_BYTES + 1 + DIGITS + 1;
pub(crate) const MARK: u8 = VALUE_END;
const NAME_BYTES: usize = 8;
const NAME_AND_MARK: &[u8; NAME_BYTES + 1] = b"__CRC32#\x01";
const DIGITS: usize = 10;
/// A property that differs from the form in no more bits than this is a damaged checksum.
const DAMAGED_BITS_MAX: u32 = 8;

/// The part of a record that its checksum covers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Everything.
    Record,
    /// The body. The record is older, or had no room, or comes from a broker that writes no other checksum or copies that
    /// of another record.
    Body,
    /// The record had a checksum, which is damaged.
    Broken,
}

/// How the properties of a record end and begin.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// With a checksum, and the mark in front.
    Marked,
    /// With a checksum, maybe that of another record.
    Unmarked,
    Missing,
    Broken,
}

/// The form of the checksum of a record with these properties, and the properties without the checksum.
#[inline]
pub(crate) fn form(properties: &[u8]) -> (Form, &[u8]) {
    if let Some((own, [name @ .., _, _, _, _, _, _, _, _, _, _, VALUE_END])) =
        properties.split_last_chunk::<CHECKSUM_BYTES>()
    {
        if name == NAME_AND_MARK {
            return own.strip_prefix(&[MARK]).map_or((Form::Unmarked, own), |own| (Form::Marked, own));
        }
    }
    (form_without_checksum(properties), properties)
}

#[cold]
fn form_without_checksum(properties: &[u8]) -> Form {
    let is_damaged = properties.first() == Some(&MARK)
        || is_alike(properties)
        // No broker writes zeros alone, but a power loss does.
        || (!properties.is_empty() && properties.iter().all(|byte| *byte == 0));
    if is_damaged { Form::Broken } else { Form::Missing }
}

/// The properties without what a reader would take for a checksum at their end.
pub(crate) fn without_likeness(mut properties: &[u8]) -> &[u8] {
    while is_alike(properties) {
        properties = properties.get(..properties.len() - CHECKSUM_BYTES).unwrap_or_default();
    }
    properties
}

/// Whether the properties end with a checksum, maybe a damaged one.
fn is_alike(properties: &[u8]) -> bool {
    let Some(last) = properties.last_chunk::<CHECKSUM_BYTES>() else { return false };
    let [form, found] = [&property(0), last].map(|property| {
        let [a, b, c, d, e, f, g, h, mark, .., end] = *property;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u16::from_le_bytes([mark, end]))
    });
    (form.0 ^ found.0).count_ones() + (form.1 ^ found.1).count_ones() <= DAMAGED_BITS_MAX
}

/// Whether the last 20 bytes of a record are its checksum.
#[inline]
pub(crate) fn matches(record: &[u8]) -> bool {
    let Some((covered, property)) = record.split_last_chunk::<CHECKSUM_BYTES>() else { return false };
    *property == self::property(crc31(covered))
}

/// Whether an unmarked record, whose checksum is wrong, ends with the checksum of another record. Older brokers copy it
/// with the other properties of a message, which are text.
///
/// If the number is right with the mark as the first byte of the properties, the record is one with a damaged mark.
#[cold]
pub(crate) fn is_of_another(record: &[u8], properties: &[u8]) -> bool {
    let Some((covered, property)) = record.split_last_chunk::<CHECKSUM_BYTES>() else { return false };
    let is_number = property[NAME_BYTES + 1..CHECKSUM_BYTES - 1].iter().all(u8::is_ascii_digit);
    let is_text = !properties.contains(&0) && std::str::from_utf8(properties).is_ok();
    if !is_number || !is_text {
        return false;
    }
    let Some((head, [_, rest @ ..])) = covered.split_at_checked(covered.len() - properties.len()) else {
        return true;
    };
    *property != self::property(crc31_of([head, &[MARK], rest]))
}

/// Ends a record, which is laid out but for the last 20 bytes, with its checksum.
#[inline]
pub(crate) fn seal(record: &mut [u8]) {
    let Some((covered, property)) = record.split_last_chunk_mut::<CHECKSUM_BYTES>() else { return };
    *property = self::property(crc31(covered));
}

#[inline]
fn property(number: u32) -> [u8; CHECKSUM_BYTES] {
    let (low, high) = digits(number);
    let mut property = [0; CHECKSUM_BYTES];
    property[..NAME_BYTES + 1].copy_from_slice(NAME_AND_MARK);
    property[NAME_BYTES + 1..NAME_BYTES + 9].copy_from_slice(&low);
    property[NAME_BYTES + 9..NAME_BYTES + 11].copy_from_slice(&high);
    property[CHECKSUM_BYTES - 1] = VALUE_END;
    property
}

#[inline]
pub(crate) fn crc31(bytes: &[u8]) -> u32 {
    crc31_of([bytes])
}

#[inline]
fn crc31_of<const N: usize>(parts: [&[u8]; N]) -> u32 {
    // A new hasher asks the processor what it can do, which would cost as much as a small body.
    static NEW: LazyLock<Hasher> = LazyLock::new(Hasher::new);
    let mut hasher = NEW.clone();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize() & 0x7FFF_FFFF
}

/// The ten digits of a number, the least significant first: eight and two. All digits of a half are computed at once,
/// in lanes of one word.
#[inline]
fn digits(number: u32) -> ([u8; 8], [u8; 2]) {
    let (high, low) = (number / 100_000_000, u64::from(number % 100_000_000));
    let fours = (low % 10_000) | ((low / 10_000) << 32);
    // Each lane divided by 100, then by 10; the factors are exact for numbers that small.
    let hundreds = ((fours * 10_486) >> 20) & 0x7F_0000_007F;
    let twos = (fours - 100 * hundreds) | (hundreds << 16);
    let tens = ((twos * 103) >> 10) & 0x000F_000F_000F_000F;
    let ones = (twos - 10 * tens) | (tens << 8);
    let text = ones + 0x3030_3030_3030_3030;
    (text.to_le_bytes(), [b'0' + (high % 10) as u8, b'0' + (high / 10) as u8])
}

#[cfg(test)]
mod tests;
