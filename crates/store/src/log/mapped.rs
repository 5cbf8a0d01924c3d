//! Files in memory: the only place with `unsafe`.
//!
//! A mapped file is full-length from the start (a sparse hole), but only its *allocated* part may be written: it has
//! disk blocks, and its pages have been made writable once. Blocks alone are not enough: the first write to a page can
//! make the file system split an extent, which takes a block of its own. So a full disk is an error of `allocate` and
//! never a SIGBUS at a store instruction. Reads stay below `readable_end`, which only grows, and nobody writes below
//! it: that makes the shared slices sound.
//!
//! The directory's lock file keeps other brokers away, but somebody may cut a file all the same, and a disk may fail to
//! read a page. A thread that touches such a page gets a SIGBUS. Its handler puts zeros in the place of the lost pages
//! and marks the mapping. Readers then find no sound record there. What is written to such a page goes nowhere, so the
//! next sync of a marked file fails.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::disk::{Disk, DiskFile, rewrite};
use crate::error::StoreError;
use crate::log::mapped_ranges::{self, Hit, MappedRange};

/// One file that is appended to by one writer and read by many.
pub(crate) struct MappedFile {
    file: DiskFile,
    map: MmapRaw,
    range: &'static MappedRange,
    /// The physical offset of the first byte.
    pub(crate) start_offset: i64,
    readable_end: AtomicU64,
    allocated_end: AtomicU64,
    has_writer: AtomicBool,
    /// Somebody acted on the loss of pages.
    is_loss_known: AtomicBool,
}

impl MappedFile {
    /// Maps `len` bytes of the file and creates or extends it if needed; bytes below `readable_end` hold data.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        start_offset: i64,
        len: u64,
        readable_end: u64,
    ) -> Result<Self, StoreError> {
        let fail = |source| StoreError::io(path, source);
        let file = disk.create(path).map_err(fail)?;
        if disk.len(&file).map_err(fail)? < len {
            disk.set_len(&file, len).map_err(fail)?;
        }
        watch_for_lost_pages().map_err(fail)?;
        let map = MmapOptions::new().len(len as usize).map_raw(&file.file).map_err(fail)?;
        Ok(Self {
            range: mapped_ranges::note(map.as_ptr() as usize, map.len(), file.file.as_raw_fd()),
            file,
            map,
            start_offset,
            readable_end: AtomicU64::new(readable_end.min(len)),
            allocated_end: AtomicU64::new(readable_end.min(len)),
            has_writer: AtomicBool::new(false),
            is_loss_known: AtomicBool::new(false),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn file(&self) -> &DiskFile {
        &self.file
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// The physical offset just after the file.
    pub(crate) fn end_offset(&self) -> i64 {
        self.start_offset + self.map.len() as i64
    }

    pub(crate) fn allocated_end(&self) -> u64 {
        self.allocated_end.load(Ordering::Acquire)
    }

    /// Takes disk blocks up to `end`, rounded up to pages and at most to the file's end, and makes their pages writable
    /// in memory.
    pub(crate) fn allocate(&self, disk: &dyn Disk, end: u64) -> Result<(), StoreError> {
        let end = page_end(end).min(self.len());
        let from = self.allocated_end();
        if from < end {
            let page = page_start(from);
            self.check_whole(disk)?;
            take(disk, &self.file, from, end, || {
                self.map.advise_range(Advice::PopulateWrite, page as usize, (end - page) as usize)
            })?;
            self.allocated_end.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Unmaps the memory of a part that is rarely read: it stays in the page cache but no longer counts as this
    /// process's own. This is a hint, so it may fail.
    pub(crate) fn release_memory(&self, end: u64) {
        let end = end.min(self.len()) as usize;
        if end > 0 {
            // SAFETY: on a shared mapping of a file DONTNEED only drops page-table entries; the next access finds the
            // same bytes in the page cache or in the file.
            let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, 0, end) };
        }
    }

    /// Syncs a part of the file. The rest holds preallocated pages that nobody needs to wait for; on ext4 leaving them
    /// out brought the 99th percentile of one sender's wait from 0.9 to 0.25 ms.
    ///
    /// Fails if pages of the file are lost: what was written to them is not on the disk.
    pub(crate) fn sync(&self, disk: &dyn Disk, from: u64, end: u64) -> Result<(), StoreError> {
        let end = end.min(self.len());
        let len = end.saturating_sub(from) as usize;
        disk.sync_mapped(&self.file, &|| self.map.flush_range(from as usize, len))
            .map_err(|source| StoreError::io(self.path(), source))?;
        // Afterwards: the kernel says nothing about dirty pages that were cut off before it wrote them.
        self.check_whole(disk)
    }

    /// Fails if the file is shorter than its mapping, or pages of it could not be read.
    pub(crate) fn check_whole(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        check_whole(disk, &self.file, self.len(), self.range)
    }

    /// Notes that the file ends at a position.
    pub(crate) fn note_cut(&self, position: u64) {
        self.range.note_cut(position);
    }

    /// Whether the file was found to be shorter than its mapping.
    pub(crate) fn is_cut(&self) -> bool {
        self.range.is_cut()
    }

    /// The first position at which the file lost a page since it was opened. A file that was cut is only found by a
    /// thread that touches one of its lost pages, and by a sync.
    pub(crate) fn lost_from(&self) -> Option<u64> {
        self.range.lost_from()
    }

    /// The same for the first who asks after the loss.
    pub(crate) fn take_loss(&self) -> Option<u64> {
        self.lost_from().filter(|_| !self.is_loss_known.swap(true, Ordering::AcqRel))
    }

    /// The bytes that hold data.
    pub(crate) fn readable(&self) -> &[u8] {
        let end = self.readable_end.load(Ordering::Acquire) as usize;
        // SAFETY: the map is `len` long, `readable_end` never exceeds it and never falls, the file has that length,
        // and bytes below `readable_end` are not written while this file is shared (see `FileWriter`).
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), end) }
    }

    /// A part of the readable bytes, by position in the file.
    pub(crate) fn slice(&self, from: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(from).ok()?;
        self.readable().get(from..from.checked_add(len)?)
    }

    /// The same part as a handle that keeps the mapping alive, even when the file is deleted meanwhile.
    pub(crate) fn bytes(self: &Arc<Self>, from: u64, len: usize) -> Option<Bytes> {
        self.slice(from, len)?;
        Some(Bytes::from_owner(MappedBytes { file: Arc::clone(self), from: from as usize, len }))
    }

    /// The one writer of this file; None while there is another.
    pub(crate) fn writer(self: &Arc<Self>) -> Option<FileWriter> {
        let taken = self.has_writer.swap(true, Ordering::AcqRel);
        (!taken).then(|| FileWriter {
            file: Arc::clone(self),
            position: self.readable_end.load(Ordering::Acquire),
        })
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        mapped_ranges::release(self.range);
    }
}

