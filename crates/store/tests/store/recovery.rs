//! Recovery at the start, after clean stops, kills, power losses and damage.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use metaq_store::faulty_disk::FaultyDisk;
use metaq_store::{Appended, Clock, GetStatus, Store, StoreSettings, SystemDisk};
use proptest::prelude::*;

use crate::support::*;

/// Fills a store with numbered records and stops it without closing.
fn killed(settings: &StoreSettings, count: usize) -> Vec<Appended> {
    let store = open(settings);
    (0..count).map(|number| send(&store, "t", 0, numbered(number).as_bytes())).collect()
}

/// Deletes the consume queues, which may not have been written yet.
fn lose_queues(directory: &Path) {
    let _ = fs::remove_dir_all(directory.join("consumequeue"));
}

fn numbered(number: usize) -> String {
    format!("{number:0>100}")
}

fn numbers(store: &Store) -> Vec<usize> {
    let text = |body: Vec<u8>| String::from_utf8(body).unwrap().parse().unwrap();
    bodies(store, "t", 0).into_iter().map(text).collect()
}

fn reports(store: &Store) -> String {
    store.take_reports().join("\n")
}

#[test]
fn a_damaged_record_in_the_middle_is_reported_and_what_follows_is_kept() {
    // The flipped byte hits each part of a record in turn.
    for (part, position) in
        [("size", 2), ("magic", 5), ("physical offset", 33), ("body", 95), ("body length", 86)]
    {
        for keep_queues in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let settings = small(directory.path());
            let sent = killed(&settings, 100);
            let (path, at) = locate(&settings, sent[50].physical_offset);
            flip(&path, at + position, 0x40);
            if !keep_queues {
                lose_queues(directory.path());
            }
            let store = open(&settings);
            let expected: Vec<usize> = (0..100).filter(|number| *number != 50).collect();
            assert_eq!(numbers(&store), expected, "{part}, queues kept: {keep_queues}");
            assert_eq!(store.max_offset("t", 0), 100);
            assert!(figure(&store, "damaged_records") > 0, "{part}");
            assert!(!reports(&store).is_empty(), "{part}");
            assert!(store.record_at(sent[50].physical_offset).is_none(), "{part}");
            assert_eq!(send(&store, "t", 0, b"100").queue_offset, 100);
            store.close().unwrap();
            drop(store);
            assert_eq!(numbers(&open(&settings)).len(), 100);
        }
    }
}

#[test]
fn a_queue_whose_first_files_are_lost_is_rebuilt_from_its_start() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let checkpoint = fs::read(directory.path().join("checkpoint")).unwrap();
    for number in 0..100 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    let queue = directory.path().join("consumequeue/t/0");
    let names = || fs::read_dir(&queue).into_iter().flatten().map(|entry| entry.unwrap().path());
    eventually("the queue's files", || names().count() == 7);
    drop(store);
    // A power loss may leave only the last file, and a checkpoint that is older than all of them.
    let last = names().max().unwrap();
    names().filter(|path| *path != last).for_each(|path| fs::remove_file(path).unwrap());
    fs::write(directory.path().join("checkpoint"), checkpoint).unwrap();
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..100).collect::<Vec<_>>());
    assert_eq!(figure(&store, "damaged_records"), 0);
}

#[test]
fn a_wiped_stretch_costs_only_itself() {
    for keep_queues in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let sent = killed(&settings, 100);
        let (path, from) = locate(&settings, sent[20].physical_offset);
        let mut bytes = fs::read(&path).unwrap();
        let end = from + (sent[22].physical_offset - sent[20].physical_offset) as u64 + 80;
        bytes[from as usize + 10..end as usize].fill(0);
        fs::write(&path, bytes).unwrap();
        if !keep_queues {
            lose_queues(directory.path());
        }
        let store = open(&settings);
        let expected: Vec<usize> = (0..100).filter(|number| !(20..23).contains(number)).collect();
        assert_eq!(numbers(&store), expected);
        assert_eq!(store.max_offset("t", 0), 100);
    }
}

