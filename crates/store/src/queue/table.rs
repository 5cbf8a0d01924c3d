//! The table of consume queues: finds them by topic and id, and loads them from their files on first use.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use metaq_wire::Record;
use parking_lot::{Mutex, RwLock};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::log::commit_log::is_queued;
use crate::queue::consume_queue::Queue;
use crate::queue::deletion::{DELETION_TOPIC, deleted_topic};
use crate::queue::files::QueueDisk;
use crate::queue::load;

const TOPIC_BYTES_MAX: usize = 255;
/// Checking the files of this many queues takes a fraction of a second.
const DIGEST_QUEUES_MAX: usize = 20_000;

pub(crate) struct Queues {
    pub(crate) disk: QueueDisk,
    table: RwLock<Table>,
    serials: AtomicU64,
    /// While the store recovers: the physical offset from which entries are dropped; negative afterwards.
    cut_from: AtomicI64,
    /// By topic and queue id: the queue offsets below which readers get nothing.
    starts: RwLock<HashMap<String, HashMap<i32, i64>>>,
    /// Queues with entries that wait in memory.
    dirty: Mutex<Vec<Arc<Queue>>>,
    /// Held while entries are written: one writer per file.
    flushing: Mutex<()>,
}

type Table = HashMap<Box<[u8]>, Topic, foldhash::fast::RandomState>;

struct Topic {
    name: Arc<str>,
    /// By queue id.
    queues: Vec<(i32, Arc<Queue>)>,
}

impl Topic {
    fn find(&self, queue_id: i32) -> Option<&Arc<Queue>> {
        // A topic's first queue ids are dense in practice: look where the id would be before searching.
        match self.queues.get(queue_id as usize) {
            Some((id, queue)) if *id == queue_id => Some(queue),
            _ => {
                let place = self.queues.binary_search_by_key(&queue_id, |(id, _)| *id).ok()?;
                self.queues.get(place).map(|(_, queue)| queue)
            }
        }
    }
}

impl Queues {
    pub(crate) fn new(disk: Arc<dyn Disk>, store_directory: &Path, file_entries: u64) -> Self {
        Self {
            disk: QueueDisk::new(disk, store_directory, file_entries),
            table: RwLock::default(),
            serials: AtomicU64::new(1),
            cut_from: AtomicI64::new(-1),
            starts: RwLock::default(),
            dirty: Mutex::default(),
            flushing: Mutex::new(()),
        }
    }

    /// Finds the queue in memory or on the disk.
    #[inline]
    pub(crate) fn find(&self, topic: &[u8], queue_id: i32) -> Result<Option<Arc<Queue>>, StoreError> {
        if let Some(queue) = self.table.read().get(topic).and_then(|topic| topic.find(queue_id)) {
            return Ok(Some(Arc::clone(queue)));
        }
        self.find_on_disk(topic, queue_id)
    }

    /// Finds the queue, or creates it.
    #[inline]
    pub(crate) fn obtain(&self, topic: &[u8], queue_id: i32) -> Result<Arc<Queue>, StoreError> {
        if let Some(queue) = self.find(topic, queue_id)? {
            return Ok(queue);
        }
        let name = checked_name(topic)?;
        if queue_id < 0 {
            return Err(StoreError::BadQueue(queue_id));
        }
        Ok(self.insert(Queue::new(name, queue_id, self.next_serial(), Vec::new(), 0)))
    }

