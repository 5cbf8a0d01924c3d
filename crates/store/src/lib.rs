//! The store of MetaQ: bytes at rest.
//!
//! The commit log holds the records of all topics, one after the other. Consume queues list the records of one queue,
//! and the key index finds records by key. The file formats are those of Apache RocketMQ, so either store opens the
//! other's directory.
//!
//! `crates/server` calls [`Store`] for every hot request, `crates/python` for everything else. Both see the store only
//! through the types that are exported here.
//!
//! Follow a record through the store to read the code:
//!
//! 1. [`settings`], [`error`], [`clock`] and `api` define what callers pass in and get back. [`disk`] is the only way to
//!    the file system; tests use its twin, [`faulty_disk`].
//! 2. `store` is the public surface. It keeps everything its threads share in one `OpenStore`.
//! 3. `log` appends records, allocates files in advance, syncs them and knows how far they are confirmed.
//! 4. `confirm` connects the two halves: it syncs, dispatches and then lets the answers go.
//! 5. `queue` dispatches confirmed records to consume queues, `index` to the key index.
//! 6. `read` serves pulls, filtered by [`expression`]; `inspect` serves tools.
//! 7. `recovery` opens a store after any kind of stop. `housekeeping` writes queue entries and checkpoints while it runs.
//! 8. `replication` gives raw bytes to replicas and holds confirmation back until they have them.
//!    `log_check` tells which bytes are damaged, and `scrub` reads everything to find out.
//! 9. `retention` deletes old files, except those that `pins` protect.
//! 10. [`timer`] sorts waiting messages by the time they are due.

mod api;
pub mod clock;
mod confirm;
pub mod disk;
pub mod error;
pub mod expression;
pub mod faulty_disk;
mod figures;
mod housekeeping;
mod index;
mod inspect;
mod log;
mod log_check;
mod pins;
mod queue;
mod read;
mod recovery;
mod replication;
mod retention;
mod scrub;
pub mod settings;
mod store;
pub mod timer;

pub use api::{
    Appended, AppendedBatch, Bounds, Call, DamagedMessage, Filter, GetStatus, Got, QueryResult, StoreEvents,
    StoreOpened, TagCodes,
};
pub use clock::{Clock, boot_time_ms};
pub use disk::{Disk, SystemDisk};
pub use error::StoreError;
pub use expression::Program;
pub use figures::StoreFigures;
pub use inspect::{Measured, QueueEntry};
pub use log::copy_permit::CopyPermit;
pub use queue::dispatch::SCHEDULE_TOPIC;
pub use recovery::rewrite::rewrite_log;
pub use recovery::truncation::{Truncation, truncate};
pub use scrub::Scrubbed;
pub use settings::{RetentionSettings, StoreSettings};
pub use store::Store;
pub use timer::timer_log::{
    TIMER_TOPIC, TimerCounts, TimerEntry, TimerFound, TimerListing, TimerLog, TimerOutline, TimerPosition,
    TimerProgress, TimerSearch, TimerSpans, TimerStart,
};
