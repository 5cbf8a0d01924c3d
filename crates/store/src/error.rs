//! Everything that can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the disk of {path} is full ({detail}); nothing is written until space returns", path = .path.display())]
    DiskFull { path: PathBuf, detail: String },
    #[error("queue entries cannot be written ({cause}); the store refuses writes until they can be")]
    QueuesStuck { cause: String },
    #[error(
        "a sync failed: it is unknown which data reached the disk, so the store refuses writes until it is restarted"
    )]
    FailedSync,
    #[error("{path} is in use by another process: one store directory serves one process at a time", path = .path.display())]
    Locked { path: PathBuf },
    #[error("{path} is damaged: {detail}", path = .path.display())]
    Damaged { path: PathBuf, detail: String },
    #[error(
        "{path} lost its bytes from {position} on while it was in use: another program cut the file, or the disk cannot read it", path = .path.display()
    )]
    LostPages { path: PathBuf, position: u64 },
    #[error("{place}: the record is damaged, and whoever needs it waits until it is repaired")]
    AwaitsRepair { place: String },
    #[error("the key index is being rebuilt and has come to {indexed}: try again in a moment")]
    IndexIncomplete { indexed: i64 },
    #[error("the record has {size} bytes, the limit is {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error(transparent)]
    BadRecord(metaq_wire::WireError),
    #[error("{0:?} cannot be the name of a topic's directory")]
    BadTopic(String),
    #[error("{0} is not a valid queue id")]
    BadQueue(i32),
    #[error("the batch is empty")]
    EmptyBatch,
    #[error("the records of a batch belong to different queues")]
    MixedBatch,
    #[error("the bytes for commit log {physical_offset} cannot be appended: {detail}")]
    BadRawBytes { physical_offset: i64, detail: String },
    #[error("the copying of another log was ended")]
    CopyEnded,
    #[error(
        "[PCBUSY] an append has been under way for more than {waited_ms} ms (append_wait_ms_max): the disk or the page cache cannot keep up; send slower or to another broker"
    )]
    Busy { waited_ms: u64 },
    #[error(
        "replicas did not confirm the end of the log within {waited_ms} ms: try again when they are in sync"
    )]
    NotReplicated { waited_ms: u64 },
    #[error("{reason}")]
    Fenced { reason: String },
    #[error("the store is closed")]
    Closed,
    #[error("bad store settings: {0}")]
    BadSettings(String),
}

impl StoreError {
    /// Wraps an error of a file call. A full disk gets its own kind because callers treat it differently.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path: path.to_owned(), detail: source.to_string() }
            }
            _ => Self::Io { path: path.to_owned(), source },
        }
    }
}
