//! A disk for tests: the real one underneath, and any call can be made to fail or to hang. It can also lose its power.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::disk::{DirectoryEntry, Disk, DiskFile, Space, SystemDisk};

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    Create,
    Len,
    SetLen,
    Allocate,
    Zero,
    DataEnd,
    Read,
    Write,
    SyncData,
    SyncMapped,
    SyncFileSystem,
    SyncDirectory,
    CreateDirectory,
    ReadDirectory,
    Rename,
    RemoveFile,
    RemoveDirectory,
    Space,
    Lock,
}

/// Which calls fail, how, and how often.
#[derive(Clone, Debug)]
pub struct Fault {
    pub call: Call,
    /// Only for paths that contain this text; empty means all paths.
    pub path_part: &'static str,
    pub kind: io::ErrorKind,
    /// How many matching calls pass first.
    pub after: u64,
    /// How many then fail.
    pub times: u64,
}

#[derive(Default)]
pub struct FaultyDisk {
    faults: Mutex<Vec<Fault>>,
    stalled: Mutex<Option<(Call, &'static str)>>,
    resumed: Condvar,
    hanging: AtomicU64,
    space: Mutex<Option<Space>>,
    boot_id: Mutex<Option<[u8; 16]>>,
    syncs: AtomicU64,
    faults_met: AtomicU64,
    survivor: Mutex<Option<Survivor>>,
}

/// A copy of a directory that holds only what was synced.
struct Survivor {
    from: PathBuf,
    to: PathBuf,
}

impl Survivor {
    /// Copies a file, or everything below a directory.
    fn copy(&self, path: &Path) -> io::Result<()> {
        let Ok(part) = path.strip_prefix(&self.from) else { return Ok(()) };
        let to = self.to.join(part);
        if !path.is_dir() {
            std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
            return std::fs::copy(path, to).map(|_| ());
        }
        for entry in std::fs::read_dir(path)? {
            self.copy(&entry?.path())?;
        }
        Ok(())
    }

