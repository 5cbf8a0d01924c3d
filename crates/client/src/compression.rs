//! Compresses and decompresses message bodies in the three formats that clients use.
//!
//! Every decompression takes the largest size that the caller accepts, so a small body cannot fill the memory.

use std::io::{self, Read, Write};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The `system_flag` bit of a message whose body is compressed.
pub(crate) const COMPRESSED_FLAG: i32 = 1;
/// The level of RocketMQ's Java client: higher levels gain little on small bodies.
const ZLIB_LEVEL: u32 = 5;
const ZSTD_LEVEL: i32 = 3;
/// A zstd frame states how much memory its reader needs. Frames that need more than 64 MiB are refused.
const ZSTD_WINDOW_LOG_MAX: u32 = 26;
const FIRST_ALLOCATION_BYTES_MAX: usize = 1 << 20;

/// Why bytes cannot be decompressed. Python adds the name of the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    #[error("it is cut off")]
    CutOff,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it is compressed in format {0}")]
    UnknownFormat(i32),
}

impl From<io::Error> for CompressionError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => CompressionError::CutOff,
            _ => CompressionError::Damaged(error.to_string()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionFormat {
    Zlib,
    /// LZ4 frames, not bare blocks.
    Lz4,
    Zstd,
}

impl CompressionFormat {
    pub fn from_name(name: &str) -> Option<CompressionFormat> {
        match name {
            "zlib" => Some(CompressionFormat::Zlib),
            "lz4" => Some(CompressionFormat::Lz4),
            "zstd" => Some(CompressionFormat::Zstd),
            _ => None,
        }
    }

    /// Reads bits 8 to 10 of a message's system flag. Clients before 5.0 know only zlib and leave them empty.
    fn from_system_flag(system_flag: i32) -> Result<CompressionFormat, CompressionError> {
        match (system_flag >> 8) & 7 {
            0 | 3 => Ok(CompressionFormat::Zlib),
            1 => Ok(CompressionFormat::Lz4),
            2 => Ok(CompressionFormat::Zstd),
            number => Err(CompressionError::UnknownFormat(number)),
        }
    }
}

pub fn compress(format: CompressionFormat, data: &[u8]) -> Result<Vec<u8>, CompressionError> {
    match format {
        CompressionFormat::Zlib => deflate(data),
        CompressionFormat::Lz4 => lz4_frame(data),
        CompressionFormat::Zstd => Ok(zstd::bulk::compress(data, ZSTD_LEVEL)?),
    }
}

/// Fails if the result would be longer than `bytes_max`.
pub fn decompress(
    format: CompressionFormat,
    data: &[u8],
    bytes_max: usize,
) -> Result<Vec<u8>, CompressionError> {
    match format {
        // The readers below take an empty body for a finished one.
        _ if data.is_empty() => Err(CompressionError::CutOff),
        CompressionFormat::Zlib => inflate(data, bytes_max),
        CompressionFormat::Lz4 => read_lz4_frame(data, bytes_max),
        CompressionFormat::Zstd => {
            let mut reader = zstd::stream::read::Decoder::with_buffer(data)?;
            reader.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            read_all(reader, bytes_max)
        }
    }
}

/// Decompresses the body of a message in the format that its system flag names.
pub fn decompress_body(system_flag: i32, data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    decompress(CompressionFormat::from_system_flag(system_flag)?, data, bytes_max)
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
    // The Java client cannot read linked blocks, which would be smaller.
    let info = lz4_flex::frame::FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Independent);
    let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    writer.write_all(data)?;
    writer.finish().map_err(|error| CompressionError::Damaged(error.to_string()))
}

/// Drives the stream by hand: flate2's reader takes the end of the data for the end of the stream.
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
            // One byte past the limit is enough to see that the body is too long.
            let allowed = bytes_max.saturating_add(1).saturating_sub(body.len());
            body.reserve_exact(body.capacity().max(64).min(allowed));
        } else if position(stream.total_in())? == taken && body.len() == given {
            return Err(CompressionError::CutOff);
        }
    }
}

fn read_lz4_frame(data: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut reader = lz4_flex::frame::FrameDecoder::new(EndDetector { rest: data, is_short: false });
    let body = read_all(&mut reader, bytes_max)?;
    if reader.get_ref().is_short { Err(CompressionError::CutOff) } else { Ok(body) }
}

/// Remembers whether the frame decoder asked for more bytes than there are: it takes that for the end of the frame.
struct EndDetector<'data> {
    rest: &'data [u8],
    is_short: bool,
}

impl Read for EndDetector<'_> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMATS: [CompressionFormat; 3] =
        [CompressionFormat::Zlib, CompressionFormat::Lz4, CompressionFormat::Zstd];

    fn body() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..2000),
            (any::<u8>(), 0..20_000_usize).prop_map(|(byte, length)| vec![byte; length]),
        ]
    }

    proptest! {
        #[test]
        fn bodies_come_back_and_nothing_longer_than_the_limit_does(body in body()) {
            for format in FORMATS {
                let compressed = compress(format, &body).unwrap();
                prop_assert_eq!(decompress(format, &compressed, body.len()).unwrap(), &body[..]);
                if let Some(limit) = body.len().checked_sub(1) {
                    let outcome = decompress(format, &compressed, limit);
                    prop_assert_eq!(outcome, Err(CompressionError::TooLong(limit)));
                }
            }
        }

        #[test]
        fn a_body_that_is_cut_off_is_an_error(body in body(), cut in 1..200_usize) {
            for format in FORMATS {
                let compressed = compress(format, &body).unwrap();
                let kept = compressed.len().saturating_sub(cut);
                prop_assert!(decompress(format, &compressed[..kept], 1 << 20).is_err(), "{format:?}");
            }
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(
            data in prop::collection::vec(any::<u8>(), 0..200),
            system_flag in any::<i32>(),
            bytes_max in 0..5000_usize,
        ) {
            if let Ok(body) = decompress_body(system_flag, &data, bytes_max) {
                prop_assert!(body.len() <= bytes_max);
            }
        }
    }

    #[test]
    fn the_system_flag_names_the_format() {
        for (bits, format) in [(0, FORMATS[0]), (0x100, FORMATS[1]), (0x200, FORMATS[2]), (0x300, FORMATS[0])]
        {
            let compressed = compress(format, b"body").unwrap();
            assert_eq!(decompress_body(COMPRESSED_FLAG | bits, &compressed, 4).unwrap(), b"body");
        }
        assert_eq!(decompress_body(0x501, b"x", 4), Err(CompressionError::UnknownFormat(5)));
        assert_eq!(CompressionFormat::from_name("zstd"), Some(CompressionFormat::Zstd));
        assert_eq!(CompressionFormat::from_name("snappy"), None);
    }
}
