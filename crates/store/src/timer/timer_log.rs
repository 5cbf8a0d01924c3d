//! The timer log: when each waiting message is due, in one small file per minute.
//!
//! Waiting messages lie in the commit log; the timer log sorts them by time. It is derived data: if a file is missing
//! or damaged, everything is read again from the queue of waiting messages.
//!
//! ```text
//! timer/checkpoint            how far the queue is read, how far it is delivered, the files below and their lengths
//! timer/mark                  how far deliveries came since the checkpoint; valid after a kill, not after a reboot
//! timer/000029166666-0000001a entries of one minute, in the order they came
//! ```
//! Memory holds only the next entries, at most [`HEAD_MAX`], and the newest ones until they are written, at most
//! [`UNWRITTEN_MAX`], even if millions wait in one minute.
//!
//! Entries are done in the order of [`TimerPosition`], so one position tells what is done, and after a checkpoint
//! nothing is done twice. Entries that a kill leaves behind the checkpoint are cut off and read from the queue again,
//! except those that the mark says are done.

mod bucket;
mod checkpoint;
mod entry;
mod mark;
mod outline;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::store::Store;
use bucket::{Bucket, MINUTE_MS, minute_of};
use checkpoint::{Checkpoint, FileLength};
pub use entry::{TimerEntry, TimerPosition};
use mark::{Mark, MarkFile};
use outline::MinuteFile;
pub use outline::{TimerCounts, TimerFound, TimerListing, TimerOutline, TimerSearch, TimerSpans};

/// The topic in which messages wait for any moment; the name is Apache's.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Entries held in memory because their time is near.
const HEAD_MAX: usize = 128 * 1024;
/// Entries held in memory because they are not written yet.
const UNWRITTEN_MAX: usize = 64 * 1024;
/// A clock that goes back by more than this was set by somebody; a smaller step is a correction.
const CLOCK_BACK_MS: i64 = 1_000;

/// The result of [`Store::open_timer_log`]: where to continue, and whether the log is intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerStart {
    /// The first record of the queue that is not in the log yet.
    pub queue_offset: i64,
    /// Why everything has to be read from the queue again; None if the log is intact.
    pub rebuild: Option<String>,
    /// Whether it is known exactly how far everything is done, and not only estimated.
    pub is_mark_exact: bool,
    /// For a rebuild: records of the queue from here on are new, whatever is done.
    pub new_from: i64,
}

/// How far the node of a group came that delivered before this one: records of the queue before `queue_offset` are done
/// if their position is at or before `done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerProgress {
    pub done: TimerPosition,
    pub queue_offset: i64,
}

pub struct TimerLog {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    head_max: usize,
    unwritten_max: usize,
    /// Buckets by minute; every entry that is not done is in one of them.
    buckets: BTreeMap<i64, Bucket>,
    unwritten: usize,
    next_serial: u64,
    /// The next entries: all of them between `done` and `loaded`.
    head: BTreeMap<TimerPosition, TimerEntry>,
    loaded: TimerPosition,
    done: TimerPosition,
    pending: u64,
    queue_offset: i64,
    /// Recalls that concern the entries in the head; they must be known before those are due.
    recalls: Vec<TimerEntry>,
    /// Counts how often the clock was set back or everything was read again; `saved_epoch` is the checkpoint's count.
    epoch: u64,
    saved_epoch: u64,
    mark_file: Option<MarkFile>,
    /// The mark that a kill left: what was done after the checkpoint.
    before_kill: Option<Mark>,
    /// The last position that was assigned to an entry because its own had passed.
    late_position: TimerPosition,
    /// Files that no bucket needs any more; deleted after the next checkpoint.
    dropped: Vec<PathBuf>,
    is_dirty: bool,
    outline: Arc<TimerOutline>,
}

impl Store {
    /// Opens the timer log of this store, for a queue that reaches from `begin` to `end`. What another node has done
    /// counts as done. Without that and without a checkpoint of its own, everything due before `done_before_ms` does.
    pub fn open_timer_log(
        &self,
        begin: i64,
        end: i64,
        done_before_ms: i64,
        elsewhere: Option<TimerProgress>,
    ) -> Result<(TimerLog, TimerStart), StoreError> {
        let directory = self.shared.settings.directory.join("timer");
        TimerLog::open(Arc::clone(&self.shared.disk), directory, begin, end, done_before_ms, elsewhere)
    }
}

