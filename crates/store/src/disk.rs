//! The only way to the file system: every file call of the store goes through [`Disk`], so that syncs report their
//! errors in one place and a test can make any call fail ([`crate::faulty_disk::FaultyDisk`]).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Advice, FallocateFlags, FlockOperation, SeekFrom};
use rustix::io::ReadWriteFlags;

/// Messages are nobody's business but the broker's: its files and directories are for its account only.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// The page cache holds units of this size, or of a multiple of it.
const CACHED_UNIT_BYTES: u64 = 4_096;

/// An open file and the path it was opened by, for error messages.
#[derive(Debug)]
pub struct DiskFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl DiskFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    pub name: String,
    pub is_directory: bool,
}

/// How full the file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

impl Space {
    /// The used part, rounded up so that a limit is reached early rather than late.
    pub fn used_percent(&self) -> u8 {
        if self.total_bytes == 0 {
            return 0;
        }
        let used = self.total_bytes.saturating_sub(self.available_bytes);
        (used as u128 * 100).div_ceil(self.total_bytes as u128).min(100) as u8
    }
}

pub trait Disk: Send + Sync {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<DiskFile>;
    /// Opens a file for reading and writing, and creates an empty one if there is none.
    fn create(&self, path: &Path) -> io::Result<DiskFile>;
    fn len(&self, file: &DiskFile) -> io::Result<u64>;
    /// Sets the length; a longer file gets a hole that takes no blocks.
    fn set_len(&self, file: &DiskFile, len: u64) -> io::Result<()>;
    /// Allocates blocks for the range, so that a later write to it cannot find the disk full.
    fn allocate(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()>;
    /// Makes the range read as zeros, and frees its blocks if the file system can.
    fn zero(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()>;
    /// The end of the data from `from` on; everything after it is a hole.
    fn data_end(&self, file: &DiskFile, from: u64) -> io::Result<u64>;
    /// Fills the buffer as far as the file reaches and returns how many bytes that were.
    fn read_at(&self, file: &DiskFile, buffer: &mut [u8], from: u64) -> io::Result<usize>;
    /// The same for bytes that are read once in a long time: they do not stay in the page cache unless they were in it.
    fn read_once(&self, path: &Path, buffer: &mut [u8], from: u64) -> io::Result<usize>;
    fn write_at(&self, file: &DiskFile, data: &[u8], from: u64) -> io::Result<()>;
    fn sync_data(&self, file: &DiskFile) -> io::Result<()>;
    /// Syncs part of a mapped file by calling `sync`; a test can step in here.
    fn sync_mapped(&self, file: &DiskFile, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()>;
    /// Syncs the whole file system that holds the directory: cheaper than one call each for many files.
    fn sync_file_system(&self, directory: &Path) -> io::Result<()>;
    /// Makes names in the directory (created, renamed, removed files) survive a power loss.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// The directory's entries, sorted by name; empty if it does not exist. Names that are not text are left out.
    fn read_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>>;
    fn exists(&self, path: &Path) -> bool;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    fn space(&self, directory: &Path) -> io::Result<Space>;
    /// Locks the file for this process until it is closed; false if another process has it.
    fn lock(&self, file: &DiskFile) -> io::Result<bool>;
    /// Changes when the machine restarts: what was written but not synced before that may be gone.
    fn boot_id(&self) -> [u8; 16];
}

/// Opens a file, but never through a symbolic link: whoever planted it would choose the file that is overwritten.
fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path).map_err(|error| {
        if error.raw_os_error() != Some(rustix::io::Errno::LOOP.raw_os_error()) {
            return error;
        }
        let text = format!("{} is a symbolic link, and the store follows none; remove it", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let file = open_no_link(OpenOptions::new().read(true).write(true), path)?;
        Ok(DiskFile { file, path: path.to_owned() })
    }

    fn create(&self, path: &Path) -> io::Result<DiskFile> {
        let mut options = OpenOptions::new();
        let file =
            open_no_link(options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE), path)?;
        Ok(DiskFile { file, path: path.to_owned() })
    }

    fn len(&self, file: &DiskFile) -> io::Result<u64> {
        Ok(file.file.metadata()?.len())
    }

    fn set_len(&self, file: &DiskFile, len: u64) -> io::Result<()> {
        file.file.set_len(len)
    }

    fn allocate(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&file.file, FallocateFlags::KEEP_SIZE, from, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => rewrite(self, file, from, len),
            Err(error) => Err(error.into()),
        }
    }

    fn zero(&self, file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&file.file, punch, from, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file, from, len),
            Err(error) => Err(error.into()),
        }
    }

    fn data_end(&self, file: &DiskFile, from: u64) -> io::Result<u64> {
        let mut end = from;
        loop {
            let data = match rustix::fs::seek(&file.file, SeekFrom::Data(end)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => return Ok(end),
                // The file system cannot tell, so everything may be data.
                Err(rustix::io::Errno::INVAL) => return Ok(self.len(file)?.max(from)),
                Err(error) => return Err(error.into()),
            };
            end = rustix::fs::seek(&file.file, SeekFrom::Hole(data))?;
        }
    }

    fn read_at(&self, file: &DiskFile, buffer: &mut [u8], from: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.file.read_at(&mut buffer[filled..], from + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn read_once(&self, path: &Path, buffer: &mut [u8], from: u64) -> io::Result<usize> {
        let file =
            DiskFile { file: open_no_link(OpenOptions::new().read(true), path)?, path: path.to_owned() };
        // Otherwise the kernel reads more than this, which would stay. All advice here is a hint and may fail.
        let _hint = rustix::fs::fadvise(&file.file, 0, None, Advice::Random);
        let cached = {
            let buffers = &mut [IoSliceMut::new(buffer)];
            rustix::io::preadv2(&file.file, buffers, from, ReadWriteFlags::NOWAIT).unwrap_or(0)
        };
        let begin = from + cached as u64;
        let read = self.read_at(&file, &mut buffer[cached..], begin)?;
        if read > 0 {
            // The kernel keeps pages that are named in part.
            let first = begin / CACHED_UNIT_BYTES * CACHED_UNIT_BYTES;
            let end = (begin + read as u64).next_multiple_of(CACHED_UNIT_BYTES);
            let len = NonZeroU64::new(end - first);
            let _hint = rustix::fs::fadvise(&file.file, first, len, Advice::DontNeed);
        }
        Ok(cached + read)
    }

    fn write_at(&self, file: &DiskFile, data: &[u8], from: u64) -> io::Result<()> {
        file.file.write_all_at(data, from)
    }

    fn sync_data(&self, file: &DiskFile) -> io::Result<()> {
        file.file.sync_data()
    }

    fn sync_mapped(&self, _file: &DiskFile, sync: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        sync()
    }

    fn sync_file_system(&self, directory: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(directory)?)?)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
    }

    fn read_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let listing = match fs::read_dir(path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry?;
            let is_directory = entry.file_type()?.is_dir();
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirectoryEntry { name, is_directory });
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        let figures = rustix::fs::statvfs(directory)?;
        // Blocks reserved for the superuser count neither as available nor as used, as in df.
        let used = figures.f_blocks.saturating_sub(figures.f_bfree);
        Ok(Space {
            total_bytes: (used + figures.f_bavail) * figures.f_frsize,
            available_bytes: figures.f_bavail * figures.f_frsize,
        })
    }

    fn lock(&self, file: &DiskFile) -> io::Result<bool> {
        // Two kinds of lock, because Java's FileChannel.tryLock takes the record lock and does not see flock,
        // while a record lock does not stop a second open inside one process.
        for taken in [
            rustix::fs::flock(&file.file, FlockOperation::NonBlockingLockExclusive),
            rustix::fs::fcntl_lock(&file.file, FlockOperation::NonBlockingLockExclusive),
        ] {
            match taken {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::ACCESS) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn boot_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> =
            text.chars().filter_map(|digit| digit.to_digit(16)).map(|value| value as u8).collect();
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |value, digit| (value << 4) | digit);
        }
        id
    }
}

