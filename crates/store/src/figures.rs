//! Numbers for an operator, each under one name.

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The store at one moment.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct StoreFigures { $($(#[$doc])* pub $name: i64),* }

        impl StoreFigures {
            /// Returns each figure with its name, for tools that print all of them.
            pub fn named(&self) -> Vec<(&'static str, i64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

figures!(
    commit_log_min_offset,
    commit_log_max_offset,
    commit_log_files,
    /// Everything below is on the disk.
    flushed_offset,
    /// Everything below has its queue entries.
    dispatched_offset,
    /// Everything below can be found by key.
    indexed_offset,
    /// −1 if the disk does not say.
    disk_used_percent,
    /// The physical offset at which the last start began to read the log.
    recovered_from_offset,
    recovered_bytes,
    damaged_records,
    /// Records with a checksum of the body alone that were dispatched since the start.
    uncovered_records,
    /// Files of the key index that were wrong or missing, and were made again from the log.
    rebuilt_index_files,
    repaired_entries,
    syncs,
    queues_loaded,
);
