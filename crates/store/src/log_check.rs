//! Checks of the log's bytes, and the bytes themselves for another node that repairs its log with them.

use metaq_wire::Record;

use crate::api::DamagedMessage;
use crate::error::StoreError;
use crate::log::commit_log::{file_name, is_queued};
use crate::log::damage::{Checked, check};
use crate::store::{OpenStore, Store};

const COPY_BYTES: usize = 1 << 20;

impl Store {
    /// Checks a part of the log and returns its damaged ranges, or None if the log does not have all of it. The ranges
    /// are known from then on, until another check finds them sound. It may read the file that holds `from` from its
    /// start, so call it on a thread that may wait.
    pub fn damaged_ranges(&self, from: i64, to: i64) -> Option<Vec<(i64, i64)>> {
        self.shared.check_log(from, to).map(|checked| checked.damaged)
    }

    /// Checks a part of the log in the same way and returns how many sound records have a checksum of the body alone.
    pub fn uncovered_records(&self, from: i64, to: i64) -> Option<u64> {
        self.shared.check_log(from, to).map(|checked| checked.uncovered)
    }

    /// The damaged ranges that reads, dispatch and checks have found in the log.
    pub fn known_damage(&self) -> Vec<(i64, i64)> {
        self.shared.log.damage.known(self.shared.log.start_offset())
    }

    /// Why a reader of the record there must wait: reads stop at damage, and the record may be damaged. None if it is
    /// sound, deleted, or left out.
    pub fn awaits_repair(&self, physical_offset: i64) -> Option<StoreError> {
        let shared = &self.shared;
        let is_here = (shared.log.start_offset()..shared.log.appended_end()).contains(&physical_offset);
        if !is_here || shared.reader().record_at(physical_offset).is_some() {
            return None;
        }
        let waits = shared.log.damage.may_be_damaged(physical_offset) && shared.settings.stop_at_damage;
        waits.then(|| StoreError::AwaitsRepair { place: format!("commit log {physical_offset}") })
    }

    /// Messages that reads did not get because their records are damaged, in order. Those that are deleted or sound by
    /// now are left out.
    pub fn damaged_messages(&self) -> Vec<DamagedMessage> {
        let log_start = self.shared.log.start_offset();
        let mut messages = self.shared.damage.messages();
        messages.retain(|message| {
            let at = message.physical_offset;
            at < 0 || (at >= log_start && self.shared.reader().record_at(at).is_none())
        });
        messages
    }

    /// Copies a part of the log into `cut/`. Returns when the copy is on the disk.
    pub fn set_aside(&self, from: i64, to: i64) -> Result<(), StoreError> {
        let shared = &self.shared;
        let disk = &*shared.disk;
        let aside = shared.settings.directory.join("cut");
        let checksum = self.raw_bytes_checksum(from, to);
        let path = aside.join(format!("{}-{checksum:08x}-damaged", file_name(from)));
        if disk.exists(&path) {
            return Ok(());
        }
        let half_way = path.with_extension("part");
        let fail = |source| StoreError::io(&half_way, source);
        disk.create_directory(&aside).map_err(fail)?;
        let copy = disk.create(&half_way).map_err(fail)?;
        disk.set_len(&copy, 0).map_err(fail)?;
        let mut written = 0;
        self.each_chunk(from, to, |chunk| {
            disk.write_at(&copy, chunk, written)?;
            written += chunk.len() as u64;
            Ok(())
        })
        .and_then(|()| disk.sync_data(&copy))
        .and_then(|()| disk.rename(&half_way, &path))
        .and_then(|()| disk.sync_directory(&aside))
        .and_then(|()| disk.sync_directory(&shared.settings.directory))
        .map_err(|source| {
            // On a full disk half a copy would only be in the way.
            let _ = disk.remove_file(&half_way);
            fail(source)
        })
    }

    /// Whether records that replace damaged ones are missing at the ends of their queues. Holes in front of other
    /// entries are repaired when they are read.
    pub fn lacks_entries(&self, records: &[u8]) -> bool {
        let mut rest = records;
        while let Ok(record) = Record::decode(rest) {
            if is_queued(record.system_flag) && self.lacks_entry(&record) {
                return true;
            }
            rest = &rest[record.size..];
        }
        false
    }

    fn lacks_entry(&self, record: &Record<'_>) -> bool {
        let topic = String::from_utf8_lossy(record.topic);
        self.max_offset(&topic, record.queue_id) <= record.queue_offset
    }

    fn raw_bytes_checksum(&self, from: i64, to: i64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        let _infallible = self.each_chunk(from, to, |chunk| {
            hasher.update(chunk);
            Ok(())
        });
        hasher.finalize()
    }

    /// Visits the bytes of a part of the log; those of missing files are left out.
    fn each_chunk(
        &self,
        from: i64,
        to: i64,
        mut visit: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut at = from;
        while at < to {
            match self.log_bytes(at, COPY_BYTES.min((to - at) as usize)) {
                Some(bytes) => {
                    visit(&bytes)?;
                    at += bytes.len() as i64;
                }
                None => at = self.shared.log.file_after(at).map_or(to, |file| file.start_offset),
            }
        }
        Ok(())
    }
}

impl OpenStore {
    pub(crate) fn check_log(&self, from: i64, to: i64) -> Option<Checked> {
        let checked = check(&self.log, from, to)?;
        self.log.damage.settle(from, to, &checked.damaged);
        Some(checked)
    }

    /// Checks the places where reads and dispatch have found no sound record.
    pub(crate) fn check_suspects(&self) {
        for place in self.log.damage.take_suspects() {
            let Some(found) = self.check_log(place, place + 1) else { continue };
            if found.damaged.is_empty() {
                self.log.damage.acquit(place);
            }
            for (from, to) in found.damaged {
                self.reports.add(format!("commit log: the records from {from} to {to} are damaged"));
            }
        }
    }
}