struct MappedBytes {
    file: Arc<MappedFile>,
    from: usize,
    len: usize,
}

impl AsRef<[u8]> for MappedBytes {
    fn as_ref(&self) -> &[u8] {
        // In range since `MappedFile::bytes` made it: the readable part only grows.
        self.file.readable().get(self.from..self.from + self.len).unwrap_or_default()
    }
}

/// Appends to a [`MappedFile`]: the bytes from `position` on belong to it alone until it publishes them.
pub(crate) struct FileWriter {
    file: Arc<MappedFile>,
    position: u64,
}

impl FileWriter {
    pub(crate) fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn physical_offset(&self) -> i64 {
        self.file.start_offset + self.position as i64
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.file.len() - self.position
    }

    /// Lays out the next `len` bytes and moves on; returns false and does nothing if they have no disk blocks yet.
    #[inline]
    pub(crate) fn fill(&mut self, len: usize, layout: impl FnOnce(&mut [u8])) -> bool {
        let Some(end) = self.position.checked_add(len as u64) else { return false };
        if end > self.file.allocated_end() {
            return false;
        }
        // SAFETY: `allocated_end` never exceeds the map's length; bytes from `position` on are not readable yet, and
        // this is the file's only writer (`has_writer`), borrowed mutably: nobody else holds a reference to them.
        let target = unsafe {
            std::slice::from_raw_parts_mut(self.file.map.as_mut_ptr().add(self.position as usize), len)
        };
        layout(target);
        self.position = end;
        true
    }

