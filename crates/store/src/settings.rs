//! The settings of a store; checked once, before any file is touched.

use std::path::PathBuf;

use crate::error::StoreError;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Bytes that a record may need beyond its body: fixed fields, topic and properties at their largest.
const RECORD_OVERHEAD_BYTES_MAX: u64 = 120 + 0xFFFF + 0x7FFF;

/// The directory of the store, the sizes of its files and the times of its flushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub directory: PathBuf,
    /// True: a record is confirmed once it is synced. False: it is confirmed once it is appended, and data is synced
    /// every `flush_interval_ms`.
    pub sync_flush: bool,
    /// The log is also kept elsewhere. An opened store confirms nothing beyond what was known to be confirmed, until
    /// [`crate::Store::confirm_replicated`] says how far the others hold the log.
    pub replicated: bool,
    pub commit_log_file_bytes: u64,
    pub consume_queue_file_entries: u64,
    pub index_slots: u32,
    pub index_entries: u32,
    /// Disk blocks are allocated in steps of this size before the writer needs them.
    pub allocation_step_bytes: u64,
    pub flush_interval_ms: u64,
    pub queue_flush_interval_ms: u64,
    pub message_size_bytes_max: usize,
    /// Records are appended with a checksum of the whole record. Those of other nodes are copied as they are.
    pub record_checksums: bool,
    /// When files are deleted, as of the start; [`crate::Store::set_retention`] changes it.
    pub retention: RetentionSettings,
    /// Reads wait in front of a damaged record, because it can be repaired, instead of leaving it out.
    pub stop_at_damage: bool,
    /// Bytes of the log that one read searches for the record of a damaged queue entry. The next read goes on from there.
    pub entry_search_bytes_max: u64,
    /// Entries of the key index that one query examines; an entry whose record has to be read counts as 64.
    pub query_entries_max: u64,
    /// Bytes of records that one query returns. The first record comes whatever its size.
    pub query_bytes_max: usize,
    /// How long an append waits for another one. After that, others are refused at once until appends continue.
    pub append_wait_ms_max: u64,
    /// The delay of each level, level 1 first.
    pub delay_levels_ms: Vec<i64>,
}

impl StoreSettings {
    /// The sizes and intervals of an ordinary broker, with synchronous flush.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            sync_flush: true,
            replicated: false,
            commit_log_file_bytes: GIB,
            consume_queue_file_entries: 300_000,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
            allocation_step_bytes: 16 * MIB,
            flush_interval_ms: 500,
            queue_flush_interval_ms: 1_000,
            message_size_bytes_max: 4 * MIB as usize,
            record_checksums: true,
            retention: RetentionSettings::default(),
            stop_at_damage: false,
            entry_search_bytes_max: 256 * MIB,
            query_entries_max: 1_000_000,
            query_bytes_max: 8 * MIB as usize,
            append_wait_ms_max: 1_000,
            delay_levels_ms: Vec::new(),
        }
    }

    /// Refuses settings that cannot work; the error names the setting and the limit.
    pub fn check(&self) -> Result<(), StoreError> {
        let bad = |text: String| Err(StoreError::BadSettings(text));
        if self.directory.as_os_str().is_empty() {
            return bad("directory is empty".to_owned());
        }
        if !(4 * KIB..=4 * GIB - 1).contains(&self.commit_log_file_bytes) {
            return bad(format!(
                "commit_log_file_bytes is {}, it must lie between 4096 and 4294967295",
                self.commit_log_file_bytes
            ));
        }
        if !(2..=100_000_000).contains(&self.consume_queue_file_entries) {
            return bad(format!(
                "consume_queue_file_entries is {}, it must lie between 2 and 100000000",
                self.consume_queue_file_entries
            ));
        }
        if self.index_slots == 0 || self.index_slots > i32::MAX as u32 {
            return bad("index_slots must lie between 1 and 2147483647".to_owned());
        }
        if self.index_entries < 2 || self.index_entries > i32::MAX as u32 {
            return bad("index_entries must lie between 2 and 2147483647".to_owned());
        }
        if self.allocation_step_bytes < 4 * KIB {
            return bad("allocation_step_bytes must be at least 4096".to_owned());
        }
        if self.flush_interval_ms == 0 || self.queue_flush_interval_ms == 0 {
            return bad("flush intervals must be at least 1 ms".to_owned());
        }
        if self.message_size_bytes_max == 0 || self.message_size_bytes_max > 64 * MIB as usize {
            return bad("message_size_bytes_max must lie between 1 and 67108864".to_owned());
        }
        self.retention.check()
    }

    /// The size of the largest record: limited by the message size and by the size of a file.
    pub(crate) fn record_bytes_max(&self) -> usize {
        let by_message = self.message_size_bytes_max as u64 + RECORD_OVERHEAD_BYTES_MAX;
        by_message.min(self.commit_log_file_bytes - 8) as usize
    }
}

