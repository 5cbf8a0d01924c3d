//! The frames of a replication link.
//!
//! ```text
//!  0 | kind (1) | epoch (8) | first (8) | second (8) | body length (4) | crc (4) | body
//! ```
//! Numbers are big-endian. The crc covers the other fields and the body.
//!
//! | kind  | first               | second         | body                         |
//! |-------|---------------------|----------------|------------------------------|
//! | LOG   | physical offset     | confirmed      | whole records of one epoch   |
//! | STATE | version             | 0              | an entry of the journal      |
//! | BEAT  | end of the log      | confirmed      | start of the log, 8 bytes    |
//! | ACK   | held                | state's version| the state's epoch, 8 bytes   |

use std::io::{self, IoSlice, Read, Write};

use crate::replicate::StatePosition;

const HEAD_BYTES: usize = 33;
const CRC_AT: usize = 29;
/// The body of a beat and of an acknowledgement: one number.
const NUMBER_BYTES: usize = 8;

const LOG: u8 = 1;
const STATE: u8 = 2;
const BEAT: u8 = 3;
const ACK: u8 = 4;

/// A frame, without the body of LOG and STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    Log { epoch: u64, physical_offset: i64, confirmed: i64 },
    State { position: StatePosition },
    Beat { epoch: u64, start_offset: i64, end_offset: i64, confirmed: i64 },
    Ack { epoch: u64, held: i64, state: StatePosition },
}

/// The largest bodies that an end accepts.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// A chunk of the log, or a record or a blank that is larger than that.
    pub log: usize,
    /// An entry of the journal.
    pub state: usize,
}

impl BodyLimits {
    /// Refuses a frame by its head, before its body is read.
    fn check(&self, kind: u8, len: usize) -> io::Result<()> {
        let (name, limit, setting) = match kind {
            LOG => {
                ("LOG", self.log, ": chunk_bytes and message_size_bytes_max must be the same on both ends")
            }
            STATE => ("STATE", self.state, ": state_bytes_max must be the same on both ends"),
            BEAT => ("BEAT", NUMBER_BYTES, ""),
            ACK => ("ACK", NUMBER_BYTES, ""),
            _ => return Err(bad(format!("a frame of the unknown kind {kind}"))),
        };
        if len > limit {
            return Err(bad(format!(
                "a {name} frame with a body of {len} bytes, the limit is {limit}{setting}"
            )));
        }
        Ok(())
    }
}

impl Frame {
    fn fields(&self) -> (u8, u64, i64, i64) {
        match *self {
            Frame::Log { epoch, physical_offset, confirmed } => (LOG, epoch, physical_offset, confirmed),
            Frame::State { position } => (STATE, position.epoch, position.version as i64, 0),
            Frame::Beat { epoch, end_offset, confirmed, .. } => (BEAT, epoch, end_offset, confirmed),
            Frame::Ack { epoch, held, state } => (ACK, epoch, held, state.version as i64),
        }
    }

    /// Writes the frame. `body` is that of LOG and STATE.
    pub fn write(&self, out: &mut impl Write, body: &[u8]) -> io::Result<()> {
        let number;
        let body = match self {
            Frame::Log { .. } | Frame::State { .. } => body,
            Frame::Beat { start_offset, .. } => {
                number = start_offset.to_be_bytes();
                &number[..]
            }
            Frame::Ack { state, .. } => {
                number = state.epoch.to_be_bytes();
                &number[..]
            }
        };
        let (kind, epoch, first, second) = self.fields();
        let mut head = [0; HEAD_BYTES];
        head[0] = kind;
        head[1..9].copy_from_slice(&epoch.to_be_bytes());
        head[9..17].copy_from_slice(&first.to_be_bytes());
        head[17..25].copy_from_slice(&second.to_be_bytes());
        head[25..CRC_AT].copy_from_slice(&(body.len() as u32).to_be_bytes());
        let crc = checksum(&head, body);
        head[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        write_both(out, &head, body)
    }

    /// Reads a frame; its body is left in `body`. Fails on everything that is not a frame, or that is too large.
    pub fn read(input: &mut impl Read, body: &mut Vec<u8>, limits: &BodyLimits) -> io::Result<Frame> {
        let mut head = [0; HEAD_BYTES];
        input.read_exact(&mut head)?;
        let long = |at: usize| head[at..].first_chunk().copied().map_or(0, u64::from_be_bytes);
        let word = |at: usize| head[at..].first_chunk().copied().map_or(0, u32::from_be_bytes);
        let len = word(25) as usize;
        limits.check(head[0], len)?;
        body.clear();
        let read = input.take(len as u64).read_to_end(body)?;
        if read < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if checksum(&head, body) != word(CRC_AT) {
            return Err(bad("a frame whose checksum does not match".to_owned()));
        }
        let (epoch, first, second) = (long(1), long(9) as i64, long(17) as i64);
        Ok(match head[0] {
            LOG => Frame::Log { epoch, physical_offset: first, confirmed: second },
            STATE => Frame::State { position: StatePosition { epoch, version: first as u64 } },
            BEAT => {
                let start_offset = number_in(body)? as i64;
                Frame::Beat { epoch, start_offset, end_offset: first, confirmed: second }
            }
            _ => {
                let state = StatePosition { epoch: number_in(body)?, version: second as u64 };
                Frame::Ack { epoch, held: first, state }
            }
        })
    }
}

fn number_in(body: &[u8]) -> io::Result<u64> {
    let number = <[u8; NUMBER_BYTES]>::try_from(body);
    number.map(u64::from_be_bytes).map_err(|_| bad(format!("a number of {} bytes", body.len())))
}

fn checksum(head: &[u8; HEAD_BYTES], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..CRC_AT]);
    hasher.update(body);
    hasher.finalize()
}

