//! Cuts frames out of a read buffer.

use crate::error::WireError;

/// The longest frame a RocketMQ peer accepts, length word included.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How the header of a frame is written. Each frame names its own.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Encoding {
    Json,
    Binary,
}

impl Encoding {
    /// The byte that names this encoding in the header word.
    pub fn code(self) -> u8 {
        match self {
            Encoding::Json => 0,
            Encoding::Binary => 1,
        }
    }

    pub fn from_code(code: u8) -> Result<Encoding, WireError> {
        match code {
            0 => Ok(Encoding::Json),
            1 => Ok(Encoding::Binary),
            other => Err(WireError::BadEncoding(other)),
        }
    }
}

/// One whole frame, borrowed from the read buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub encoding: Encoding,
    pub header: &'a [u8],
    pub body: &'a [u8],
    /// Bytes of the whole frame with its length word: how much to take off the buffer.
    pub size: usize,
}

/// The first frame of `buffer`, or `None` while it is incomplete.
///
/// ```text
/// | length: i32 | encoding: u8 | header length: u24 | header | body |
///               |<------------------ length ---------------------->|
/// ```
/// A wrong length is refused after the first 4 bytes and a wrong header word after the first 8, so a peer that speaks
/// another protocol is dropped before anything is buffered for it.
pub fn next_frame(buffer: &[u8], frame_bytes_max: usize) -> Result<Option<Frame<'_>>, WireError> {
    let Some((length_word, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = usize::try_from(i32::from_be_bytes(*length_word)).map_err(|_| WireError::NegativeLength)?;
    let size = length.saturating_add(4);
    if size > frame_bytes_max {
        return Err(WireError::FrameTooLong { length: size, limit: frame_bytes_max });
    }
    let Some(after_word) = length.checked_sub(4) else {
        return Err(WireError::HeaderPastFrame);
    };
    let Some((header_word, rest)) = rest.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let [code, high, middle, low] = *header_word;
    let encoding = Encoding::from_code(code)?;
    let header_length = u32::from_be_bytes([0, high, middle, low]) as usize;
    if header_length > after_word {
        return Err(WireError::HeaderPastFrame);
    }
    let Some((header, body)) =
        rest.get(..after_word).and_then(|content| content.split_at_checked(header_length))
    else {
        return Ok(None);
    };
    Ok(Some(Frame { encoding, header, body, size }))
}

/// The lengths that the beginning of a frame announces.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Announced {
    /// Bytes of the whole frame with its length word.
    pub size: usize,
    pub header_length: usize,
}

/// The lengths of the frame at the beginning of `buffer`, or `None` while fewer than 8 bytes are there. The frame need not
/// be whole, and nothing is checked: see [`next_frame`].
pub fn announced(buffer: &[u8]) -> Option<Announced> {
    let [a, b, c, d, _encoding, high, middle, low] = *buffer.first_chunk::<8>()?;
    let length = usize::try_from(i32::from_be_bytes([a, b, c, d])).ok()?;
    let header_length = u32::from_be_bytes([0, high, middle, low]) as usize;
    Some(Announced { size: length.saturating_add(4), header_length })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: [u8; 13] = [0, 0, 0, 9, 1, 0, 0, 3, b'h', b'd', b'r', b'b', b'o'];

    #[test]
    fn cuts_one_frame_and_leaves_the_rest() {
        let mut buffer = GOLDEN.to_vec();
        buffer.extend_from_slice(&[0, 0]);
        let frame = next_frame(&buffer, FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!(frame, Frame { encoding: Encoding::Binary, header: b"hdr", body: b"bo", size: 13 });
    }

    #[test]
    fn announces_its_lengths_with_its_first_eight_bytes() {
        assert_eq!(announced(&GOLDEN[..7]), None);
        assert_eq!(announced(&GOLDEN[..8]), Some(Announced { size: 13, header_length: 3 }));
        assert_eq!(announced(&GOLDEN), announced(&GOLDEN[..8]));
        assert_eq!(announced(&[0xFF; 8]), None, "a negative length");
    }

    #[test]
    fn waits_for_every_missing_byte() {
        for length in 0..GOLDEN.len() {
            assert_eq!(next_frame(&GOLDEN[..length], FRAME_BYTES_MAX), Ok(None), "{length} bytes");
        }
    }

    #[test]
    fn refuses_a_length_as_soon_as_it_is_read() {
        let negative = [0x80, 0, 0, 0];
        assert_eq!(next_frame(&negative, FRAME_BYTES_MAX), Err(WireError::NegativeLength));
        // The "GET " of an HTTP client reads as a length of 1.2 GB.
        let http = WireError::FrameTooLong { length: 0x4745_5420 + 4, limit: FRAME_BYTES_MAX };
        assert_eq!(next_frame(b"GET ", FRAME_BYTES_MAX), Err(http));
        assert_eq!(next_frame(&[0, 0, 0, 3], FRAME_BYTES_MAX), Err(WireError::HeaderPastFrame));
        assert_eq!(next_frame(&GOLDEN[..4], 13), Ok(None));
        assert_eq!(next_frame(&GOLDEN[..4], 12), Err(WireError::FrameTooLong { length: 13, limit: 12 }));
    }

    #[test]
    fn refuses_a_header_word_as_soon_as_it_is_read() {
        assert_eq!(next_frame(&[0, 0, 0, 9, 2, 0, 0, 0], FRAME_BYTES_MAX), Err(WireError::BadEncoding(2)));
        assert_eq!(next_frame(&[0, 0, 0, 9, 0, 0, 0, 6], FRAME_BYTES_MAX), Err(WireError::HeaderPastFrame));
        assert_eq!(next_frame(&[0, 0, 0, 9, 0, 0, 0, 5], FRAME_BYTES_MAX), Ok(None));
    }

    #[test]
    fn a_frame_of_nothing_is_a_frame() {
        let frame = next_frame(&[0, 0, 0, 4, 0, 0, 0, 0], FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!((frame.header.len(), frame.body.len(), frame.size), (0, 0, 8));
    }

    proptest! {
        #[test]
        fn never_panics(buffer in prop::collection::vec(any::<u8>(), 0..64), limit in 0usize..100) {
            if let Ok(Some(frame)) = next_frame(&buffer, limit) {
                prop_assert_eq!(frame.header.len() + frame.body.len() + 8, frame.size);
                prop_assert!(frame.size <= limit);
            }
        }
    }
}