#[test]
fn a_torn_last_record_is_cut_and_its_place_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let sent = killed(&settings, 10);
    let last = sent[9];
    let (path, at) = locate(&settings, last.physical_offset);
    let size = (last.end_offset - last.physical_offset) as usize;
    for kept in [4, 7, 20, 60, 120, size - 1] {
        let copy = tempfile::tempdir().unwrap();
        copy_store(directory.path(), copy.path());
        let settings = small(copy.path());
        let path = settings.directory.join("commitlog").join(path.file_name().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize + kept..].fill(0);
        fs::write(&path, bytes).unwrap();
        let store = open(&settings);
        assert_eq!(numbers(&store), (0..9).collect::<Vec<_>>(), "{kept} bytes kept");
        assert!(reports(&store).contains("torn tail"), "{kept} bytes kept");
        let next = send(&store, "t", 0, b"9");
        assert_eq!((next.physical_offset, next.queue_offset), (last.physical_offset, 9));
        drop(store);
        assert_eq!(numbers(&open(&settings)), (0..10).collect::<Vec<_>>(), "{kept} bytes kept");
    }
}

#[test]
fn a_body_that_looks_like_a_record_is_never_taken_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let first = send(&store, "t", 0, b"0");
    // A forged record for another topic, with the physical offset that it will have inside the body.
    let place = first.end_offset + 88;
    let forged = record("secret", 0, b"forged", "");
    let mut body = forged.encode(0, place, 1).unwrap();
    body.extend([b'x'; 400]);
    let outer = send(&store, "t", 0, &body);
    assert_eq!(outer.physical_offset, first.end_offset);
    drop(store);
    // The outer record is cut after the forged one.
    let (path, at) = locate(&settings, outer.physical_offset);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at as usize + 88 + forged.size() + 50..].fill(0);
    fs::write(&path, bytes).unwrap();
    let store = open(&settings);
    assert_eq!(store.max_offset("secret", 0), 0);
    assert_eq!(bodies(&store, "t", 0), [b"0".to_vec()]);
}

#[test]
fn recovery_reads_a_bounded_part_of_the_log() {
    let mut scanned = Vec::new();
    for count in [200, 2_000] {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let store = open(&settings);
        for number in 0..count {
            send(&store, "t", 0, numbered(number).as_bytes());
        }
        // The store writes a checkpoint by itself. Ten more records follow before the kill.
        let end = figure(&store, "commit_log_max_offset");
        let bound = |directory: &Path| {
            i64::from_be_bytes(fs::read(directory.join("checkpoint")).unwrap()[56..64].try_into().unwrap())
        };
        eventually("a checkpoint", || bound(directory.path()) == end);
        let copy = tempfile::tempdir().unwrap();
        copy_store(directory.path(), copy.path());
        drop(store);
        let store = open(&small(copy.path()));
        assert_eq!(store.max_offset("t", 0), count as i64);
        scanned.push(figure(&store, "recovered_bytes"));
        assert_eq!(figure(&store, "recovered_from_offset"), end);
    }
    assert_eq!(scanned, [0, 0], "no record follows the checkpoint, so none is read");
}

#[test]
fn what_is_behind_the_checkpoint_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    // Housekeeping does not run, so the checkpoint of the clean stop stays the last one.
    let settings = StoreSettings { queue_flush_interval_ms: 3_600_000, ..small(directory.path()) };
    let store = open(&settings);
    for number in 0..300 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    store.close().unwrap();
    drop(store);
    let store = open(&settings);
    assert_eq!(figure(&store, "recovered_bytes"), 0);
    let from = figure(&store, "commit_log_max_offset");
    for number in 300..350 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    let end = figure(&store, "commit_log_max_offset");
    drop(store);
    let store = open(&settings);
    assert_eq!(figure(&store, "recovered_from_offset"), from);
    assert_eq!(figure(&store, "recovered_bytes"), end - from);
    assert_eq!(numbers(&store), (0..350).collect::<Vec<_>>());
}

