//! Message properties, `name 0x01 value 0x02` repeated, and the hash that filters tags.

use std::ops::Range;

use crate::bytes::find as find_byte;

/// Separates name and value.
pub const NAME_END: u8 = 1;
/// Ends a value; the last one may lack it.
pub const VALUE_END: u8 = 2;

/// Iterates over properties: name, value and the span of the whole entry with its end mark.
///
/// ```text
/// ( | name | 0x01 | value | 0x02 | )*      the last 0x02 is optional
/// ```
/// Entries without a name or without a value are skipped.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One property and the span of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub span: Range<usize>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        while self.at < self.bytes.len() {
            let start = self.at;
            let end = find_byte(self.bytes, start, VALUE_END).unwrap_or(self.bytes.len());
            self.at = (end + 1).min(self.bytes.len());
            let entry = self.bytes.get(start..end)?;
            let Some(split) = find_byte(entry, 0, NAME_END) else { continue };
            let (name, value) = (entry.get(..split)?, entry.get(split + 1..)?);
            if !name.is_empty() && !value.is_empty() {
                return Some(Entry { name, value, span: start..self.at });
            }
        }
        None
    }
}

pub fn entries(properties: &[u8]) -> Entries<'_> {
    Entries { bytes: properties, at: 0 }
}

/// How many properties there are at most, in a small part of the time that it takes to walk over them.
pub fn entries_max(properties: &[u8]) -> usize {
    // Sums that fit into a byte are computed for many bytes at once.
    let ends = |part: &[u8]| part.iter().map(|byte| u8::from(*byte == VALUE_END)).sum::<u8>();
    1 + properties.chunks(usize::from(u8::MAX)).map(|part| usize::from(ends(part))).sum::<usize>()
}

/// Name and value of every property, in stored order.
pub fn iterate(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    entries(properties).map(|entry| (entry.name, entry.value))
}

/// The value of a property. If a name occurs twice, the last value counts, as it does for every client: properties that
/// the broker appends override those of the client.
pub fn find<'a>(properties: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let [value] = find_many(properties, [name]);
    value
}

/// The values of several properties in one pass.
pub fn find_many<'a, const N: usize>(properties: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    let mut at = 0;
    while at < properties.len() {
        let end = find_byte(properties, at, VALUE_END).unwrap_or(properties.len());
        // Compares the names in place: finding the end of every name would double the cost.
        let entry = properties.get(at..end).unwrap_or_default();
        for (value, name) in values.iter_mut().zip(names) {
            // Most names end elsewhere, which is cheaper to see than that they differ.
            if entry.get(name.len()) != Some(&NAME_END) {
                continue;
            }
            if let Some([NAME_END, found @ ..]) = entry.strip_prefix(name.as_bytes()) {
                if !found.is_empty() {
                    *value = Some(found);
                }
            }
        }
        at = end + 1;
    }
    values
}

/// The span of the last entry with this name, so that a writer can slice around it.
pub fn find_span(properties: &[u8], name: &str) -> Option<Range<usize>> {
    entries(properties).filter(|entry| *entry.name == *name.as_bytes()).last().map(|entry| entry.span)
}

/// The bytes between these properties and further ones: nothing, or the end mark if the last property lacks it.
pub fn separator(properties: &[u8]) -> &'static [u8] {
    match properties.last() {
        None | Some(&VALUE_END) => b"",
        Some(_) => &[VALUE_END],
    }
}

/// Appends one property.
pub fn push(out: &mut Vec<u8>, name: &str, value: &str) {
    push_bytes(out, name.as_bytes(), value.as_bytes());
}

/// Appends one property as it is stored.
pub fn push_bytes(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.push(NAME_END);
    out.extend_from_slice(value);
    out.push(VALUE_END);
}

/// `String.hashCode` of Java: over UTF-16 units, wrapping in 32 bits.
pub fn java_hash(text: &str) -> i32 {
    java_hash_on(0, text)
}

/// Continues the hash of a text whose beginning has the hash `hash`.
#[inline]
pub fn java_hash_on(hash: i32, text: &str) -> i32 {
    let step = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    if !text.is_ascii() {
        return text.encode_utf16().fold(hash, |hash, unit| step(hash, i32::from(unit)));
    }
    // Four characters per step, so that the multiplications do not wait for each other.
    let (fours, rest) = text.as_bytes().split_at(text.len() & !3);
    let hash = fours.chunks_exact(4).fold(hash, |hash, four| {
        let [a, b, c, d] = [four[0], four[1], four[2], four[3]].map(i32::from);
        hash.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(a * (31 * 31 * 31) + b * (31 * 31) + c * 31 + d)
    });
    rest.iter().fold(hash, |hash, byte| step(hash, i32::from(*byte)))
}

