//! Nanoseconds per append and dispatch, on one thread and on four, and per record of a batch: wall-clock time, and
//! processor time of the whole process (the store's own threads included), which a busy machine disturbs less.
//!
//! `cargo run --release -p metaq-store --example append_bench [seconds] [topics]`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metaq_store::{Clock, Store, StoreSettings, SystemDisk};
use metaq_wire::{NewRecord, body_crc};

const BODY_BYTES: usize = 128;
const QUEUES: u64 = 8;
const BATCH: usize = 32;
const PROPERTIES: &[u8] = b"UNIQ_KEY\x017F00000100002A139C5525E3E8A00000\x02WAIT\x01true\x02TAGS\x01TagA\x02";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let time = Duration::from_secs(arguments.next().map_or(Ok(2), |text| text.parse())?);
    let topic_count: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let topics: Vec<String> = (0..topic_count).map(|number| format!("BenchmarkTest{number}")).collect();
    let directory = std::env::temp_dir().join(format!("append_bench-{}", std::process::id()));
    let settings = StoreSettings { sync_flush: false, ..StoreSettings::new(&directory) };

    let store = Store::open(settings.clone(), Clock::system(), Arc::new(SystemDisk))?;
    for (name, threads, records) in
        [("1 thread", 1, 1), ("4 threads", 4, 1), ("1 thread, batches of 32", 1, BATCH)]
    {
        let busy_before = processor_time()?;
        let begin = Instant::now();
        let done = run(&store, &topics, threads, records, time)? as f64;
        let busy = (processor_time()? - busy_before).as_nanos() as f64 / done;
        let wall = begin.elapsed().as_nanos() as f64 / done;
        println!(
            "{name}: {wall:.0} ns per record, {busy:.0} ns of processor time, {:.0} a second",
            1e9 / wall
        );
    }
    for (name, value) in store.figures().named() {
        println!("{name:24} {value}");
    }
    drop(store);
    let begin = Instant::now();
    let store = Store::open(settings, Clock::system(), Arc::new(SystemDisk))?;
    println!("recovery as after a kill: {:?}, {:?}", begin.elapsed(), store.figures());
    let begin = Instant::now();
    store.close()?;
    println!("close: {:?}", begin.elapsed());
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Appends from several threads for a while; how many records that were.
fn run(
    store: &Store,
    topics: &[String],
    threads: usize,
    records: usize,
    time: Duration,
) -> Result<u64, Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (stop, done, failed) = (&stop, &done, &failed);
            scope.spawn(move || {
                let mut turn = thread * 1_000_003;
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let topic = &topics[(turn / QUEUES) as usize % topics.len()];
                    if let Err(error) = append(store, topic, (turn % QUEUES) as i32, records) {
                        eprintln!("{error}");
                        failed.store(true, Ordering::Relaxed);
                        break;
                    }
                    count += records as u64;
                    turn += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    if failed.load(Ordering::Relaxed) {
        Err("an append failed".into())
    } else {
        Ok(done.load(Ordering::Relaxed))
    }
}

fn append(store: &Store, topic: &str, queue_id: i32, records: usize) -> Result<(), Box<dyn Error>> {
    let body = [b'x'; BODY_BYTES];
    let host = ([127, 0, 0, 1], 10911).into();
    let record = NewRecord {
        topic: topic.as_bytes(),
        queue_id,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        body_crc: body_crc(&body),
        properties: [PROPERTIES, b"", b""],
    };
    if records == 1 {
        store.append(&record)?;
    } else {
        store.append_batch(&vec![record; records])?;
    }
    store.dispatch();
    Ok(())
}

/// Processor time of this process so far, in user and kernel mode.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields.get(11).ok_or("no user time")?.parse::<u64>()?
        + fields.get(12).ok_or("no kernel time")?.parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}
