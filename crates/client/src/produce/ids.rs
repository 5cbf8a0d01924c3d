//! The unique ids of messages, in the form of the Java client.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use rustix::time::ClockId;

/// Characters of an id that differ from one message to the next.
pub const TAIL_CHARS: usize = 12;

/// Makes the ids of one client: a constant prefix, the milliseconds since the first of the month, and a counter.
///
/// ```text
/// hex of | ip: 4 or 16 bytes | pid: u16 | random: 4 bytes | milliseconds: u32 | counter: u16 |
///        |<------------------ prefix --------------------->|<------------ tail ------------->|
/// ```
pub struct UniqueIds {
    prefix: String,
    month_start_ms: AtomicI64,
    counter: AtomicU32,
}

/// The part of an id that differs between the messages of a client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct IdTail {
    milliseconds: u32,
    counter: u16,
}

impl IdTail {
    /// A number that differs from one id to the next.
    pub(crate) fn number(self) -> usize {
        usize::from(self.counter)
    }
}

impl UniqueIds {
    /// The month begins in local time, as for Java's tools; only the caller knows the time zone.
    pub fn new(prefix: &[u8], counter: u16, month_start_ms: i64) -> Self {
        let mut text = Vec::with_capacity(prefix.len() * 2);
        push_hex(&mut text, prefix);
        UniqueIds {
            prefix: text.into_iter().map(char::from).collect(),
            month_start_ms: AtomicI64::new(month_start_ms),
            counter: AtomicU32::new(u32::from(counter)),
        }
    }

    pub fn begin_month(&self, month_start_ms: i64) {
        self.month_start_ms.store(month_start_ms, Ordering::Relaxed);
    }

    pub fn next(&self) -> IdTail {
        let now_ms = now_ms();
        let start_ms = self.month_start_ms.load(Ordering::Relaxed);
        IdTail {
            milliseconds: now_ms.wrapping_sub(start_ms) as u32,
            counter: self.counter.fetch_add(1, Ordering::Relaxed) as u16,
        }
    }

    /// Characters of every id.
    pub fn length(&self) -> usize {
        self.prefix.len() + TAIL_CHARS
    }

    pub fn push(&self, tail: IdTail, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        let [a, b, c, d] = tail.milliseconds.to_be_bytes();
        let [e, f] = tail.counter.to_be_bytes();
        push_hex(out, &[a, b, c, d, e, f]);
    }

    pub fn text(&self, tail: IdTail) -> String {
        let mut out = Vec::with_capacity(self.length());
        self.push(tail, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Reads an id back; `None` if this client did not make it.
    pub fn tail_of(&self, id: &str) -> Option<IdTail> {
        let tail = id.strip_prefix(self.prefix.as_str()).filter(|tail| tail.len() == TAIL_CHARS)?;
        let value = u64::from_str_radix(tail, 16).ok()?;
        Some(IdTail { milliseconds: (value >> 16) as u32, counter: value as u16 })
    }
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        out.extend([byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]));
    }
}

/// Milliseconds since 1970 by the coarse clock: a few milliseconds old, but much cheaper to read.
pub(crate) fn now_ms() -> i64 {
    let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_have_the_form_of_javas_and_come_back() {
        let ids = UniqueIds::new(&[10, 1, 2, 3, 0x30, 0x39, 1, 2, 3, 4], 0xFFFE, 0);
        let many: Vec<IdTail> = (0..10_000).map(|_| ids.next()).collect();
        let texts: HashSet<String> = many.iter().map(|tail| ids.text(*tail)).collect();
        assert_eq!(texts.len(), many.len());
        for text in &texts {
            assert_eq!(text.len(), 32);
            assert!(text.starts_with("0A010203303901020304"));
            assert_eq!(ids.text(ids.tail_of(text).unwrap()), *text);
        }
    }

    #[test]
    fn ids_of_other_clients_are_refused() {
        let ids = UniqueIds::new(&[1, 2], 0, 0);
        for other in ["", "0102", "0102ABCDEFABCDE", "0102ABCDEFABCDEG", "0103ABCDEFABCDEF"] {
            assert_eq!(ids.tail_of(other), None, "{other}");
        }
    }
}
