//! A small server whose answers a test scripts.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metaq_client::NetworkSettings;
use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, Header, next_frame};

pub const NETWORK: NetworkSettings = NetworkSettings {
    connect_timeout: Duration::from_secs(3),
    silence_ms_max: 20_000,
    frame_bytes_max: FRAME_BYTES_MAX,
};

/// A request as the server got it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub code: i32,
    pub opaque: i32,
    pub fields: HashMap<String, String>,
    pub body: Vec<u8>,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

/// How the server reacts.
pub enum Act {
    Answer {
        code: i32,
        fields: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// These very bytes.
    Raw(Vec<u8>),
    Silence,
    Hang(Duration),
    Close,
}

impl Act {
    pub fn ok() -> Act {
        Act::Answer { code: 0, fields: Vec::new(), body: Vec::new() }
    }
}

pub struct Server {
    pub address: String,
    pub asked: Arc<Mutex<Vec<Asked>>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Server {
    pub fn start(act: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (act, seen, kept) = (Arc::new(act), Arc::clone(&asked), Arc::clone(&streams));
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let stream = stream.unwrap();
                kept.lock().unwrap().push(stream.try_clone().unwrap());
                let (act, seen) = (Arc::clone(&act), Arc::clone(&seen));
                std::thread::spawn(move || serve(stream, number, &*act, &seen));
            }
        });
        Server { address, asked, streams }
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }

    /// Writes to every connection, asked or not.
    pub fn say(&self, bytes: &[u8]) {
        for mut stream in self.streams.lock().unwrap().iter() {
            stream.write_all(bytes).unwrap();
        }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    connection: usize,
    act: &(impl Fn(&Asked) -> Vec<Act> + ?Sized),
    seen: &Mutex<Vec<Asked>>,
) {
    let mut buffer = Vec::new();
    let mut chunk = [0; 65_536];
    loop {
        let read = stream.read(&mut chunk).unwrap_or(0);
        if read == 0 {
            return;
        }
        buffer.extend_from_slice(&chunk[..read]);
        while let Some(frame) = next_frame(&buffer, FRAME_BYTES_MAX).unwrap() {
            let header = Header::parse(frame.encoding, frame.header).unwrap();
            let fields = header.fields().map(Result::unwrap);
            let asked = Asked {
                code: header.code,
                opaque: header.opaque,
                fields: fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect(),
                body: frame.body.to_vec(),
                connection,
            };
            let is_answer = header.is_response();
            let size = frame.size;
            buffer.drain(..size);
            seen.lock().unwrap().push(asked.clone());
            if is_answer {
                continue;
            }
            for what in act(&asked) {
                match what {
                    Act::Answer { code, fields, body } => {
                        let _gone = stream.write_all(&answer(asked.opaque, code, &fields, &body));
                    }
                    Act::Raw(bytes) => {
                        let _gone = stream.write_all(&bytes);
                    }
                    Act::Silence => {}
                    Act::Hang(time) => std::thread::sleep(time),
                    Act::Close => {
                        let _gone = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
    }
}

/// A response frame.
pub fn answer(opaque: i32, code: i32, fields: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut frame = FrameEncoder::response(&mut out, Encoding::Binary, code, opaque);
    for (name, value) in fields {
        frame.field(name, value);
    }
    frame.finish(body.len()).unwrap();
    out.extend_from_slice(body);
    out
}

/// Waits for something that must come; the time is only for the case that it never does.
pub fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}
