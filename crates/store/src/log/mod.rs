//! The commit log: every record of every topic, in files of one size.
//!
//! `commit_log` appends under one lock, `raw_append` copies records of another log while its `copy_permit` lasts, and `mapped` maps the files; it is
//! the only module with `unsafe`. `mapped_ranges` knows where they are mapped. `preallocation` takes disk blocks before the writer needs them. `flush` groups the
//! senders that wait for a sync. `progress` holds the marks `appended`, `flushed` and `confirmed`: change the rule for
//! what may be acknowledged or read there and nowhere else. `followers` wakes the senders to replicas.
//! `damage` checks records and knows which are damaged.
//! `gate` refuses appends when they could not be kept. `lease` is the time after which nothing is acknowledged.
//!
//! `store` and `confirm` call this room; `queue` and `index` read from it. A record is never changed once it is
//! published.

pub(crate) mod commit_log;
pub(crate) mod copy_permit;
pub(crate) mod damage;
pub(crate) mod flush;
pub(crate) mod flush_times;
pub(crate) mod followers;
pub(crate) mod gate;
pub(crate) mod lease;
pub(crate) mod mapped;
pub(crate) mod mapped_ranges;
pub(crate) mod preallocation;
pub(crate) mod progress;
pub(crate) mod raw_append;
