//! Bodies that are compressed: three formats, each undone only up to a size that the caller names.

use std::io::{self, Read, Write};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::enter;

/// As RocketMQ's Java client has it: small bodies gain little by more.
const ZLIB_LEVEL: u32 = 5;
const ZSTD_LEVEL: i32 = 3;
/// A zstd frame says how much memory its reader needs; past this (64 MiB) it is refused.
const ZSTD_WINDOW_LOG_MAX: u32 = 26;
const FIRST_ALLOCATION_BYTES_MAX: usize = 1 << 20;

/// Why bytes cannot be decompressed; Python adds which format they are said to be.
pub enum CompressionError {
    TooLong(usize),
    CutOff,
    Damaged(String),
    /// The number of a format that nobody knows here.
    Unknown(i32),
}

impl std::fmt::Display for CompressionError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CompressionError::TooLong(bytes_max) => write!(out, "it is longer than {bytes_max} bytes"),
            CompressionError::CutOff => out.write_str("it is cut off"),
            CompressionError::Damaged(reason) => write!(out, "it is damaged: {reason}"),
            CompressionError::Unknown(number) => write!(out, "it is compressed in format {number}"),
        }
    }
}

impl From<io::Error> for CompressionError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => CompressionError::CutOff,
            _ => CompressionError::Damaged(error.to_string()),
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Zlib,
    Lz4,
    Zstd,
}

impl Format {
    fn named(name: &str) -> PyResult<Format> {
        match name {
            "zlib" => Ok(Format::Zlib),
            "lz4" => Ok(Format::Lz4),
            "zstd" => Ok(Format::Zstd),
            _ => Err(PyValueError::new_err(format!("there is no compression {name:?}"))),
        }
    }

    /// As the system flag of a message says it; clients before 5.0 know only zlib and leave the bits empty.
    fn of_flag(system_flag: i32) -> Result<Format, CompressionError> {
        match system_flag >> 8 & 7 {
            0 | 3 => Ok(Format::Zlib),
            1 => Ok(Format::Lz4),
            2 => Ok(Format::Zstd),
            number => Err(CompressionError::Unknown(number)),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (format, data))]
pub fn compress<'py>(py: Python<'py>, format: &str, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let format = Format::named(format)?;
    let smaller = enter(py, || match format {
        Format::Zlib => deflate(data),
        Format::Lz4 => lz4_frame(data),
        Format::Zstd => Ok(zstd::bulk::compress(data, ZSTD_LEVEL)?),
    })?;
    Ok(PyBytes::new(py, &smaller))
}

#[pyfunction]
#[pyo3(signature = (format, data, bytes_max))]
pub fn decompress<'py>(
    py: Python<'py>,
    format: &str,
    data: &[u8],
    bytes_max: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let format = Format::named(format)?;
    let body = enter(py, || undo(format, data, bytes_max))?;
    Ok(PyBytes::new(py, &body))
}

/// The body of a message whose flag says that it is compressed.
pub fn inflate_body(system_flag: i32, data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    undo(Format::of_flag(system_flag)?, data, bytes_max)
}

fn undo(format: Format, data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    match format {
        // Readers take nothing for the end of a body that is empty.
        _ if data.is_empty() => Err(CompressionError::CutOff),
        Format::Zlib => inflate(data, bytes_max),
        Format::Lz4 => read_lz4_frame(data, bytes_max),
        Format::Zstd => {
            let mut reader = zstd::stream::read::Decoder::with_buffer(data)?;
            reader.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            read_all(reader, bytes_max)
        }
    }
}

fn deflate(data: &[u8]) -> Result<Vec<u8>, CompressionError> {
    let mut stream = Compress::new(Compression::new(ZLIB_LEVEL), true);
    let mut smaller = Vec::with_capacity(data.len() / 2 + 64);
    loop {
        let taken = position(stream.total_in())?;
        let status =
            stream.compress_vec(data.get(taken..).unwrap_or_default(), &mut smaller, FlushCompress::Finish);
        match status {
            Ok(Status::StreamEnd) => return Ok(smaller),
            Ok(Status::Ok | Status::BufError) => smaller.reserve(smaller.capacity().max(64)),
            Err(error) => return Err(CompressionError::Damaged(error.to_string())),
        }
    }
}

fn lz4_frame(data: &[u8]) -> Result<Vec<u8>, CompressionError> {
    // Blocks that depend on each other, which would be smaller, are not read by the Java client.
    let info = lz4_flex::frame::FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Independent);
    let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    writer.write_all(data)?;
    writer.finish().map_err(|error| CompressionError::Damaged(error.to_string()))
}

/// By hand and not through a reader, which takes the end of the data for the end of the stream.
fn inflate(data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut stream = Decompress::new(true);
    let mut body = Vec::with_capacity(first_allocation(data, bytes_max));
    loop {
        let (taken, given) = (position(stream.total_in())?, body.len());
        let rest = data.get(taken..).unwrap_or_default();
        let status = stream
            .decompress_vec(rest, &mut body, FlushDecompress::None)
            .map_err(|error| CompressionError::Damaged(error.to_string()))?;
        if body.len() > bytes_max {
            return Err(CompressionError::TooLong(bytes_max));
        }
        if status == Status::StreamEnd {
            return Ok(body);
        }
        if body.len() == body.capacity() {
            // One byte past the limit is enough to know that there are too many.
            let room = bytes_max.saturating_add(1).saturating_sub(body.len());
            body.reserve_exact(body.capacity().max(64).min(room));
        } else if position(stream.total_in())? == taken && body.len() == given {
            return Err(CompressionError::CutOff);
        }
    }
}

fn read_lz4_frame(data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut reader = lz4_flex::frame::FrameDecoder::new(Watched { rest: data, is_short: false });
    let body = read_all(&mut reader, bytes_max)?;
    if reader.get_ref().is_short { Err(CompressionError::CutOff) } else { Ok(body) }
}

/// Remembers that more was wanted than there is: the reader of frames takes that for their end.
struct Watched<'data> {
    rest: &'data [u8],
    is_short: bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.is_short |= self.rest.is_empty() && !out.is_empty();
        self.rest.read(out)
    }
}

fn read_all(reader: impl Read, bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut body = Vec::new();
    reader.take(bytes_max as u64 + 1).read_to_end(&mut body)?;
    if body.len() > bytes_max {
        return Err(CompressionError::TooLong(bytes_max));
    }
    Ok(body)
}

fn first_allocation(data: &[u8], bytes_max: usize) -> usize {
    data.len().saturating_mul(4).min(FIRST_ALLOCATION_BYTES_MAX).min(bytes_max.saturating_add(1))
}

fn position(total: u64) -> Result<usize, CompressionError> {
    usize::try_from(total).map_err(|error| CompressionError::Damaged(error.to_string()))
}
