//! The key index: finds records by their unique key and by every word of `KEYS`.
//!
//! `key_index` follows dispatch on a thread of its own and answers queries; `file` is one hash table on disk, in
//! Apache's format. The index only proposes records: `query` checks each one in the log before it returns it. Whatever
//! the index lacks after a kill is read again from the log.
//!
//! The format has no checksums. So a start verifies each file as a whole (`file_check`) and keeps checksums of its blocks
//! in memory (`sums`), which queries and the scrub compare; the scrub also compares entries with records (`check`).
//! Files that are wrong, older or missing are made again from the log.
//!
//! `store` calls queries, `confirm` wakes the thread, `housekeeping` syncs the files and `retention` deletes old ones.

mod check;
pub(crate) mod file;
mod file_check;
pub(crate) mod key_index;
mod keys;
pub(crate) mod query;
mod sums;