/// The code of a tag in the consume queue: its hash, sign-extended to 8 bytes; 0 for no tag.
pub fn tag_code(tag: &str) -> i64 {
    i64::from(java_hash(tag))
}

/// The tag code of a message with these properties.
pub fn tag_code_of(properties: &[u8]) -> i64 {
    find(properties, "TAGS").map_or(0, |tag| tag_code(&String::from_utf8_lossy(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &[u8] = b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02WAIT\x01true";

    proptest! {
        #[test]
        fn finding_agrees_with_walking(text in "[ab\u{1}\u{2}]{0,30}", name in "[ab]{1,2}") {
            let walked = iterate(text.as_bytes()).filter(|(found, _)| *found == name.as_bytes()).last();
            prop_assert_eq!(find(text.as_bytes(), &name), walked.map(|(_, value)| value));
        }
    }

    #[test]
    fn the_last_end_mark_is_optional() {
        let all: Vec<_> = iterate(GOLDEN).collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"KEYS", b"k1 k2"), (b"TAGS", b"TagA"), (b"WAIT", b"true")];
        assert_eq!(all, expected);
        assert_eq!(separator(GOLDEN), [2]);
        assert_eq!(separator(b"a\x01b\x02"), b"");
        assert_eq!(separator(b""), b"");
    }

    #[test]
    fn the_number_of_entries_is_known_without_walking() {
        assert_eq!(entries_max(b""), 1);
        assert_eq!(entries_max(GOLDEN), 3);
        assert_eq!(entries_max(&b"a\x01b\x02".repeat(1_000)), 1_001);
        assert_eq!(entries_max(&[VALUE_END; 1_000]), 1_001);
    }

    #[test]
    fn entries_without_name_or_value_are_skipped() {
        let damaged = b"\x02\x01v\x02n\x01\x02plain\x02\x01\x02a\x01b\x01c\x02";
        let all: Vec<_> = iterate(damaged).collect();
        let expected: [(&[u8], &[u8]); 1] = [(b"a", b"b\x01c")];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_last_of_a_name_counts() {
        let twice = b"TRACE_ON\x01false\x02TRACE\x01x\x02TRACE_ON\x01true\x02";
        assert_eq!(find(twice, "TRACE_ON"), Some(&b"true"[..]));
        assert_eq!(find(twice, "TRACE_O"), None);
        assert_eq!(find_many(twice, ["TRACE", "none"]), [Some(&b"x"[..]), None]);
        assert_eq!(find_span(twice, "TRACE"), Some(15..23));
        assert_eq!(&twice[15..23], b"TRACE\x01x\x02");
        assert_eq!(find_span(GOLDEN, "WAIT"), Some(21..30));
    }

    #[test]
    fn hashes_as_java_does() {
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("中文"), 646_394);
        assert_eq!(java_hash("😀"), 1_772_899);
        assert_eq!(tag_code("polygenelubricants"), -2_147_483_648);
        assert_eq!(tag_code_of(GOLDEN), 2_598_919);
        assert_eq!(tag_code_of(b""), 0);
    }

    proptest! {
        #[test]
        fn round_trip(pairs in prop::collection::vec(("[a-zA-Z_]{1,8}", "[^\u{1}\u{2}]{1,12}"), 0..8)) {
            let mut stored = Vec::new();
            for (name, value) in &pairs {
                push(&mut stored, name, value);
            }
            let read: Vec<_> = iterate(&stored).collect();
            let written: Vec<_> =
                pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            prop_assert_eq!(&read, &written);
            for (name, _) in &pairs {
                let last = read.iter().rev().find(|(read_name, _)| *read_name == name.as_bytes());
                prop_assert_eq!(find(&stored, name), last.map(|(_, value)| *value));
            }
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(0u8..5, 0..40)) {
            crate::fuzzing::properties(&bytes);
        }
    }

    proptest! {
        #[test]
        fn the_hash_is_javas_however_it_is_computed(text in ".{0,40}", cut in 0..40_usize) {
            let plain = text.encode_utf16().fold(0_i32, |hash, unit| {
                hash.wrapping_mul(31).wrapping_add(i32::from(unit))
            });
            prop_assert_eq!(java_hash(&text), plain);
            let cut = (0..=cut.min(text.len())).rev().find(|cut| text.is_char_boundary(*cut)).unwrap_or(0);
            prop_assert_eq!(java_hash_on(java_hash(&text[..cut]), &text[cut..]), plain);
        }
    }
}
