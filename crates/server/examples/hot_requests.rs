//! Runs many sends and pulls through one connection in this process, for callgrind to count what each of them costs.
//!
//! `cargo build --release -p metaq-server --example hot_requests`, then
//! `valgrind --tool=callgrind --callgrind-out-file=out target/release/examples/hot_requests send 20000` and
//! `callgrind_annotate --inclusive=yes out`. The difference between two counts, divided by the difference between the
//! numbers of requests, leaves out what starting and stopping cost. Modes: `send` and `send-sync` (which waits for the
//! disk), `batch`, `pull` (one message each), `pull-many` (32 each), `offsets`. With `--features allocator` it uses the
//! allocator of the built module instead of the system's.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(feature = "allocator")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use support::request_code::{PULL_MESSAGE, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2, UPDATE_CONSUMER_OFFSET};
use support::{Client, Fields, GROUP, Plane, batch, but, properties, pull_fields, queue_fields, send_fields};

/// Requests that are written at once and answered at once, as a busy client's are.
const REQUESTS_PER_WRITE: usize = 32;
const BODY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\
                    0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "send".to_owned());
    let count: usize = arguments.next().map_or(20_000, |text| text.parse().unwrap());
    let plane = Plane::with(|setup| {
        setup.store.commit_log_file_bytes = 1 << 26;
        setup.store.consume_queue_file_entries = 1 << 20;
        setup.store.allocation_step_bytes = 1 << 24;
        setup.store.sync_flush = mode == "send-sync";
        // Its own threads must not be what is measured.
        setup.store.flush_interval_ms = 600_000;
        setup.store.queue_flush_interval_ms = 600_000;
    });
    let mut client = plane.connect();
    let key = "7F00000100002A139C5525E3E8A00000";
    let marks = properties(&[("UNIQ_KEY", key), ("WAIT", "true"), ("TAGS", "TagA")]);
    match mode.as_str() {
        "send" | "send-sync" => {
            run(&mut client, SEND_MESSAGE_V2, &send_fields(&marks), BODY.as_bytes(), count)
        }
        "batch" => {
            let body = batch(&[(BODY, marks.as_str()); 32]);
            run(&mut client, SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body, count);
        }
        "pull" | "pull-many" => {
            for _ in 0..64 {
                client.put(BODY);
            }
            let count_max = if mode == "pull" { "1" } else { "32" };
            run(&mut client, PULL_MESSAGE, &but(pull_fields(3), &[("maxMsgNums", count_max)]), b"", count);
        }
        "offsets" => {
            for _ in 0..8 {
                client.put(BODY);
            }
            let fields = but(queue_fields(), &[("consumerGroup", GROUP), ("commitOffset", "5")]);
            run(&mut client, UPDATE_CONSUMER_OFFSET, &fields, b"", count);
        }
        other => panic!("no mode {other}"),
    }
    println!("{mode}: {count} requests, {} frames handled", plane.counts().requests);
}

/// Sends the same request many times and reads all the answers, which must be successes.
fn run(client: &mut Client, code: i32, fields: &Fields<'_>, body: &[u8], count: usize) {
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS_PER_WRITE {
        client.frame(&mut bytes, code, 0, fields, body);
    }
    for _ in 0..count / REQUESTS_PER_WRITE {
        client.write(&bytes);
        client.skip_answers(REQUESTS_PER_WRITE);
    }
}
