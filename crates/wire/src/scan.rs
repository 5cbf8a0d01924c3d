//! A forward scanner over JSON text, limited to what a header needs.

use crate::bytes::find_either;
use crate::text::{RawText, hex_unit};

/// How deep an ignored value may nest.
const DEPTH_MAX: u32 = 32;

const TRUNCATED: &str = "the JSON header ends too early";
const MALFORMED: &str = "the JSON header is not a well-formed object";

/// Errors inside the scan are plain texts: a small error keeps the results in registers.
pub(crate) type Scan<T> = Result<T, &'static str>;

/// The short paths are inlined: a send header has some forty strings, and a call for each would be most of the work.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Scanner { bytes, at }
    }

    /// The position of the scan.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.at == self.bytes.len()
    }

    #[cold]
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// Returns the next byte that is not white space, without taking it.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Scan<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte > b' ' => Ok(byte),
            _ => {
                self.skip_space();
                self.bytes.get(self.at).copied().ok_or(TRUNCATED)
            }
        }
    }

    #[inline(always)]
    pub(crate) fn expect(&mut self, wanted: u8) -> Scan<()> {
        if self.peek()? != wanted {
            return Err(MALFORMED);
        }
        self.at += 1;
        Ok(())
    }

    /// Steps to the next member of an object and returns its key, with the scanner before the value; `None` after the
    /// closing brace.
    #[inline(always)]
    pub(crate) fn next_key(&mut self, first: bool) -> Scan<Option<RawText<'a>>> {
        let mut next = self.peek()?;
        if next == b'}' {
            self.at += 1;
            return Ok(None);
        }
        if !first {
            self.expect(b',')?;
            next = self.peek()?;
        }
        if next != b'"' {
            return Err("a key of the JSON header is not a string");
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// A string; the scanner stands on its opening quote.
    #[inline(always)]
    fn string(&mut self) -> Scan<RawText<'a>> {
        let start = self.at + 1;
        let mut at = find_either(self.bytes, start, b'"', b'\\').ok_or(TRUNCATED)?;
        let escaped = self.bytes.get(at) == Some(&b'\\');
        if escaped {
            at = self.end_of_escaped(at)?;
        }
        self.at = at + 1;
        let bytes = self.bytes.get(start..at).ok_or(TRUNCATED)?;
        Ok(RawText { bytes, escaped })
    }

    /// The closing quote of a string whose first escape is at `at`; every escape is checked.
    fn end_of_escaped(&self, mut at: usize) -> Scan<usize> {
        loop {
            let length = match self.bytes.get(at..) {
                Some([b'"', ..]) => return Ok(at),
                Some([_, b'u', b'0', b'0', b'0', b'0'..=b'9', ..]) => 6,
                Some([_, b'u', digits @ ..]) if hex_unit(digits).is_some() => 6,
                Some([_, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..]) => 2,
                _ => return Err("the JSON header has an invalid escape"),
            };
            at = find_either(self.bytes, at + length, b'"', b'\\').ok_or(TRUNCATED)?;
        }
    }

    /// A value of any kind as its text; `None` for null.
    #[inline(always)]
    pub(crate) fn value(&mut self) -> Scan<Option<RawText<'a>>> {
        match self.peek()? {
            b'"' => self.string().map(Some),
            first => self.bare_value(first),
        }
    }

    fn bare_value(&mut self, first: u8) -> Scan<Option<RawText<'a>>> {
        match first {
            b'-' | b'0'..=b'9' => Ok(Some(self.number())),
            b'n' => self.word(b"null").map(|_| None),
            b't' => self.word(b"true").map(Some),
            b'f' => self.word(b"false").map(Some),
            b'{' | b'[' => self.nested().map(Some),
            _ => Err(MALFORMED),
        }
    }

    fn word(&mut self, word: &[u8]) -> Scan<RawText<'a>> {
        let end = self.at + word.len();
        let text = self.bytes.get(self.at..end).filter(|text| *text == word).ok_or(MALFORMED)?;
        self.at = end;
        Ok(RawText::plain(text))
    }

    fn number(&mut self) -> RawText<'a> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.iter().position(|byte| !is_number(byte)).unwrap_or(rest.len());
        self.at += length;
        RawText::plain(rest.get(..length).unwrap_or_default())
    }

    /// Skips an object or a list. Strings are skipped whole and brackets must pair; the rest is not checked.
    fn nested(&mut self) -> Scan<RawText<'a>> {
        let start = self.at;
        let mut depth = 0;
        // One bit per open bracket, the innermost lowest; 1 is a brace.
        let mut open: u32 = 0;
        loop {
            match *self.bytes.get(self.at).ok_or(TRUNCATED)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                bracket @ (b'{' | b'[') => {
                    if depth == DEPTH_MAX {
                        return Err("the JSON header is nested too deeply");
                    }
                    depth += 1;
                    open = (open << 1) | u32::from(bracket == b'{');
                }
                bracket @ (b'}' | b']') => {
                    if open & 1 != u32::from(bracket == b'}') {
                        return Err("brackets of the JSON header do not match");
                    }
                    depth -= 1;
                    open >>= 1;
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                let bytes = self.bytes.get(start..self.at).ok_or(TRUNCATED)?;
                return Ok(RawText::plain(bytes));
            }
        }
    }
}