#[test]
fn one_missing_queue_is_noticed_and_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    for number in 0..50 {
        send(&store, "t", 0, numbered(number).as_bytes());
        send(&store, "u", number as i32 % 4, b"u");
    }
    store.close().unwrap();
    drop(store);
    fs::remove_dir_all(directory.path().join("consumequeue/u/2")).unwrap();
    let store = open(&settings);
    assert_eq!(numbers(&store).len(), 50);
    assert_eq!(bodies(&store, "u", 2).len(), 12);
    assert_eq!(bodies(&store, "u", 3).len(), 12);
}

#[test]
fn a_queue_whose_only_file_is_missing_after_a_kill_is_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    for number in 0..20 {
        send(&store, "t", 0, numbered(number).as_bytes());
        send(&store, "u", number as i32 % 4, b"u");
    }
    store.close().unwrap();
    drop(store);
    // As after a kill: nobody says that the files are complete.
    fs::write(directory.path().join("abort"), b"").unwrap();
    for file in fs::read_dir(directory.path().join("consumequeue/u/2")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let store = open(&settings);
    assert_eq!(numbers(&store).len(), 20);
    assert_eq!(bodies(&store, "u", 2).len(), 5);
    assert_eq!(bodies(&store, "u", 3).len(), 5);
}

#[test]
fn a_bound_that_another_store_may_have_overtaken_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    for number in 0..100 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    store.close().unwrap();
    drop(store);
    // Apache's store would leave this: other store times, our fields untouched, and queues that lag behind.
    let checkpoint = directory.path().join("checkpoint");
    flip(&checkpoint, 7, 1);
    for name in fs::read_dir(directory.path().join("consumequeue/t/0")).unwrap().skip(3) {
        fs::remove_file(name.unwrap().path()).unwrap();
    }
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..100).collect::<Vec<_>>());
    store.close().unwrap();
    drop(store);
    // Without any checkpoint at all.
    fs::remove_file(checkpoint).unwrap();
    assert_eq!(numbers(&open(&settings)), (0..100).collect::<Vec<_>>());
}

#[test]
fn an_old_bound_does_not_outlive_a_cut() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { queue_flush_interval_ms: 3_600_000, ..small(directory.path()) };
    let store = open(&settings);
    let sent: Vec<Appended> =
        (0..20).map(|number| send(&store, "t", 0, numbered(number).as_bytes())).collect();
    store.close().unwrap();
    drop(store);
    // The log loses its second half, records of the same size replace it, and then the process is killed.
    let (path, at) = locate(&settings, sent[10].physical_offset);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at as usize..].fill(0);
    fs::write(&path, bytes).unwrap();
    let store = open(&settings);
    for number in 100..120 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    drop(store);
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..10).chain(100..120).collect::<Vec<_>>());
}

#[test]
fn entries_past_the_end_of_the_log_are_dropped_and_offsets_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let sent: Vec<Appended> =
        (0..60).map(|number| send(&store, "t", 0, numbered(number).as_bytes())).collect();
    send(&store, "lost", 3, b"x");
    store.close().unwrap();
    drop(store);
    let (path, at) = locate(&settings, sent[40].physical_offset);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at as usize..].fill(0);
    fs::write(&path, bytes).unwrap();
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..40).collect::<Vec<_>>());
    assert_eq!(store.max_offset("lost", 3), 0);
    assert_eq!(send(&store, "lost", 3, b"y").queue_offset, 0);
    assert_eq!(send(&store, "t", 0, b"40").queue_offset, 40);
}