impl TimerLog {
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        begin: i64,
        end: i64,
        done_before_ms: i64,
        elsewhere: Option<TimerProgress>,
    ) -> Result<(Self, TimerStart), StoreError> {
        disk.create_directory(&directory).map_err(|source| StoreError::io(&directory, source))?;
        let saved = Checkpoint::load(&*disk, &directory)?;
        let mut log = Self::empty(disk, directory);
        let rebuild = match &saved {
            None if end == begin => None,
            None => Some("it has no checkpoint".to_owned()),
            Some(saved) if saved.queue_offset > end => Some("it is ahead of the queue".to_owned()),
            Some(saved) if saved.queue_offset < begin => {
                Some("the queue begins after its checkpoint".to_owned())
            }
            Some(saved) => log.take_over(saved)?,
        };
        let known = saved.as_ref().filter(|saved| saved.queue_offset <= end);
        let elsewhere = elsewhere.filter(|progress| progress.queue_offset <= end);
        let is_mark_exact = known.is_some() || elsewhere.is_some();
        let mut new_from = end;
        if rebuild.is_some() || saved.is_none() {
            let mut done = known.map(|saved| saved.done);
            if let Some(progress) = elsewhere.filter(|progress| done.is_none_or(|done| done < progress.done))
            {
                done = Some(progress.done);
                new_from = progress.queue_offset;
            }
            let done = done.unwrap_or(TimerPosition::before(done_before_ms));
            log = Self::empty(log.disk, log.directory);
            (log.done, log.loaded, log.queue_offset) = (done, done, begin);
            log.next_serial = saved.as_ref().map_or(0, |saved| saved.next_serial) + 1;
            log.epoch = saved.as_ref().map_or(0, |saved| saved.epoch) + 1;
            log.is_dirty = true;
        }
        log.remove_unknown_files()?;
        log.take_mark(rebuild.is_none(), elsewhere)?;
        if rebuild.is_none() {
            // From the first start on there is a checkpoint, so a missing one was lost.
            log.save()?;
        }
        log.outline.set_done(log.done);
        log.outline.set_files(log.minute_files());
        let start = TimerStart { queue_offset: log.queue_offset, rebuild, is_mark_exact, new_from };
        Ok((log, start))
    }

    fn empty(disk: Arc<dyn Disk>, directory: PathBuf) -> Self {
        let outline = Arc::new(TimerOutline::new(Arc::clone(&disk), directory.clone()));
        Self {
            disk,
            directory,
            head_max: HEAD_MAX,
            unwritten_max: UNWRITTEN_MAX,
            buckets: BTreeMap::new(),
            unwritten: 0,
            next_serial: 0,
            head: BTreeMap::new(),
            loaded: TimerPosition::FIRST,
            done: TimerPosition::FIRST,
            pending: 0,
            queue_offset: 0,
            recalls: Vec::new(),
            epoch: 0,
            saved_epoch: 0,
            mark_file: None,
            before_kill: None,
            late_position: TimerPosition::FIRST,
            dropped: Vec::new(),
            is_dirty: false,
            outline,
        }
    }

    /// Takes over everything that the checkpoint names. Returns what is wrong with it, if anything.
    fn take_over(&mut self, saved: &Checkpoint) -> Result<Option<String>, StoreError> {
        (self.done, self.loaded, self.queue_offset) = (saved.done, saved.done, saved.queue_offset);
        self.next_serial = saved.next_serial;
        (self.epoch, self.saved_epoch) = (saved.epoch, saved.epoch);
        for file in &saved.files {
            let bucket = Bucket::at(file.minute, file.serial, file.entries);
            let (mut bucket, mut waiting) = (bucket, 0);
            let (done, outline) = (self.done, &self.outline);
            let late_end = TimerPosition::at_end_of(done.wake_ms.saturating_add(1));
            let late_position = &mut self.late_position;
            let sound = bucket.look_through(&*self.disk, &self.directory, &mut |entry| {
                let is_waiting = entry.position() > done;
                if is_waiting {
                    waiting += 1;
                    outline.add(&entry);
                    // It may have come late, see `add`.
                    if entry.position() <= late_end {
                        *late_position = entry.position().max(*late_position);
                    }
                }
                is_waiting
            })?;
            if !sound {
                let path = bucket.path(&self.directory);
                return Ok(Some(format!("{} is missing or damaged", path.display())));
            }
            self.pending += waiting;
            self.buckets.insert(file.minute, bucket);
        }
        Ok(None)
    }

    /// Continues from what was done since the checkpoint, as the mark says if it is valid, or by another node.
    fn take_mark(&mut self, is_wanted: bool, elsewhere: Option<TimerProgress>) -> Result<(), StoreError> {
        let (mark_file, mark) = MarkFile::open(&*self.disk, &self.directory)?;
        self.mark_file = Some(mark_file);
        let theirs = elsewhere.map(|progress| Mark {
            epoch: self.epoch,
            done: progress.done,
            queue_offset: progress.queue_offset,
        });
        let is_ahead = |mark: &Mark| is_wanted && mark.epoch == self.epoch && mark.done >= self.done;
        let marks = mark.into_iter().chain(theirs).filter(is_ahead);
        let Some(mark) = marks.max_by_key(|mark| mark.done) else { return Ok(()) };
        let was_done = self.done;
        let mut finished = 0;
        for bucket in self.buckets.values_mut() {
            bucket.look_through(&*self.disk, &self.directory, &mut |entry| {
                if entry.position() > was_done && entry.position() <= mark.done {
                    finished += 1;
                    self.outline.remove(&entry);
                }
                true
            })?;
        }
        self.pending = self.pending.saturating_sub(finished);
        (self.done, self.loaded, self.before_kill) = (mark.done, mark.done, Some(mark));
        self.is_dirty = true;
        Ok(())
    }

    /// Deletes files that the checkpoint does not name.
    fn remove_unknown_files(&self) -> Result<(), StoreError> {
        let fail = |source| StoreError::io(&self.directory, source);
        let is_ours = |name: &str| Checkpoint::is_file(name) || MarkFile::is_file(name);
        for entry in self.disk.read_directory(&self.directory).map_err(fail)? {
            let path = self.directory.join(&entry.name);
            let is_known = self.buckets.values().any(|bucket| bucket.path(&self.directory) == path);
            if !is_known && !entry.is_directory && !is_ours(&entry.name) {
                self.disk.remove_file(&path).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Adds the entry of a record in the queue. If its position has passed already, it becomes due right after what is
    /// done.
    pub fn add(&mut self, mut entry: TimerEntry, queue_offset: i64) -> Result<(), StoreError> {
        let is_known = |mark: &Mark| queue_offset < mark.queue_offset && entry.position() <= mark.done;
        if !entry.is_recall && self.before_kill.as_ref().is_some_and(is_known) {
            return Ok(());
        }
        if self.unwritten >= self.unwritten_max {
            self.write_all()?;
        }
        if entry.position() <= self.done {
            entry = entry.woken_at(self.done.wake_ms.saturating_add(1));
            self.late_position = self.late_position.max(entry.position());
        }
        let minute = minute_of(entry.wake_ms);
        let bucket = self.buckets.entry(minute).or_insert_with(|| {
            self.next_serial += 1;
            Bucket::at(minute, self.next_serial, 0)
        });
        bucket.push(entry);
        self.outline.add(&entry);
        self.unwritten += 1;
        self.pending += 1;
        self.is_dirty = true;
        if entry.position() <= self.loaded {
            self.head.insert(entry.position(), entry);
            self.recalls.extend(Some(entry).filter(TimerEntry::recalls_now));
            if self.head.len() > self.head_max {
                self.head.pop_last();
                self.loaded = self.head.last_key_value().map_or(self.done, |(place, _)| *place);
            }
        }
        Ok(())
    }

    /// Notes that the queue is read up to here, after everything before it was added.
    pub fn set_queue_offset(&mut self, queue_offset: i64) {
        self.is_dirty |= self.queue_offset != queue_offset;
        self.queue_offset = queue_offset;
    }

    pub fn queue_offset(&self) -> i64 {
        self.queue_offset
    }

    /// How many entries wait.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// How many entries wait for each minute, by the time at which the minute begins. Those that are done are still
    /// counted until their minute is over.
    pub fn by_minute(&self) -> Vec<(i64, u64)> {
        self.buckets.iter().map(|(minute, bucket)| (minute * MINUTE_MS, bucket.entries())).collect()
    }

    /// The position up to which everything is done.
    pub fn done(&self) -> TimerPosition {
        self.done
    }

    /// The lowest physical offset of a waiting message, or a little less; None if nothing waits.
    pub fn needed_from(&self) -> Option<i64> {
        let left = self
            .buckets
            .iter()
            .filter(|(minute, _)| TimerPosition::before((*minute + 1) * MINUTE_MS) > self.done);
        left.map(|(_, bucket)| bucket.needed_from).min()
    }

    /// The next entries whose time has come, in order, at most `count_max`. They stay until [`TimerLog::finish`].
    pub fn due(&mut self, now_ms: i64, count_max: usize) -> Result<Vec<TimerEntry>, StoreError> {
        if now_ms.saturating_add(CLOCK_BACK_MS) < self.done.wake_ms {
            self.follow_clock_back(now_ms)?;
        }
        while self.head.is_empty() && self.loaded < TimerPosition::at_end_of(now_ms) {
            self.load_next(now_ms)?;
        }
        let due = self.head.values().take_while(|entry| entry.wake_ms <= now_ms);
        let due: Vec<TimerEntry> = due.take(count_max).copied().collect();
        if due.is_empty() {
            self.pass_minutes(now_ms);
        }
        Ok(due)
    }

    /// The recalls that concern the entries that are due next, each at least once. Call it after [`TimerLog::due`].
    pub fn take_recalls(&mut self) -> Vec<TimerEntry> {
        std::mem::take(&mut self.recalls)
    }

    /// Marks everything up to this position as done.
    pub fn finish(&mut self, place: TimerPosition) {
        while self.head.first_key_value().is_some_and(|(first, _)| *first <= place) {
            if let Some((_, entry)) = self.head.pop_first() {
                self.outline.remove(&entry);
            }
            self.pending = self.pending.saturating_sub(1);
        }
        if place > self.done {
            self.done = place;
            self.outline.set_done(place);
            self.loaded = self.loaded.max(place);
            self.is_dirty = true;
        }
    }

    /// How far everything is done, for a node that goes on after this one; None while an entry waits at a position that
    /// is not its own.
    pub fn progress(&self) -> Option<TimerProgress> {
        let is_clear = self.done >= self.late_position;
        is_clear.then_some(TimerProgress { done: self.done, queue_offset: self.queue_offset })
    }

    /// Writes down what is done, so that nothing is repeated if a kill comes before the next checkpoint. Does nothing
    /// and returns false while an entry waits at a position that is not its own, because the mark could not tell it
    /// from what is done, and while the checkpoint has another epoch.
    pub fn write_mark(&mut self) -> Result<bool, StoreError> {
        let is_clear = self.done >= self.late_position && self.epoch == self.saved_epoch;
        let Some(mark_file) = self.mark_file.as_ref().filter(|_| is_clear) else {
            return Ok(false);
        };
        let mark = Mark { epoch: self.epoch, done: self.done, queue_offset: self.queue_offset };
        mark_file.write(&*self.disk, &mark)?;
        Ok(true)
    }

    /// Marks past minutes as done when nothing is due, so that their files can be deleted.
    fn pass_minutes(&mut self, now_ms: i64) {
        let passed = TimerPosition::before(minute_of(now_ms) * MINUTE_MS);
        let is_left = self.head.first_key_value().is_some_and(|(first, _)| *first <= passed);
        let is_needed = self.buckets.first_key_value().is_some_and(|(minute, _)| *minute < minute_of(now_ms));
        if passed > self.done && is_needed && !is_left && self.loaded >= passed {
            self.done = passed;
            self.is_dirty = true;
        }
    }

    /// Loads more entries after the head: one bucket, or as much of it as fits.
    fn load_next(&mut self, now_ms: i64) -> Result<(), StoreError> {
        let from = self.loaded;
        let minute = minute_of(from.wake_ms);
        let is_whole = from == TimerPosition::before((minute + 1) * MINUTE_MS);
        let Some((minute, bucket)) = self.buckets.range_mut(minute + i64::from(is_whole)..).next() else {
            self.loaded = TimerPosition::at_end_of(now_ms);
            return Ok(());
        };
        let (minute, begin_ms) = (*minute, *minute * MINUTE_MS);
        if begin_ms > now_ms {
            self.loaded = TimerPosition::at_end_of(now_ms);
            return Ok(());
        }
        self.unwritten -= bucket.write(&*self.disk, &self.directory)?;
        let (entries, is_all) =
            bucket.next(&*self.disk, &self.directory, from, self.head_max, &mut self.recalls)?;
        self.loaded = match entries.last() {
            Some(last) if !is_all => last.position(),
            _ => TimerPosition::before((minute + 1) * MINUTE_MS),
        };
        self.recalls.extend(entries.iter().filter(|entry| entry.recalls_now()));
        self.head.extend(entries.into_iter().map(|entry| (entry.position(), entry)));
        Ok(())
    }

    /// Follows a clock that was set back. New entries have earlier positions than what is done, and must not wait until
    /// the clock is there again. Entries that are done are removed from the files, so that the mark can go back too.
    fn follow_clock_back(&mut self, now_ms: i64) -> Result<(), StoreError> {
        self.write_all()?;
        let done = self.done;
        let minute = minute_of(done.wake_ms);
        if let Some(mixed) = self.buckets.get(&minute) {
            self.next_serial += 1;
            let mut rest = Bucket::at(minute, self.next_serial, 0);
            let mut written = Ok(0);
            let sound = mixed.clone().look_through(&*self.disk, &self.directory, &mut |entry| {
                if entry.position() > done {
                    rest.push(entry);
                }
                if rest.unwritten() >= self.unwritten_max && written.is_ok() {
                    written = rest.write(&*self.disk, &self.directory);
                }
                true
            })?;
            written?;
            if sound {
                rest.write(&*self.disk, &self.directory)?;
                self.drop_bucket(minute);
                if rest.entries() > 0 {
                    self.buckets.insert(minute, rest);
                }
            }
        }
        let before: Vec<i64> = self.buckets.range(..minute).map(|(minute, _)| *minute).collect();
        before.into_iter().for_each(|minute| self.drop_bucket(minute));
        self.head.clear();
        self.epoch += 1;
        self.late_position = TimerPosition::FIRST;
        self.done = TimerPosition::before(now_ms);
        self.outline.set_done(self.done);
        self.loaded = self.done;
        self.is_dirty = true;
        Ok(())
    }

    fn drop_bucket(&mut self, minute: i64) {
        if let Some(bucket) = self.buckets.remove(&minute) {
            self.unwritten -= bucket.unwritten();
            self.dropped.push(bucket.path(&self.directory));
        }
    }

    fn write_all(&mut self) -> Result<(), StoreError> {
        for bucket in self.buckets.values_mut() {
            self.unwritten -= bucket.write(&*self.disk, &self.directory)?;
        }
        Ok(())
    }

    /// Syncs everything and saves the checkpoint. The caller makes sure that everything done so far is on the disk.
    /// Returns false if there was nothing to save.
    pub fn save(&mut self) -> Result<bool, StoreError> {
        if !self.is_dirty {
            return Ok(false);
        }
        let is_over = |minute: &i64| TimerPosition::before((minute + 1) * MINUTE_MS) <= self.done;
        let over: Vec<i64> = self.buckets.keys().copied().take_while(is_over).collect();
        over.into_iter().for_each(|minute| self.drop_bucket(minute));
        self.write_all()?;
        bucket::sync(&*self.disk, &self.directory, self.buckets.values_mut())?;
        let files = self.buckets.iter().map(|(minute, bucket)| FileLength {
            minute: *minute,
            serial: bucket.serial,
            entries: bucket.entries(),
        });
        let checkpoint = Checkpoint {
            queue_offset: self.queue_offset,
            done: self.done,
            next_serial: self.next_serial,
            epoch: self.epoch,
            files: files.collect(),
        };
        checkpoint.save(&*self.disk, &self.directory)?;
        self.outline.set_files(self.minute_files());
        (self.is_dirty, self.saved_epoch) = (false, self.epoch);
        for path in std::mem::take(&mut self.dropped) {
            // If this fails, the next start deletes the file.
            let _ = self.disk.remove_file(&path);
        }
        Ok(true)
    }

    fn minute_files(&self) -> Vec<MinuteFile> {
        let files = self.buckets.iter().map(|(minute, bucket)| MinuteFile {
            minute: *minute,
            serial: bucket.serial,
            entries: bucket.entries(),
            rolls_due: bucket.rolls_due,
        });
        files.collect()
    }

    /// The messages that wait, for other threads.
    pub fn outline(&self) -> Arc<TimerOutline> {
        Arc::clone(&self.outline)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
