//! Requests as they are sent, and replies as they are received.

use std::borrow::Cow;

use bytes::Bytes;
use metaq_wire::{Encoding, FLAG_ONEWAY, Frame, FrameEncoder, Header, WireError};

/// A request to a broker. Its body goes to the socket without another copy.
#[derive(Debug, Clone)]
pub struct Request {
    pub code: i32,
    fields: Vec<(&'static str, Cow<'static, str>)>,
    body: Bytes,
}

impl Request {
    pub fn new(code: i32) -> Self {
        Request { code, fields: Vec::with_capacity(16), body: Bytes::new() }
    }

    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn number(self, name: &'static str, value: i64) -> Self {
        self.field(name, value.to_string())
    }

    #[must_use]
    pub fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// Returns the frame without its body, and the body. Every request passes through here, so fields that all of them
    /// need belong here.
    pub(crate) fn encode(self, opaque: i32, oneway: bool) -> Result<(Bytes, Bytes), WireError> {
        let mut out = Vec::with_capacity(512);
        let flag = if oneway { FLAG_ONEWAY } else { 0 };
        let mut frame = FrameEncoder::request(&mut out, Encoding::Binary, self.code, opaque, flag);
        for (name, value) in &self.fields {
            frame.field(name, value);
        }
        frame.finish(self.body.len())?;
        Ok((Bytes::from(out), self.body))
    }
}

/// A broker's reply; its bytes are slices of the buffer that was read.
#[derive(Debug, Clone)]
pub struct Reply {
    pub code: i32,
    pub remark: Option<String>,
    encoding: Encoding,
    header: Bytes,
    pub body: Bytes,
}

impl Reply {
    /// `whole` holds the frame and nothing else.
    pub(crate) fn new(whole: &Bytes, frame: &Frame<'_>, header: &Header<'_>) -> Self {
        Reply {
            code: header.code,
            remark: header.remark.as_ref().map(ToString::to_string),
            encoding: frame.encoding,
            header: whole.slice_ref(frame.header),
            body: whole.slice_ref(frame.body),
        }
    }

    /// Parses the header to read single fields. It was parsed once before, so this does not fail.
    pub fn header(&self) -> Result<Header<'_>, WireError> {
        Header::parse(self.encoding, &self.header)
    }

    /// Returns all fields.
    pub fn fields(&self) -> Result<Vec<(String, String)>, WireError> {
        let header = self.header()?;
        let owned = |field: Result<(Cow<'_, str>, Cow<'_, str>), WireError>| {
            field.map(|(name, value)| (name.into_owned(), value.into_owned()))
        };
        header.fields().map(owned).collect()
    }
}
