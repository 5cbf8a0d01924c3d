//! Records as a broker stores them, and a broker that serves one queue of them, for the tests of this room.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, Header, NewRecord, body_crc, next_frame};

pub(crate) struct TestRecord<'a> {
    pub queue_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub system_flag: i32,
    pub born_timestamp_ms: i64,
}

impl TestRecord<'static> {
    pub(crate) fn at(queue_offset: i64) -> Self {
        TestRecord { queue_offset, body: b"body", properties: b"", system_flag: 0, born_timestamp_ms: 1 }
    }
}

impl TestRecord<'_> {
    /// The physical offset is 1000 more than the queue offset.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let host = SocketAddr::from(([127, 0, 0, 1], 10_911));
        let new = NewRecord {
            topic: b"orders",
            queue_id: 1,
            flag: 0,
            system_flag: self.system_flag,
            born_timestamp_ms: self.born_timestamp_ms,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body_crc: body_crc(self.body),
            body: self.body,
            properties: [self.properties, b"", b""],
        };
        let laid_out = new.laid_out(true).unwrap();
        let mut bytes = vec![0; laid_out.size];
        laid_out.write(&mut bytes, self.queue_offset, 1000 + self.queue_offset, 2);
        bytes
    }
}

/// A queue with the messages `first..end`. Its broker returns at most `count_max` messages at once, and looks at
/// `scan` messages at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestQueue {
    pub first: i64,
    pub end: i64,
    pub count_max: i64,
    pub scan: i64,
    /// The filter accepts the offsets that this number divides.
    pub every: i64,
}

impl TestQueue {
    fn answer(&self, from: i64, count: i64) -> (i32, i64, Vec<u8>) {
        if from < self.first || from > self.end {
            return (21, self.first.max(from.min(self.end)), Vec::new());
        }
        if from == self.end {
            return (19, from, Vec::new());
        }
        let scan_end = (from + count.max(self.scan)).min(self.end);
        let (mut next, mut found, mut body) = (from, 0, Vec::new());
        while next < scan_end && found < count.min(self.count_max) {
            if next % self.every == 0 {
                body.extend(TestRecord::at(next).encode());
                found += 1;
            }
            next += 1;
        }
        (if found == 0 { 20 } else { 0 }, next, body)
    }

    /// Answers the pulls of one connection until it is closed; returns the address to connect to.
    pub(crate) fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
            loop {
                while let Some(frame) = next_frame(&input, FRAME_BYTES_MAX).unwrap() {
                    let header = Header::parse(frame.encoding, frame.header).unwrap();
                    let field = |name: &str| -> i64 { header.field(name).unwrap().unwrap().parse().unwrap() };
                    let (code, next, body) = self.answer(field("queueOffset"), field("maxMsgNums"));
                    let mut out = Vec::new();
                    let mut answer = FrameEncoder::response(&mut out, Encoding::Binary, code, header.opaque);
                    answer.field("nextBeginOffset", &next.to_string());
                    answer.finish(body.len()).unwrap();
                    out.extend(body);
                    if stream.write_all(&out).is_err() {
                        return;
                    }
                    let size = frame.size;
                    input.drain(..size);
                }
                match stream.read(&mut chunk) {
                    Ok(0) | Err(_) => return,
                    Ok(read) => input.extend(&chunk[..read]),
                }
            }
        });
        address
    }
}