/// When files of the log are deleted, and when the disk counts as full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    pub file_reserved_hours: u64,
    /// Hours of the day (UTC) at which aged files are deleted: "04" or "04;16".
    pub delete_when: String,
    pub disk_clean_percent: u8,
    pub disk_force_clean_percent: u8,
    pub disk_refuse_percent: u8,
    /// Lets a full disk delete records that no group has consumed.
    pub delete_unconsumed: bool,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self {
            file_reserved_hours: 72,
            delete_when: "04".to_owned(),
            disk_clean_percent: 75,
            disk_force_clean_percent: 85,
            disk_refuse_percent: 90,
            delete_unconsumed: false,
        }
    }
}

impl RetentionSettings {
    /// Refuses settings that cannot work.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.disk_clean_percent > self.disk_force_clean_percent
            || self.disk_force_clean_percent > self.disk_refuse_percent
            || self.disk_refuse_percent > 100
        {
            return Err(StoreError::BadSettings(
                "disk_clean_percent ≤ disk_force_clean_percent ≤ disk_refuse_percent ≤ 100 must hold"
                    .to_owned(),
            ));
        }
        self.delete_hours().map(|_| ())
    }

    /// The hours named by `delete_when`.
    pub fn delete_hours(&self) -> Result<Vec<u8>, StoreError> {
        let bad = || {
            StoreError::BadSettings(format!(
                "delete_when is {:?}; it names hours of the day as in \"04\" or \"04;16\"",
                self.delete_when
            ))
        };
        let hours: Result<Vec<u8>, StoreError> = self
            .delete_when
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| match part.parse::<u8>() {
                Ok(hour) if hour < 24 => Ok(hour),
                _ => Err(bad()),
            })
            .collect();
        match hours {
            Ok(hours) if hours.is_empty() => Err(bad()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold() -> Result<(), StoreError> {
        let settings = StoreSettings::new("somewhere");
        settings.check()?;
        assert_eq!(settings.retention.delete_hours()?, [4]);
        let twice = RetentionSettings { delete_when: "04;16".to_owned(), ..settings.retention };
        assert_eq!(twice.delete_hours()?, [4, 16]);
        Ok(())
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let good = StoreSettings::new("somewhere");
        let with = |retention| StoreSettings { retention, ..good.clone() };
        let bad = [
            StoreSettings::new(""),
            StoreSettings { commit_log_file_bytes: 100, ..good.clone() },
            StoreSettings { commit_log_file_bytes: 1 << 40, ..good.clone() },
            StoreSettings { consume_queue_file_entries: 0, ..good.clone() },
            StoreSettings { index_slots: 0, ..good.clone() },
            StoreSettings { index_entries: u32::MAX, ..good.clone() },
            StoreSettings { allocation_step_bytes: 0, ..good.clone() },
            StoreSettings { flush_interval_ms: 0, ..good.clone() },
            StoreSettings { message_size_bytes_max: 0, ..good.clone() },
            with(RetentionSettings { disk_refuse_percent: 101, ..RetentionSettings::default() }),
            with(RetentionSettings { disk_clean_percent: 95, ..RetentionSettings::default() }),
            with(RetentionSettings { delete_when: "24".to_owned(), ..RetentionSettings::default() }),
            with(RetentionSettings { delete_when: ";".to_owned(), ..RetentionSettings::default() }),
        ];
        for settings in bad {
            assert!(matches!(settings.check(), Err(StoreError::BadSettings(_))), "{settings:?}");
        }
    }
}
