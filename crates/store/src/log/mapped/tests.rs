use super::*;
use crate::disk::SystemDisk;

fn file(directory: &Path) -> Result<Arc<MappedFile>, StoreError> {
    Ok(Arc::new(MappedFile::open(&SystemDisk, &directory.join("file"), 0, 64 * 1024, 0)?))
}

#[test]
fn only_allocated_bytes_are_written_and_only_published_ones_read() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    let mut writer = file.writer().ok_or("no writer")?;
    assert!(file.writer().is_none(), "one writer at a time");
    assert!(!writer.fill(1, |_| panic!("nothing is allocated")));
    file.allocate(&SystemDisk, 8_192)?;
    assert!(!writer.fill(8_193, |_| panic!("not all of it is allocated")));
    assert!(writer.fill(5, |target| target.copy_from_slice(b"hello")));
    assert_eq!(file.slice(0, 5), None, "not yet published");
    writer.publish();
    assert_eq!(file.slice(0, 5), Some(&b"hello"[..]));
    assert_eq!(file.slice(1, 5), None);
    assert_eq!(file.slice(u64::MAX, 5), None);
    drop(writer);
    assert_eq!(file.writer().map(|writer| writer.position()), Some(5));
    Ok(())
}

#[test]
fn a_part_keeps_its_file_alive() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    file.allocate(&SystemDisk, 4_096)?;
    let mut writer = file.writer().ok_or("no writer")?;
    writer.fill(5, |target| target.copy_from_slice(b"hello"));
    writer.publish();
    let part = file.bytes(1, 3).ok_or("no part")?;
    std::fs::remove_file(file.path())?;
    drop((writer, file));
    assert_eq!(part, &b"ell"[..]);
    Ok(())
}

#[test]
fn a_table_is_written_where_it_is_allocated() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let mut table = MappedTable::open(&SystemDisk, &directory.path().join("table"), 16_384)?;
    assert!(!table.write(0, b"x"));
    table.allocate(&SystemDisk, 4_096)?;
    assert!(table.write(4_095, b"x"));
    assert!(!table.write(4_096, b"x"));
    assert!(!table.write(u64::MAX, b"x"));
    assert_eq!(table.read::<1>(4_095), Some(*b"x"));
    assert_eq!(table.read::<2>(16_383), None);
    Ok(())
}

#[test]
fn pages_that_a_file_lost_read_as_zeros_and_fail_the_next_sync() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    file.allocate(&SystemDisk, 64 * 1024)?;
    let mut writer = file.writer().ok_or("no writer")?;
    writer.fill(40_000, |target| target.fill(7));
    writer.publish();
    file.sync(&SystemDisk, 0, 40_000)?;
    assert_eq!(file.lost_from(), None);
    file.file().file.set_len(10_000)?;
    // Its page is still there as far as the file reached.
    assert_eq!(file.slice(9_999, 1), Some(&[7][..]));
    assert_eq!(file.slice(20_000, 20_000), Some(&[0; 20_000][..]));
    assert_eq!(file.lost_from(), Some(10_000));
    assert!(matches!(file.sync(&SystemDisk, 0, 40_000), Err(StoreError::LostPages { .. })));
    // The file got its length back, but not what was in it.
    file.file().file.set_len(64 * 1024)?;
    assert!(matches!(file.sync(&SystemDisk, 0, 40_000), Err(StoreError::LostPages { .. })));
    Ok(())
}

#[test]
fn bytes_written_to_lost_pages_are_never_synced() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    file.allocate(&SystemDisk, 64 * 1024)?;
    let mut writer = file.writer().ok_or("no writer")?;
    file.file().file.set_len(0)?;
    assert!(writer.fill(5_000, |target| target.fill(7)), "its blocks were allocated before");
    writer.publish();
    assert_eq!(file.lost_from(), Some(0));
    assert!(matches!(file.sync(&SystemDisk, 0, 5_000), Err(StoreError::LostPages { .. })));
    Ok(())
}

#[test]
fn a_cut_before_a_sync_is_found_although_nobody_touches_the_pages() -> Result<(), Box<dyn std::error::Error>>
{
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    file.allocate(&SystemDisk, 8_192)?;
    let mut writer = file.writer().ok_or("no writer")?;
    writer.fill(5_000, |target| target.fill(7));
    writer.publish();
    file.file().file.set_len(0)?;
    assert!(matches!(file.sync(&SystemDisk, 0, 5_000), Err(StoreError::LostPages { .. })));
    assert!(matches!(file.allocate(&SystemDisk, 16_384), Err(StoreError::LostPages { .. })), "no full disk");
    Ok(())
}

#[test]
fn a_table_that_was_cut_reads_as_zeros() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let mut table = MappedTable::open(&SystemDisk, &directory.path().join("table"), 16_384)?;
    table.allocate(&SystemDisk, 16_384)?;
    table.write(8_192, b"x");
    assert!(!table.has_lost_pages());
    table.file.file.set_len(100)?;
    assert_eq!(table.read::<1>(8_192), Some([0]));
    assert!(table.has_lost_pages() && table.write(8_192, b"y"));
    assert!(matches!(table.sync(&SystemDisk), Err(StoreError::LostPages { .. })));
    Ok(())
}

#[test]
fn many_threads_lose_the_same_pages() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let file = file(directory.path())?;
    file.allocate(&SystemDisk, 64 * 1024)?;
    file.writer().ok_or("no writer")?.finish();
    for _ in 0..50 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(file.slice(0, 65_536), Some(&[0; 65_536][..])));
            }
            let _ = file.file().file.set_len(0);
        });
    }
    Ok(())
}