#[test]
fn queue_offsets_survive_when_all_records_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let clock = Clock::manual(1_000_000);
    let open = || Store::open(settings.clone(), clock.clone(), Arc::new(SystemDisk)).unwrap();
    let store = open();
    for _ in 0..40 {
        send(&store, "idle", 0, b"x");
    }
    for _ in 0..200 {
        send(&store, "busy", 0, &[b'x'; 500]);
    }
    clock.advance_ms(100 * 3_600_000);
    send(&store, "busy", 0, b"young");
    assert!(store.clean(true).unwrap() > 0);
    assert_eq!((store.min_offset("idle", 0), store.max_offset("idle", 0)), (40, 40));
    let busy = (store.min_offset("busy", 0), store.max_offset("busy", 0));
    assert!(busy.0 > 0);
    drop(store);
    let store = open();
    assert_eq!((store.min_offset("idle", 0), store.max_offset("idle", 0)), (40, 40));
    assert_eq!((store.min_offset("busy", 0), store.max_offset("busy", 0)), busy);
    assert_eq!(send(&store, "idle", 0, b"y").queue_offset, 40);
    assert_eq!(read_all(&store, "idle", 0), [(40, b"y".to_vec())]);
    drop(store);
    // A full rebuild takes the offsets from the records.
    fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
    let store = open();
    assert_eq!((store.min_offset("busy", 0), store.max_offset("busy", 0)), busy);
    assert_eq!(read_all(&store, "idle", 0), [(40, b"y".to_vec())]);
    assert_eq!(store.get("idle", 0, 0, 1, 1, &metaq_store::Filter::All).status, GetStatus::BeforeStart);
    store.close().unwrap();
}

#[test]
fn after_a_restart_of_the_machine_an_unsynced_index_is_built_again() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let disk = Arc::new(FaultyDisk::new());
    let store = Store::open(settings.clone(), Clock::system(), disk.clone()).unwrap();
    for number in 0..30 {
        store.append(&record("t", 0, b"x", &format!("KEYS\u{1}k{number}\u{2}"))).unwrap();
    }
    store.dispatch();
    let end = figure(&store, "commit_log_max_offset");
    eventually("the index", || figure(&store, "indexed_offset") == end);
    drop(store);
    // A power loss may do this to pages that were never synced.
    for file in fs::read_dir(directory.path().join("index")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[40..].fill(0);
        fs::write(path, bytes).unwrap();
    }
    disk.set_boot_id([9; 16]);
    let store = Store::open(settings, Clock::system(), disk).unwrap();
    eventually("the index", || store.query("t", "k29", 1, 0, i64::MAX).records.len() == 1);
    assert!((0..30).all(|number| store.query("t", &format!("k{number}"), 1, 0, i64::MAX).records.len() == 1));
}

#[test]
fn damaged_queue_entries_are_put_right_from_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    for number in 0..100 {
        send(&store, "t", 0, numbered(number).as_bytes());
    }
    store.close().unwrap();
    drop(store);
    let file = |first: usize| directory.path().join(format!("consumequeue/t/0/{:020}", first * 20));
    // A flipped offset, a flipped size, a zeroed entry, and two files that were swapped.
    flip(&file(0), 3 * 20 + 6, 0x10);
    flip(&file(16), 2 * 20 + 10, 0x01);
    let mut bytes = fs::read(file(32)).unwrap();
    bytes[40..60].fill(0);
    fs::write(file(32), bytes).unwrap();
    let (one, other) = (fs::read(file(48)).unwrap(), fs::read(file(64)).unwrap());
    fs::write(file(48), other).unwrap();
    fs::write(file(64), one).unwrap();
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..100).collect::<Vec<_>>());
    assert_eq!(figure(&store, "damaged_records"), 0);
    assert_eq!(figure(&store, "repaired_entries"), 3 + 32);
    store.close().unwrap();
    drop(store);
    let store = open(&settings);
    assert_eq!(numbers(&store), (0..100).collect::<Vec<_>>());
    assert_eq!(figure(&store, "repaired_entries"), 0, "they were written back");
}

