//! `Frame` and `FrameDecoder`: the frames of connections that Python opens itself.

use std::collections::HashMap;

use metaq_transport::{not_a_frame, sniff};
use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, Header, LANGUAGE_PYTHON, WireError, next_frame};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{Failure, FrameError};

#[pyfunction]
#[pyo3(signature = (code, *, opaque, flag=0, remark=None, fields=None, body=&[][..], binary=false))]
#[allow(clippy::too_many_arguments)]
pub fn encode_frame<'py>(
    py: Python<'py>,
    code: i32,
    opaque: i32,
    flag: i32,
    remark: Option<&str>,
    fields: Option<HashMap<String, String>>,
    body: &[u8],
    binary: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let encoding = if binary { Encoding::Binary } else { Encoding::Json };
    let mut out = Vec::with_capacity(256 + body.len());
    let mut frame = FrameEncoder::request_in(&mut out, encoding, LANGUAGE_PYTHON, code, opaque, flag);
    if let Some(remark) = remark {
        frame.remark(remark);
    }
    for (name, value) in fields.iter().flatten() {
        frame.field(name, value);
    }
    frame.finish(body.len()).map_err(Failure::from)?;
    out.extend_from_slice(body);
    Ok(PyBytes::new(py, &out))
}

#[pyfunction]
#[pyo3(signature = (tag))]
pub fn tag_code(tag: &str) -> i64 {
    metaq_wire::tag_code(tag)
}

/// The codes of the tags that `a || b` names, sorted, each once.
#[pyfunction]
#[pyo3(signature = (expression))]
pub fn tag_codes(expression: &str) -> Vec<i64> {
    let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
    let mut codes: Vec<i64> = tags.map(metaq_wire::tag_code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct Frame {
    code: i32,
    language: u8,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<String>,
    fields: HashMap<String, String>,
    body: Py<PyBytes>,
}

impl Frame {
    fn decode(py: Python<'_>, frame: &metaq_wire::Frame<'_>) -> Result<Self, WireError> {
        let header = Header::parse(frame.encoding, frame.header)?;
        let fields: Result<HashMap<String, String>, WireError> = header
            .fields()
            .map(|field| field.map(|(name, value)| (name.into_owned(), value.into_owned())))
            .collect();
        Ok(Frame {
            code: header.code,
            language: header.language,
            version: header.version,
            opaque: header.opaque,
            flag: header.flag,
            fields: fields?,
            remark: header.remark.map(|remark| remark.into_owned()),
            body: PyBytes::new(py, frame.body).unbind(),
        })
    }
}

#[pyclass(module = "metaq._core")]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    frame_bytes_max: usize,
    has_frames: bool,
}

impl FrameDecoder {
    /// Why the bytes that are left are not a frame: the first bytes of a peer say what it speaks instead.
    fn explain(&self, rest: &[u8], error: &WireError) -> PyErr {
        let protocol = if self.has_frames { None } else { sniff(rest, self.frame_bytes_max) };
        FrameError::new_err(not_a_frame(protocol, error))
    }
}

#[pymethods]
impl FrameDecoder {
    #[new]
    #[pyo3(signature = (frame_bytes_max=FRAME_BYTES_MAX))]
    fn new(frame_bytes_max: usize) -> Self {
        FrameDecoder { buffer: Vec::new(), frame_bytes_max, has_frames: false }
    }

    fn feed(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<Vec<Frame>> {
        self.buffer.extend_from_slice(data);
        let mut frames = Vec::new();
        let mut start = 0;
        loop {
            let rest = &self.buffer[start..];
            let frame = next_frame(rest, self.frame_bytes_max).map_err(|error| self.explain(rest, &error))?;
            let Some(frame) = frame else { break };
            frames.push(Frame::decode(py, &frame).map_err(|error| self.explain(rest, &error))?);
            start += frame.size;
            self.has_frames = true;
        }
        self.buffer.drain(..start);
        Ok(frames)
    }
}