    /// Counts a record that is not dispatched yet: the next one of its queue gets a later offset. The caller holds the
    /// append lock, or nothing is appended yet.
    pub(crate) fn pass_record(&self, record: &Record<'_>) -> Result<(), StoreError> {
        if let Some(topic) = deleted_topic(record) {
            for queue in self.of_topic(topic)? {
                queue.begin_again();
            }
        }
        if !is_queued(record.system_flag) {
            return Ok(());
        }
        match self.obtain(record.topic, record.queue_id) {
            Ok(queue) => queue.pass_offset(record.queue_offset),
            // Dispatch reports such a record and leaves it out.
            Err(StoreError::BadTopic(_) | StoreError::BadQueue(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Every queue of the topic, loaded from the disk if need be.
    pub(crate) fn of_topic(&self, topic: &str) -> Result<Vec<Arc<Queue>>, StoreError> {
        let mut queues = Vec::new();
        for queue_id in self.known_ids(topic)? {
            queues.extend(self.find(topic.as_bytes(), queue_id)?);
        }
        Ok(queues)
    }

    #[cold]
    fn find_on_disk(&self, topic: &[u8], queue_id: i32) -> Result<Option<Arc<Queue>>, StoreError> {
        let Ok(name) = checked_name(topic) else { return Ok(None) };
        if queue_id < 0 {
            return Ok(None);
        }
        let cut_from = self.cut_from.load(Ordering::Acquire);
        let cut_from = (cut_from >= 0).then_some(cut_from);
        let loaded = load::load(&self.disk, &name, queue_id, self.next_serial(), cut_from)?;
        Ok(loaded.map(|queue| self.insert(queue)))
    }

    fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds the queue to the table. If another thread was quicker, returns that thread's queue.
    fn insert(&self, mut queue: Queue) -> Arc<Queue> {
        let mut table = self.table.write();
        let topic = table
            .entry(queue.topic.as_bytes().into())
            .or_insert_with(|| Topic { name: Arc::clone(&queue.topic), queues: Vec::new() });
        match topic.queues.binary_search_by_key(&queue.queue_id, |(id, _)| *id) {
            Ok(place) => Arc::clone(&topic.queues[place].1),
            Err(place) => {
                let starts = self.starts.read();
                let start = starts.get(&*queue.topic).and_then(|topic| topic.get(&queue.queue_id));
                queue.set_start(start.copied().unwrap_or(0));
                // One name for all queues of a topic.
                queue.topic = Arc::clone(&topic.name);
                let queue = Arc::new(queue);
                topic.queues.insert(place, (queue.queue_id, Arc::clone(&queue)));
                queue
            }
        }
    }

    /// The ids of the topic's queues that hold or held records, from memory and from the disk.
    pub(crate) fn ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        self.ids_where(topic, |queue| !queue.is_unused())
    }

    fn known_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        self.ids_where(topic, |_| true)
    }

    fn ids_where(&self, topic: &str, counts: impl Fn(&Queue) -> bool) -> Result<Vec<i32>, StoreError> {
        let mut ids = Vec::new();
        if let Some(topic) = self.table.read().get(topic.as_bytes()) {
            ids.extend(topic.queues.iter().filter(|(_, queue)| counts(queue)).map(|(id, _)| *id));
        }
        if checked_name(topic.as_bytes()).is_ok() {
            ids.extend(self.ids_on_disk(topic)?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn ids_on_disk(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        let is_id = |name: &str| name.parse::<i32>().ok().filter(|id| *id >= 0 && id.to_string() == name);
        let names = self.directories(&self.disk.root.join(topic))?;
        Ok(names.iter().filter_map(|name| is_id(name)).collect())
    }

    /// Lists every queue that has a directory.
    pub(crate) fn list_on_disk(&self) -> Result<Vec<(String, i32)>, StoreError> {
        let mut found = Vec::new();
        for topic in self.directories(&self.disk.root)? {
            let queue_ids = self.ids_on_disk(&topic)?;
            found.extend(queue_ids.into_iter().map(|queue_id| (topic.clone(), queue_id)));
        }
        Ok(found)
    }

    /// Counts the queues that have a file. A checkpoint keeps the count, to notice when a queue goes missing. If there
    /// are too many queues to look into each without delaying the start, those with an empty directory count as well.
    pub(crate) fn count_on_disk(&self) -> Result<i64, StoreError> {
        let mut queues = self.list_on_disk()?;
        if queues.len() <= DIGEST_QUEUES_MAX {
            let mut failed = None;
            queues.retain(|(topic, queue_id)| {
                let directory = self.disk.directory(topic, *queue_id);
                match self.disk.disk.read_directory(&directory) {
                    Ok(entries) => entries.iter().any(|entry| !entry.is_directory),
                    Err(source) => {
                        failed = Some(StoreError::io(&directory, source));
                        false
                    }
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(queues.len() as i64)
    }

    /// A digest of the names and lengths of all queue files, which shows when one of them is gone or cut. Returns
    /// 0, which means unknown, if there are too many queues to check them without delaying the start.
    pub(crate) fn files_digest(&self) -> Result<i64, StoreError> {
        let queues = self.list_on_disk()?;
        if queues.len() > DIGEST_QUEUES_MAX {
            return Ok(0);
        }
        let mut digest = crc32fast::Hasher::new();
        for (topic, queue_id) in queues {
            let directory = self.disk.directory(&topic, queue_id);
            let fail = |source| StoreError::io(&directory, source);
            for entry in self.disk.disk.read_directory(&directory).map_err(fail)? {
                let file = self.disk.disk.open(&directory.join(&entry.name)).map_err(fail)?;
                let len = self.disk.disk.len(&file).map_err(fail)?;
                digest.update(format!("{topic}/{queue_id}/{}:{len}\n", entry.name).as_bytes());
            }
        }
        Ok((1 << 32) | i64::from(digest.finalize()))
    }

    fn directories(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        let entries = self.disk.disk.read_directory(path).map_err(|source| StoreError::io(path, source))?;
        Ok(entries.into_iter().filter(|entry| entry.is_directory).map(|entry| entry.name).collect())
    }

    /// Every queue in memory that holds or held records.
    pub(crate) fn loaded(&self) -> Vec<Arc<Queue>> {
        let table = self.table.read();
        let queues = table.values().flat_map(|topic| topic.queues.iter().map(|(_, queue)| queue));
        queues.filter(|queue| !queue.is_unused()).map(Arc::clone).collect()
    }

    /// Loads every queue and drops entries of records from `cut_from` on, until `finish_replay` is called.
    pub(crate) fn load_all(&self, cut_from: i64) -> Result<(), StoreError> {
        self.cut_from.store(cut_from, Ordering::Release);
        for (topic, queue_id) in self.list_on_disk()? {
            self.find(topic.as_bytes(), queue_id)?;
        }
        Ok(())
    }

    /// Ends recovery: from now on no entries are dropped.
    pub(crate) fn finish_replay(&self) {
        self.cut_from.store(-1, Ordering::Release);
        for (_, queue) in self.table.read().values().flat_map(|topic| &topic.queues) {
            queue.finish_replay();
        }
    }

    /// Readers of the topic get nothing below these queue offsets from now on; queues that are left out have no such
    /// start.
    pub(crate) fn set_starts(&self, topic: &str, starts: HashMap<i32, i64>) {
        let mut table = self.starts.write();
        if starts.is_empty() {
            table.remove(topic);
        } else {
            table.insert(topic.to_owned(), starts.clone());
        }
        drop(table);
        // A queue that is loaded meanwhile has them from the table.
        let queues = self.table.read();
        for (queue_id, queue) in queues.get(topic.as_bytes()).into_iter().flat_map(|topic| &topic.queues) {
            queue.set_start(starts.get(queue_id).copied().unwrap_or(0));
        }
    }

    pub(crate) fn mark_dirty(&self, queue: &Arc<Queue>) {
        self.dirty.lock().push(Arc::clone(queue));
    }

    /// Writes the entries that wait in memory, for every queue. After an error the rest keeps waiting.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.flushing.lock();
        let dirty = std::mem::take(&mut *self.dirty.lock());
        let mut failed = None;
        let mut waiting = Vec::new();
        for queue in dirty {
            let is_dirty = if failed.is_some() { Ok(true) } else { queue.flush(&self.disk) };
            match is_dirty {
                Ok(false) => {}
                Ok(true) => waiting.push(queue),
                Err(error) => {
                    failed = Some(error);
                    waiting.push(queue);
                }
            }
        }
        self.dirty.lock().append(&mut waiting);
        failed.map_or(Ok(()), Err)
    }

    pub(crate) fn flush_one(&self, queue: &Queue) -> Result<(), StoreError> {
        let _one_at_a_time = self.flushing.lock();
        queue.flush(&self.disk).map(|_| ())
    }

    /// Removes the topic's queues from the table. The caller holds off appends and dispatch meanwhile.
    pub(crate) fn take_topic(&self, topic: &str) {
        // Not while one of them is being written: that might create a directory that nobody counts.
        let _one_at_a_time = self.flushing.lock();
        self.starts.write().remove(topic);
        let taken = self.table.write().remove(topic.as_bytes());
        for (_, queue) in taken.into_iter().flat_map(|topic| topic.queues) {
            queue.remove(&self.disk);
        }
    }

    /// Deletes all entries of the topic's queues, in memory and in files. `lower_count` writes down how many queues have
    /// files from now on, before any of them is deleted: if a checkpoint counted more queues than there are, the next
    /// start would rebuild all of them.
    pub(crate) fn delete_entries(
        &self,
        topic: &str,
        lower_count: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if checked_name(topic.as_bytes()).is_err() {
            return Ok(());
        }
        let queues = self.of_topic(topic)?;
        let _one_at_a_time = self.flushing.lock();
        let on_disk = self.ids_on_disk(topic)?.len() as i64;
        self.starts.write().remove(topic);
        for queue in queues {
            queue.set_start(0);
            queue.restart(&self.disk);
        }
        let directory = self.disk.root.join(topic);
        let fail = |source| StoreError::io(&directory, source);
        if !self.disk.disk.exists(&directory) {
            return Ok(());
        }
        self.disk.directory_count.fetch_sub(on_disk, Ordering::AcqRel);
        lower_count()?;
        self.disk.disk.remove_directory(&directory).map_err(fail)?;
        // Otherwise a power loss could bring the files back after a checkpoint has passed the deletion.
        self.disk.disk.sync_directory(&self.disk.root).map_err(fail)
    }

    /// Restarts a queue at 0, because its topic was deleted and created again, and deletes its older entries.
    pub(crate) fn restart(&self, queue: &Queue) -> Result<(), StoreError> {
        let _one_at_a_time = self.flushing.lock();
        if queue.restart(&self.disk) {
            self.disk.directory_count.fetch_sub(1, Ordering::AcqRel);
        }
        let directory = self.disk.directory(&queue.topic, queue.queue_id);
        self.disk.disk.remove_directory(&directory).map_err(|source| StoreError::io(&directory, source))
    }
}

/// Checks the topic, which becomes the name of a directory and must not lead anywhere else.
fn checked_name(topic: &[u8]) -> Result<Arc<str>, StoreError> {
    match std::str::from_utf8(topic) {
        Ok(name)
            if !name.is_empty()
                && name.len() <= TOPIC_BYTES_MAX
                && topic != DELETION_TOPIC
                && !name.contains(['/', '\0'])
                && name != "."
                && name != ".." =>
        {
            Ok(Arc::from(name))
        }
        _ => Err(StoreError::BadTopic(String::from_utf8_lossy(topic).into_owned())),
    }
}