    /// Lets readers see everything up to the writer's position.
    #[inline]
    pub(crate) fn publish(&self) {
        self.file.readable_end.store(self.position, Ordering::Release);
    }

    /// Ends the file: nothing more is written, and the rest of it reads as zeros.
    pub(crate) fn finish(self) {
        self.file.readable_end.store(self.file.len(), Ordering::Release);
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.file.has_writer.store(false, Ordering::Release);
    }
}

const PAGE_BYTES: u64 = 4_096;

fn page_start(position: u64) -> u64 {
    position / PAGE_BYTES * PAGE_BYTES
}

fn page_end(position: u64) -> u64 {
    position.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

/// Takes blocks for the range and makes its pages writable through `populate`.
fn take(
    disk: &dyn Disk,
    file: &DiskFile,
    from: u64,
    end: u64,
    populate: impl FnOnce() -> io::Result<()>,
) -> Result<(), StoreError> {
    let taken = disk.allocate(file, from, end - from).and_then(|()| match populate() {
        // A write to these pages would have ended in SIGBUS: the disk is full.
        Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
            Err(io::ErrorKind::StorageFull.into())
        }
        // A kernel before 5.14 cannot populate. Writing the range once through the file takes what it needs.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => rewrite(disk, file, from, end - from),
        populated => populated,
    });
    taken.map_err(|source| StoreError::io(file.path(), source))
}

/// Fails if a file is shorter than its mapping, or pages of it could not be read.
fn check_whole(disk: &dyn Disk, file: &DiskFile, len: u64, range: &MappedRange) -> Result<(), StoreError> {
    let present = disk.len(file).map_err(|source| StoreError::io(file.path(), source))?;
    if present < len {
        range.note_cut(present);
    }
    range
        .lost_from()
        .map_or(Ok(()), |position| Err(StoreError::LostPages { path: file.path().to_owned(), position }))
}

/// The handler of SIGBUS that was there before ours.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
/// A signal that somebody sent was passed on. The next one ends the process: it may come from the handler itself.
static IS_PASSED_ON: AtomicBool = AtomicBool::new(false);

/// Makes [`on_sigbus`] the handler of SIGBUS, also if somebody else took its place.
fn watch_for_lost_pages() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock();
    let handler = on_sigbus as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let handler = handler as usize;
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only writes the present one, into memory of its type.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it; before that it was zeroed, which is a valid value of the type.
    let found = unsafe { found.assume_init() };
    if found.sa_sigaction == handler {
        return Ok(());
    }
    // Never freed: a handler may be reading it. This happens once, or a few times with others who set handlers.
    PREVIOUS.store(Box::leak(Box::new(found)), Ordering::SeqCst);
    // SAFETY: zeros are a valid value of the type.
    let mut ours = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    ours.sa_sigaction = handler;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `ours` is whole, and `on_sigbus` has the signature that SA_SIGINFO asks for. It calls only what a handler
    // of signals may call.
    if unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Runs on the thread that touched a page which cannot be read. It takes no lock, allocates nothing and leaves `errno`
/// alone: rustix calls the kernel without the C library.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`. A positive code says that the thread itself met a
    // fault, and then it has the address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let hit = if code > 0 { mapped_ranges::hit(address) } else { None };
    if !hit.is_some_and(|hit| replace_lost(&hit, address)) {
        let is_fault = code > 0;
        pass_on(is_fault, signal, info, context);
    }
}

/// Puts zeros in the place of the page: and of all pages behind the file's end, if that is where it lies.
fn replace_lost(hit: &Hit, address: usize) -> bool {
    let page = page_start((address - hit.start) as u64);
    // SAFETY: the mapping that the thread is reading keeps its file open.
    let file = unsafe { BorrowedFd::borrow_raw(hit.file) };
    let present = rustix::fs::fstat(file).map_or(u64::MAX, |stat| stat.st_size as u64);
    let (first, end) = (page_end(present), hit.len as u64);
    if present < end {
        hit.range.note_cut(present);
    } else {
        hit.range.note_lost(page);
    }
    if first <= page && zero_pages(hit, first, end) {
        return true;
    }
    // Each lost page may take a mapping, whose number the kernel limits. If there are too many, the rest is lost too.
    zero_pages(hit, page, (page + PAGE_BYTES).min(end)) || zero_pages(hit, page, end)
}

