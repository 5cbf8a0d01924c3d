//! Nanoseconds per operation of the codec's hot path:
//! `cargo run --release -p metaq-wire --example bench`
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant;

use metaq_wire::{
    Encoding, FrameEncoder, Header, NewRecord, Record, SendHeader, WireError, body_crc, next_frame,
    properties,
};

const ROUNDS: u32 = 7;
const REPEATS: u32 = 200_000;

/// The fields of a send request as a Java producer writes them.
const SEND_FIELDS: [(&str, &str); 13] = [
    ("a", "order_events_producer"),
    ("b", "order-events"),
    ("c", "TBW102"),
    ("d", "4"),
    ("e", "3"),
    ("f", "0"),
    ("g", "1760000000123"),
    ("h", "0"),
    (
        "i",
        "KEYS\u{1}order-2025-0000123456\u{2}UNIQ_KEY\u{1}7F0000010A8C18B4AAC2549AE3F10000\u{2}\
         WAIT\u{1}true\u{2}TAGS\u{1}created\u{2}region\u{1}eu-central-1\u{2}",
    ),
    ("j", "0"),
    ("k", "false"),
    ("m", "false"),
    ("n", "broker-a"),
];

fn send_frame(encoding: Encoding) -> Result<Vec<u8>, WireError> {
    let mut frame = Vec::new();
    let mut encoder = FrameEncoder::request(&mut frame, encoding, 310, 12_345, 0);
    for (name, value) in SEND_FIELDS {
        encoder.field(name, value);
    }
    encoder.finish(0)?;
    Ok(frame)
}

/// The best of several rounds: disturbances only make a round slower.
fn measure(label: &str, mut operation: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..REPEATS {
            operation();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{label:<46} {:8.1} ns", best * 1e9 / f64::from(REPEATS));
}

fn main() -> Result<(), WireError> {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let bytes = send_frame(encoding)?;
        let Some(frame) = next_frame(&bytes, bytes.len())? else { return Ok(()) };
        let size = frame.header.len();
        measure(&format!("{encoding:?} header parse, {size} bytes"), || {
            black_box(Header::parse(encoding, black_box(frame.header)).is_ok());
        });
        measure(&format!("{encoding:?} send header parse + scan"), || {
            let header = Header::parse(encoding, black_box(frame.header));
            black_box(header.and_then(|header| SendHeader::scan(&header)).is_ok());
        });
        let mut out = Vec::with_capacity(4096);
        measure(&format!("{encoding:?} send response encode"), || {
            out.clear();
            let mut encoder = FrameEncoder::response(&mut out, encoding, 0, black_box(12_345));
            encoder.field("msgId", "7F00000100002A9F0000000000A1B2C3").field_i64("queueId", 3);
            encoder.field_i64("queueOffset", black_box(123_456_789));
            encoder.field("MSG_REGION", "DefaultRegion").field("TRACE_ON", "true");
            black_box(encoder.finish(0).is_ok());
        });
    }

    let host = SocketAddr::from(([10, 0, 0, 1], 10_911));
    let body = [b'x'; 1024];
    let record = NewRecord {
        topic: b"order-events",
        queue_id: 3,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 1_760_000_000_123,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        body_crc: body_crc(&body),
        properties: [SEND_FIELDS[8].1.as_bytes(), b"", b"CLUSTER\x01DefaultCluster\x02"],
    };
    let mut place = Vec::new();
    for with_checksum in [false, true] {
        let laid_out = record.laid_out(with_checksum)?;
        place.resize(laid_out.size, 0);
        measure(&format!("record write, {} bytes, body 1024, checksum {with_checksum}", place.len()), || {
            black_box(&laid_out).write(black_box(&mut place), 42, 4242, 1_760_000_000_124);
        });
    }
    measure("record decode", || {
        black_box(Record::decode(black_box(&place)).is_ok());
    });
    measure("body crc, 1024 bytes", || {
        black_box(body_crc(black_box(&body)));
    });
    let stored = SEND_FIELDS[8].1.as_bytes();
    measure("find one property", || {
        black_box(properties::find(black_box(stored), "TAGS"));
    });
    measure("find five properties in one pass", || {
        black_box(properties::find_many(
            black_box(stored),
            ["TAGS", "WAIT", "DELAY", "UNIQ_KEY", "TRAN_MSG"],
        ));
    });
    Ok(())
}
