//! Nanoseconds per append and dispatch, on one thread and on four, and per record of a batch.
//!
//! `cargo run --release -p metaq-store --example append_bench [seconds] [directory]`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metaq_store::{Clock, Store, StoreSettings, SystemDisk};
use metaq_wire::{NewRecord, body_crc};

const BODY_BYTES: usize = 128;
const QUEUES: i32 = 8;
const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let directory = arguments.next().unwrap_or_else(|| {
        std::env::temp_dir()
            .join(format!("append_bench-{}", std::process::id()))
            .to_string_lossy()
            .into_owned()
    });
    let store = Store::open(
        StoreSettings { sync_flush: false, ..StoreSettings::new(&directory) },
        Clock::system(),
        Arc::new(SystemDisk),
    )?;
    for threads in [1, 4] {
        let rate = run(&store, threads, Duration::from_secs(seconds), one)?;
        println!("{threads} threads: {:.0} ns per append and dispatch, {rate:.0} a second", 1e9 / rate);
    }
    let rate = run(&store, 1, Duration::from_secs(seconds), batch)?;
    println!("1 thread, batches of {BATCH}: {:.0} ns per record, {rate:.0} a second", 1e9 / rate);
    for (name, value) in store.figures() {
        println!("{name:24} {value}");
    }
    store.close()?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

type Work = fn(&Store, u64) -> Result<u64, Box<dyn Error>>;

fn run(store: &Store, threads: usize, time: Duration, work: Work) -> Result<f64, Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (stop, done, failed) = (&stop, &done, &failed);
            scope.spawn(move || {
                let mut count = 0;
                let mut turn = thread;
                while !stop.load(Ordering::Relaxed) {
                    match work(store, turn) {
                        Ok(records) => count += records,
                        Err(error) => {
                            eprintln!("{error}");
                            failed.store(true, Ordering::Relaxed);
                            break;
                        }
                    }
                    turn += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    if failed.load(Ordering::Relaxed) {
        return Err("an append failed".into());
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

fn record<'a>(queue_id: i32, body: &'a [u8], properties: &'a [u8]) -> NewRecord<'a> {
    let host = ([127, 0, 0, 1], 10911).into();
    NewRecord {
        topic: b"BenchmarkTest",
        queue_id,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        body_crc: body_crc(body),
        properties: [properties, b"", b""],
    }
}

const PROPERTIES: &[u8] = b"UNIQ_KEY\x017F00000100002A139C5525E3E8A00000\x02WAIT\x01true\x02TAGS\x01TagA\x02";

fn one(store: &Store, turn: u64) -> Result<u64, Box<dyn Error>> {
    let body = [b'x'; BODY_BYTES];
    store.append(&record((turn % QUEUES as u64) as i32, &body, PROPERTIES))?;
    store.dispatch();
    Ok(1)
}

fn batch(store: &Store, turn: u64) -> Result<u64, Box<dyn Error>> {
    let body = [b'x'; BODY_BYTES];
    let records = vec![record((turn % QUEUES as u64) as i32, &body, PROPERTIES); BATCH];
    store.append_batch(&records)?;
    store.dispatch();
    Ok(BATCH as u64)
}
