//! The wire formats of MetaQ: frames, headers in both encodings, stored records, client batches, message properties and
//! message ids.
//!
//! A pure codec: no I/O, no clock, no policy. Decoded values borrow from the caller's buffer, and encoders write to a
//! buffer of the caller. Nothing here panics on any input. All integers are big-endian.
//!
//! [`frame`] cuts frames out of a buffer and [`header`] reads their headers (`json` and `binary` are the encodings);
//! [`encode`] writes both. [`hot`] reads the headers of requests that never reach Python. [`record`], [`batch`],
//! [`properties`] and [`ids`] are the parts of messages; `checksum` ends a record. Each decoder has a diagram of its bytes.
//!
//! Every other crate uses this one. Do not change a format: unmodified RocketMQ clients and brokers read it.
#![forbid(unsafe_code)]

pub mod batch;
mod binary;
mod bytes;
mod checksum;
pub mod encode;
pub mod error;
pub mod frame;
pub mod header;
pub mod hot;
pub mod ids;
mod json;
pub mod properties;
pub mod record;
mod scan;
mod text;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

pub use batch::{BatchRecord, BatchRecords, batch_records};
pub use checksum::{CHECKSUM_BYTES, CHECKSUM_NAME, Coverage};
pub use encode::{FrameEncoder, WIRE_VERSION};
pub use error::WireError;
pub use frame::{Announced, Encoding, FRAME_BYTES_MAX, Frame, announced, next_frame};
pub use header::{FLAG_ONEWAY, FLAG_RESPONSE, Header, LANGUAGE_PYTHON};
pub use hot::{EndTransactionHeader, PullHeader, QueueHeader, SendHeader};
pub use ids::{MessageIds, parse_message_id};
pub use properties::{java_hash, tag_code};
pub use record::{Expected, LaidOut, NewRecord, Record, body_crc, layout};