/// Writes the content of the range back, which allocates its blocks and makes its pages dirty. Nobody else may change
/// the range meanwhile.
pub(crate) fn rewrite(disk: &dyn Disk, file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let end = from + len;
    let mut at = from;
    while at < end {
        let part = (end - at).min(buffer.len() as u64) as usize;
        buffer.fill(0);
        disk.read_at(file, &mut buffer[..part], at)?;
        disk.write_at(file, &buffer[..part], at)?;
        at += part as u64;
    }
    Ok(())
}

fn write_zeros(file: &DiskFile, from: u64, len: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let end = from + len;
    let mut at = from;
    while at < end {
        let part = (end - at).min(ZEROS.len() as u64) as usize;
        file.file.write_all_at(&ZEROS[..part], at)?;
        at += part as u64;
    }
    Ok(())
}

/// The machine's memory, read once; 4 GiB if it cannot be read.
pub(crate) fn memory_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = total.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or(4 << 20) * 1024
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_crossed_rather_early() {
        let percent = |total_bytes, available_bytes| Space { total_bytes, available_bytes }.used_percent();
        assert_eq!(percent(1_000, 1_000), 0);
        assert_eq!(percent(1_000, 999), 1);
        assert_eq!(percent(1_000, 100), 90);
        assert_eq!(percent(1_000, 0), 100);
        assert_eq!(percent(0, 0), 0);
    }

    #[test]
    fn holes_are_told_from_data_and_can_be_made() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let disk = SystemDisk;
        let file = disk.create(&directory.path().join("file"))?;
        disk.set_len(&file, 1 << 20)?;
        assert_eq!(disk.data_end(&file, 0)?, 0);
        disk.write_at(&file, b"data", 300_000)?;
        let end = disk.data_end(&file, 0)?;
        assert!((300_004..400_000).contains(&end), "{end}");
        disk.zero(&file, 0, 1 << 20)?;
        assert_eq!(disk.data_end(&file, 0)?, 0);
        assert_eq!(disk.len(&file)?, 1 << 20);
        let mut buffer = [1; 8];
        assert_eq!(disk.read_at(&file, &mut buffer, (1 << 20) - 4)?, 4, "as far as the file reaches");
        assert_eq!(buffer[..4], [0; 4]);
        Ok(())
    }

    #[test]
    fn files_and_directories_are_private() -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir()?;
        let directory = root.path().join("store").join("commitlog");
        SystemDisk.create_directory(&directory)?;
        SystemDisk.create(&directory.join("file"))?;
        let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        assert_eq!(mode(&directory.join("file"))?, 0o600);
        assert_eq!(mode(&directory)?, 0o700);
        assert_eq!(mode(&root.path().join("store"))?, 0o700);
        Ok(())
    }

    const TMPFS_MAGIC: i64 = 0x0102_1994;

    #[test]
    fn bytes_that_are_read_once_do_not_stay_in_the_page_cache() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("file");
        let file = SystemDisk.create(&path)?;
        SystemDisk.write_at(&file, &[7; 1 << 20], 0)?;
        SystemDisk.sync_data(&file)?;
        let is_cached = |from: u64| {
            let mut buffer = [0; 64];
            let buffers = &mut [IoSliceMut::new(&mut buffer)];
            rustix::io::preadv2(&file.file, buffers, from, ReadWriteFlags::NOWAIT).is_ok()
        };
        let forget = || rustix::fs::fadvise(&file.file, 0, None, Advice::DontNeed);
        let mut buffer = vec![0; 256 * 1024];
        assert_eq!(SystemDisk.read_once(&path, &mut buffer, 4_096)?, buffer.len());
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert!(is_cached(4_096), "it was there before");
        forget()?;
        for from in [4_000, 4_000 + buffer.len() as u64] {
            assert_eq!(SystemDisk.read_once(&path, &mut buffer, from)?, buffer.len());
        }
        // A question brings in what follows, so later places come first. A file system in memory has everything.
        if rustix::fs::fstatfs(&file.file)?.f_type != TMPFS_MAGIC {
            let cached: Vec<u64> =
                [600_000, 300_000, 4_096].into_iter().filter(|at| is_cached(*at)).collect();
            assert!(cached.is_empty(), "{cached:?} stayed in the page cache");
        }
        assert_eq!(
            SystemDisk.read_once(&path, &mut buffer, (1 << 20) - 10)?,
            10,
            "as far as the file reaches"
        );
        Ok(())
    }

    #[test]
    fn planted_links_are_not_followed() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let victim = directory.path().join("victim");
        fs::write(&victim, b"precious")?;
        for name in ["checkpoint", "abort", "lock"] {
            let link = directory.path().join(name);
            std::os::unix::fs::symlink(&victim, &link)?;
            for opened in [SystemDisk.create(&link), SystemDisk.open(&link)] {
                let told = opened.map_or_else(|error| error.to_string(), |_| "it was followed".to_owned());
                assert!(told.contains("is a symbolic link"), "{told}");
            }
            let dangling = directory.path().join(format!("{name}-dangling"));
            std::os::unix::fs::symlink(directory.path().join("new"), &dangling)?;
            assert!(SystemDisk.create(&dangling).is_err());
        }
        assert!(!directory.path().join("new").exists());
        assert_eq!(fs::read(&victim)?, b"precious");
        Ok(())
    }

    #[test]
    fn the_lock_is_exclusive() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("lock");
        let first = SystemDisk.create(&path)?;
        assert!(SystemDisk.lock(&first)?);
        assert!(!SystemDisk.lock(&SystemDisk.create(&path)?)?);
        drop(first);
        assert!(SystemDisk.lock(&SystemDisk.create(&path)?)?);
        Ok(())
    }
}
