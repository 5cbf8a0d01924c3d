//! The key index: finds records by their unique key and by every word of `KEYS`.
//!
//! `key_index` follows dispatch on a thread of its own and answers queries; `file` is one hash table on disk, in
//! Apache's format. The index only proposes records: a query checks each one in the log before it returns it. Whatever
//! the index lacks after a kill is read again from the log.
//!
//! `store` calls queries, `confirm` wakes the thread, `housekeeping` syncs the files and `retention` deletes old ones.

pub(crate) mod file;
pub(crate) mod key_index;