    /// Copies the names of a directory's files, with their lengths but not with their content.
    fn copy_names(&self, directory: &Path) -> io::Result<()> {
        let Ok(part) = directory.strip_prefix(&self.from) else { return Ok(()) };
        let to = self.to.join(part);
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let copy = to.join(entry.file_name());
            if entry.file_type()?.is_file() && !copy.exists() {
                std::fs::File::create(copy)?.set_len(entry.metadata()?.len())?;
            }
        }
        Ok(())
    }
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&self, fault: Fault) {
        self.faults.lock().push(fault);
    }

    /// Every matching call fails from now on.
    pub fn fail(&self, call: Call, path_part: &'static str, kind: io::ErrorKind) {
        self.add(Fault { call, path_part, kind, after: 0, times: u64::MAX });
    }

    /// Every matching call hangs until the disk is healed.
    pub fn stall(&self, call: Call, path_part: &'static str) {
        *self.stalled.lock() = Some((call, path_part));
    }

    /// Nothing fails or hangs any more.
    pub fn heal(&self) {
        self.faults.lock().clear();
        *self.stalled.lock() = None;
        self.resumed.notify_all();
    }

    /// From now on copies every file below `from` to the same path below `to` whenever it is synced, as it is when the
    /// sync begins. So `to` is what a power cut would leave. File names survive when their directory is synced.
    pub fn keep_synced(&self, from: &Path, to: &Path) {
        *self.survivor.lock() = Some(Survivor { from: from.to_owned(), to: to.to_owned() });
    }

    /// Cuts the power: what is synced from now on no longer survives.
    pub fn cut_power(&self) {
        *self.survivor.lock() = None;
    }

    fn survive(&self, path: &Path) -> io::Result<()> {
        match &*self.survivor.lock() {
            Some(survivor) => survivor.copy(path),
            None => Ok(()),
        }
    }

    /// Pretends that the file system has this space; None shows the real figures again.
    pub fn set_space(&self, space: Option<Space>) {
        *self.space.lock() = space;
    }

    /// Pretends that the machine was restarted.
    pub fn set_boot_id(&self, boot_id: [u8; 16]) {
        *self.boot_id.lock() = Some(boot_id);
    }

    /// Calls of `sync_data` and `sync_mapped` so far.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Calls that hang now.
    pub fn hanging(&self) -> u64 {
        self.hanging.load(Ordering::Relaxed)
    }

    /// Calls that were made to fail.
    pub fn faults_met(&self) -> u64 {
        self.faults_met.load(Ordering::Relaxed)
    }

    fn check(&self, call: Call, path: &Path) -> io::Result<()> {
        let path = path.to_string_lossy();
        let hangs = |stalled: &mut Option<(Call, &'static str)>| {
            stalled.is_some_and(|(stalled, path_part)| stalled == call && path.contains(path_part))
        };
        let mut stalled = self.stalled.lock();
        if hangs(&mut stalled) {
            self.hanging.fetch_add(1, Ordering::Relaxed);
            self.resumed.wait_while(&mut stalled, hangs);
            self.hanging.fetch_sub(1, Ordering::Relaxed);
        }
        drop(stalled);
        let mut faults = self.faults.lock();
        for fault in faults.iter_mut() {
            if fault.call != call || !path.contains(fault.path_part) || fault.times == 0 {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            fault.times -= 1;
            self.faults_met.fetch_add(1, Ordering::Relaxed);
            return Err(fault.kind.into());
        }
        Ok(())
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<DiskFile> {
        self.check(Call::Open, path)?;
        SystemDisk.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<DiskFile> {
        self.check(Call::Create, path)?;
        SystemDisk.create(path)
    }

    fn len(&self, file: &DiskFile) -> io::Result<u64> {
        self.check(Call::Len, file.path())?;
        SystemDisk.len(file)
    }

    fn set_len(&self, file: &DiskFile, len: u64) -> io::Result<()> {
        self.check(Call::SetLen, file.path())?;
        SystemDisk.set_len(file, len)
    }

    fn allocate(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
        self.check(Call::Allocate, file.path())?;
        SystemDisk.allocate(file, from, len)
    }

    fn zero(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
        self.check(Call::Zero, file.path())?;
        SystemDisk.zero(file, from, len)
    }

    fn data_end(&self, file: &DiskFile, from: u64) -> io::Result<u64> {
        self.check(Call::DataEnd, file.path())?;
        SystemDisk.data_end(file, from)
    }

    fn read_at(&self, file: &DiskFile, buffer: &mut [u8], from: u64) -> io::Result<usize> {
        self.check(Call::Read, file.path())?;
        SystemDisk.read_at(file, buffer, from)
    }

    fn read_once(&self, path: &Path, buffer: &mut [u8], from: u64) -> io::Result<usize> {
        self.check(Call::Read, path)?;
        SystemDisk.read_once(path, buffer, from)
    }

    fn write_at(&self, file: &DiskFile, data: &[u8], from: u64) -> io::Result<()> {
        self.check(Call::Write, file.path())?;
        SystemDisk.write_at(file, data, from)
    }

    fn sync_data(&self, file: &DiskFile) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.check(Call::SyncData, file.path())?;
        self.survive(file.path())?;
        SystemDisk.sync_data(file)
    }

    fn sync_mapped(&self, file: &DiskFile, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.check(Call::SyncMapped, file.path())?;
        self.survive(file.path())?;
        sync()
    }

    fn sync_file_system(&self, directory: &Path) -> io::Result<()> {
        self.check(Call::SyncFileSystem, directory)?;
        self.survive(directory)?;
        SystemDisk.sync_file_system(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.check(Call::SyncDirectory, directory)?;
        if let Some(survivor) = &*self.survivor.lock() {
            survivor.copy_names(directory)?;
        }
        SystemDisk.sync_directory(directory)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.check(Call::CreateDirectory, path)?;
        SystemDisk.create_directory(path)
    }

    fn read_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.check(Call::ReadDirectory, path)?;
        SystemDisk.read_directory(path)
    }

    fn exists(&self, path: &Path) -> bool {
        SystemDisk.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Call::Rename, from)?;
        SystemDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check(Call::RemoveFile, path)?;
        SystemDisk.remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.check(Call::RemoveDirectory, path)?;
        SystemDisk.remove_directory(path)
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        self.check(Call::Space, directory)?;
        match *self.space.lock() {
            Some(space) => Ok(space),
            None => SystemDisk.space(directory),
        }
    }

    fn lock(&self, file: &DiskFile) -> io::Result<bool> {
        self.check(Call::Lock, file.path())?;
        SystemDisk.lock(file)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id.lock().unwrap_or_else(|| SystemDisk.boot_id())
    }
}