fn zero_pages(hit: &Hit, from: u64, end: u64) -> bool {
    let place = (hit.start + from as usize) as *mut c_void;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the pages belong to a mapping of this module, which the thread that faulted keeps alive. Readers of them
    // see zeros instead of bytes that the file no longer has.
    unsafe { rustix::mm::mmap_anonymous(place, (end - from) as usize, protection, flags) }.is_ok()
}

/// Lets the handler that was there before have a signal that is not about a mapped file.
fn pass_on(is_fault: bool, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.load(Ordering::SeqCst);
    // SAFETY: `PREVIOUS` holds what the kernel named as the action before ours, and is never freed. Its handler has the
    // signature that its flags say.
    unsafe {
        let handler = if previous.is_null() { libc::SIG_DFL } else { (*previous).sa_sigaction };
        if handler == libc::SIG_IGN && !is_fault {
            return;
        }
        // Python's faulthandler sends the signal again, which may come back to this place.
        let is_new = is_fault || !IS_PASSED_ON.swap(true, Ordering::SeqCst);
        if is_new && handler != libc::SIG_DFL && handler != libc::SIG_IGN {
            if (*previous).sa_flags & libc::SA_SIGINFO != 0 {
                let call: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                call(signal, info, context);
            } else {
                let call: extern "C" fn(c_int) = std::mem::transmute(handler);
                call(signal);
            }
            return;
        }
        // The process ends by the signal as soon as this handler returns.
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// A file of fixed length that one owner reads and rewrites in place.
pub(crate) struct MappedTable {
    file: DiskFile,
    map: MmapMut,
    range: &'static MappedRange,
    allocated_end: u64,
}

impl MappedTable {
    /// Maps `len` bytes; nothing may be written before it is allocated.
    pub(crate) fn open(disk: &dyn Disk, path: &Path, len: u64) -> Result<Self, StoreError> {
        let fail = |source| StoreError::io(path, source);
        let file = disk.create(path).map_err(fail)?;
        if disk.len(&file).map_err(fail)? < len {
            disk.set_len(&file, len).map_err(fail)?;
        }
        watch_for_lost_pages().map_err(fail)?;
        // SAFETY: the store's lock file keeps other processes away from the file, and this is its only mapping.
        let map = unsafe { MmapOptions::new().len(len as usize).map_mut(&file.file) }.map_err(fail)?;
        let range = mapped_ranges::note(map.as_ptr() as usize, map.len(), file.file.as_raw_fd());
        Ok(Self { file, map, range, allocated_end: 0 })
    }

    /// Fails if the file is shorter than its mapping, or pages of it could not be read.
    pub(crate) fn check_whole(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        check_whole(disk, &self.file, self.map.len() as u64, self.range)
    }

    /// Whether the file lost a page since it was opened.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.range.lost_from().is_some()
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn allocate(&mut self, disk: &dyn Disk, end: u64) -> Result<(), StoreError> {
        let end = page_end(end).min(self.map.len() as u64);
        let from = self.allocated_end;
        if from < end {
            let page = page_start(from);
            self.check_whole(disk)?;
            take(disk, &self.file, from, end, || {
                self.map.advise_range(Advice::PopulateWrite, page as usize, (end - page) as usize)
            })?;
            self.allocated_end = end;
        }
        Ok(())
    }

    pub(crate) fn allocated_end(&self) -> u64 {
        self.allocated_end
    }

    pub(crate) fn sync(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        disk.sync_data(&self.file).map_err(|source| StoreError::io(self.path(), source))?;
        self.check_whole(disk)
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.map.get(at as usize..)?.get(..len)
    }

    pub(crate) fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.map.get(at as usize..)?.first_chunk().copied()
    }

    /// Writes nothing and returns false outside the allocated part.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let end = at.saturating_add(data.len() as u64);
        if end > self.allocated_end {
            return false;
        }
        match self.map.get_mut(at as usize..end as usize) {
            Some(place) => {
                place.copy_from_slice(data);
                true
            }
            None => false,
        }
    }
}

impl Drop for MappedTable {
    fn drop(&mut self) {
        mapped_ranges::release(self.range);
    }
}

#[cfg(test)]
mod tests;