/// Writes both parts, with one call if the system takes them at once.
fn write_both(out: &mut impl Write, head: &[u8], body: &[u8]) -> io::Result<()> {
    let (mut head, mut body) = (head, body);
    while !head.is_empty() {
        let written = match out.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            written => written?,
        };
        let of_head = written.min(head.len());
        head = &head[of_head..];
        body = &body[written - of_head..];
    }
    out.write_all(body)
}

pub fn bad(detail: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: BodyLimits = BodyLimits { log: 300, state: 200 };

    fn read(mut bytes: &[u8], body: &mut Vec<u8>) -> io::Result<Frame> {
        Frame::read(&mut bytes, body, &LIMITS)
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let numbers = (any::<u64>(), any::<i64>(), any::<i64>(), any::<u64>());
        (0..4, numbers).prop_map(|(kind, (epoch, first, second, version))| match kind {
            0 => Frame::Log { epoch, physical_offset: first, confirmed: second },
            1 => Frame::State { position: StatePosition { epoch, version } },
            2 => Frame::Beat { epoch, start_offset: version as i64, end_offset: first, confirmed: second },
            _ => Frame::Ack { epoch, held: first, state: StatePosition { epoch: version, version: epoch } },
        })
    }

    proptest! {
        #[test]
        fn a_frame_comes_back_and_a_changed_one_does_not(
            frame in frames(),
            content in prop::collection::vec(any::<u8>(), 0..200),
            place in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut bytes = Vec::new();
            frame.write(&mut bytes, &content)?;
            let mut body = Vec::new();
            prop_assert_eq!(read(&bytes, &mut body)?, frame);
            if matches!(frame, Frame::Log { .. } | Frame::State { .. }) {
                prop_assert_eq!(&body, &content);
            }
            let at = place.index(bytes.len());
            prop_assert!(read(&bytes[..at], &mut body).is_err(), "cut at {}", at);
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&bytes, &mut body).is_err(), "changed at {}", at);
        }

        /// Whatever a head says, no more is read than the limit of its kind.
        #[test]
        fn a_body_over_the_limit_of_its_kind_is_not_read(kind in any::<u8>(), len in any::<u32>()) {
            let mut bytes = vec![0; HEAD_BYTES + 1_000];
            bytes[0] = kind;
            bytes[25..CRC_AT].copy_from_slice(&len.to_be_bytes());
            let crc = checksum(bytes[..HEAD_BYTES].first_chunk().unwrap(), &bytes[HEAD_BYTES..][..(len as usize).min(1_000)]);
            bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_be_bytes());
            let mut body = Vec::new();
            let mut rest = bytes.as_slice();
            let outcome = Frame::read(&mut rest, &mut body, &LIMITS);
            let limit = match kind { LOG => 300, STATE => 200, BEAT | ACK => 8, _ => 0 };
            prop_assert!(body.len() <= limit);
            if len as usize > limit || !(LOG..=ACK).contains(&kind) {
                prop_assert!(outcome.is_err());
                prop_assert_eq!(rest.len(), 1_000, "the body stays unread");
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn a_huge_length_takes_no_memory() {
        let mut bytes = [0xff; HEAD_BYTES];
        bytes[0] = LOG;
        let mut body = Vec::new();
        let limits = BodyLimits { log: 64 << 20, state: 64 << 20 };
        assert!(Frame::read(&mut bytes.as_slice(), &mut body, &limits).is_err());
        bytes[25..29].copy_from_slice(&(64_u32 << 20).to_be_bytes());
        assert!(Frame::read(&mut bytes.as_slice(), &mut body, &limits).is_err());
        assert!(body.capacity() < 1 << 20);
    }
}