#[test]
fn a_file_of_the_log_that_is_missing_costs_its_records_only() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let sent = killed(&settings, 300);
    let (path, _) = locate(&settings, settings.commit_log_file_bytes as i64);
    fs::remove_file(path).unwrap();
    for keep_queues in [true, false] {
        if !keep_queues {
            lose_queues(directory.path());
        }
        let store = open(&settings);
        let file_bytes = settings.commit_log_file_bytes as i64;
        let expected: Vec<usize> =
            (0..300).filter(|number| sent[*number].physical_offset / file_bytes != 1).collect();
        assert_eq!(numbers(&store), expected);
        assert_eq!(store.max_offset("t", 0), 300);
    }
}

#[test]
fn sizes_may_change_between_runs() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    for (run, (log_bytes, queue_entries)) in [(16_384, 16), (4_096, 100), (50_000, 3)].into_iter().enumerate()
    {
        let settings = StoreSettings {
            commit_log_file_bytes: log_bytes,
            consume_queue_file_entries: queue_entries,
            ..settings.clone()
        };
        let store = open(&settings);
        assert_eq!(numbers(&store), (0..run * 120).collect::<Vec<_>>());
        for number in 0..120 {
            send(&store, "t", 0, numbered(run * 120 + number).as_bytes());
        }
        if run == 1 {
            store.close().unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any content of the directory gives an error or a working store, never a panic or a wrong record.
    #[test]
    fn garbage_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..3_000),
        victims in prop::collection::vec((0..1_000_usize, 0..3_u8, 0..3_000_usize), 1..6),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let sent = killed(&settings, 60);
        let mut files = Vec::new();
        collect(directory.path(), &mut files);
        for (which, what, at) in victims {
            let path = &files[which % files.len()];
            let mut bytes = fs::read(path).unwrap();
            match what {
                0 => bytes = noise.clone(),
                1 => bytes.truncate(at),
                _ => {
                    let at = at % bytes.len().max(1);
                    let len = noise.len().min(bytes.len().saturating_sub(at));
                    bytes[at..at + len].copy_from_slice(&noise[..len]);
                }
            }
            fs::write(path, bytes).unwrap();
        }
        fs::write(directory.path().join("commitlog/notes.txt"), &noise).unwrap();
        fs::write(directory.path().join("commitlog/99999999999999999999"), &noise).unwrap();
        fs::create_dir_all(directory.path().join("consumequeue/t/7")).unwrap();
        fs::write(directory.path().join("consumequeue/t/7/00000000000000000020"), &noise).unwrap();
        fs::write(directory.path().join("index/20260101000000000"), &noise).unwrap();
        if let Ok(store) = Store::open(settings, Clock::system(), Arc::new(SystemDisk)) {
            for (queue_offset, body) in lenient_read(&store) {
                let number: usize = String::from_utf8_lossy(&body).parse().unwrap();
                prop_assert!(number < sent.len(), "offset {queue_offset}");
            }
            let _ = store.query("t", "k", 10, 0, i64::MAX);
            let _ = store.search_offset("t", 7, 5, true);
            let _ = store.close();
        }
    }
}

fn collect(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

fn lenient_read(store: &Store) -> Vec<(i64, Vec<u8>)> {
    let min_offset = store.min_offset("t", 0);
    if store.max_offset("t", 0) - min_offset > 100_000 { Vec::new() } else { read_all(store, "t", 0) }
}

#[test]
fn a_deleted_topic_stays_so_whatever_checkpoint_is_saved_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    // Checkpoints are written as often as possible, every thirtieth even if nothing is new.
    let settings = StoreSettings { queue_flush_interval_ms: 1, ..small(&directory.path().join("store")) };
    let store = open(&settings);
    for round in 0..40 {
        for queue_id in 0..4 {
            send(&store, "gone", queue_id, b"x");
        }
        store.delete_topic("gone").unwrap();
        let copy = directory.path().join(format!("copy-{round}"));
        copy_store(&settings.directory, &copy);
        let killed = open(&StoreSettings { directory: copy.clone(), ..settings.clone() });
        assert_eq!(killed.queue_ids("gone"), Vec::<i32>::new(), "round {round}");
        drop(killed);
        std::fs::remove_dir_all(copy).unwrap();
    }
}
