//! A client that speaks the protocol, and what it gets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use metaq_wire::{Coverage, Encoding, FLAG_ONEWAY, FrameEncoder, Header, Record, next_frame};

use super::{Fields, PATIENCE, queue_fields, request_code, send_fields};

/// The fields of a stored message that tests look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub system_flag: i32,
    pub reconsume_times: i32,
    pub coverage: Coverage,
    pub body: String,
    pub properties: BTreeMap<String, String>,
}

/// The messages of a pulled body.
pub fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let record = Record::decode(bytes).expect("a whole record");
        assert!(record.crc_matches());
        let checksums = |bytes: &[u8]| bytes.windows(8).filter(|part| part == b"__CRC32#").count();
        let own = usize::from(record.coverage() == Coverage::Record);
        assert_eq!(checksums(&bytes[..record.size]) - checksums(record.body), own, "of no other record");
        let properties = metaq_wire::properties::iterate(record.properties);
        found.push(Message {
            topic: text(record.topic),
            queue_id: record.queue_id,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            system_flag: record.system_flag,
            reconsume_times: record.reconsume_times,
            coverage: record.coverage(),
            body: text(record.body),
            properties: properties.map(|(name, value)| (text(name), text(value))).collect(),
        });
        bytes = &bytes[record.size..];
    }
    found
}

/// A response, or a request from the server.
#[derive(Debug, Clone)]
pub struct Answer {
    pub code: i32,
    pub opaque: i32,
    pub is_response: bool,
    pub remark: String,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> i64 {
        self.field(name).parse().unwrap()
    }

    pub fn bodies(&self) -> Vec<String> {
        messages(&self.body).into_iter().map(|message| message.body).collect()
    }

    /// Fails unless the answer is this refusal.
    pub fn refuses(&self, code: i32, remark_part: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.remark.contains(remark_part), "{remark_part:?} is not in {:?}", self.remark);
    }
}

/// One connection, as a client has it.
pub struct Client {
    stream: TcpStream,
    encoding: Encoding,
    buffer: Vec<u8>,
    opaque: i32,
}

impl Client {
    pub fn connect(port: u16, encoding: Encoding) -> Self {
        Client::over(TcpStream::connect(("127.0.0.1", port)).unwrap(), encoding)
    }

    /// Connects from another address of this machine.
    pub fn connect_from(address: [u8; 4], port: u16) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        Client::over(socket.into(), Encoding::Json)
    }

    fn over(stream: TcpStream, encoding: Encoding) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, encoding, buffer: Vec::new(), opaque: 0 }
    }

    /// Sends a request and returns its opaque.
    pub fn send(&mut self, code: i32, fields: &Fields<'_>, body: &[u8]) -> i32 {
        let mut bytes = Vec::new();
        let opaque = self.frame(&mut bytes, code, 0, fields, body);
        self.write(&bytes);
        opaque
    }

    pub fn send_oneway(&mut self, code: i32, fields: &Fields<'_>, body: &[u8]) -> i32 {
        let mut bytes = Vec::new();
        let opaque = self.frame(&mut bytes, code, FLAG_ONEWAY, fields, body);
        self.write(&bytes);
        opaque
    }

    /// Appends a request to `bytes` without sending it.
    pub fn frame(
        &mut self,
        bytes: &mut Vec<u8>,
        code: i32,
        flag: i32,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> i32 {
        self.opaque += 1;
        let mut frame = FrameEncoder::request(bytes, self.encoding, code, self.opaque, flag);
        for (name, value) in fields {
            frame.field(name, value);
        }
        frame.finish(body.len()).unwrap();
        bytes.extend_from_slice(body);
        self.opaque
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Writes as much as the server takes, without waiting long for it to take more.
    pub fn pour(&mut self, bytes: &[u8]) {
        self.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _the_rest_is_lost = self.stream.write_all(bytes);
    }

    /// Answers a request from the server.
    pub fn respond(&mut self, opaque: i32, code: i32) {
        let mut bytes = Vec::new();
        FrameEncoder::response(&mut bytes, self.encoding, code, opaque).finish(0).unwrap();
        self.write(&bytes);
    }

    /// The next frame that the server writes.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer before the connection ends")
    }

    /// Returns None if the server has closed the connection.
    pub fn try_answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(frame) = next_frame(&self.buffer, usize::MAX).unwrap() {
                assert_eq!(frame.encoding, self.encoding, "an answer comes in its request's encoding");
                let header = Header::parse(frame.encoding, frame.header).unwrap();
                let fields = header.fields().map(|field| {
                    let (name, value) = field.unwrap();
                    (name.into_owned(), value.into_owned())
                });
                let answer = Answer {
                    code: header.code,
                    opaque: header.opaque,
                    is_response: header.is_response(),
                    remark: header.remark.as_deref().unwrap_or_default().to_owned(),
                    fields: fields.collect(),
                    body: frame.body.to_vec(),
                };
                let size = frame.size;
                self.buffer.drain(..size);
                return Some(answer);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// Reads `count` whole frames without decoding them, so that measurements contain little work of the reader.
    pub fn skip_answers(&mut self, count: usize) {
        let mut read = 0;
        while read < count {
            let mut start = 0;
            while let Some(length) = self.buffer[start..].first_chunk() {
                let end = start + 4 + i32::from_be_bytes(*length) as usize;
                if end > self.buffer.len() {
                    break;
                }
                (start, read) = (end, read + 1);
            }
            self.buffer.drain(..start);
            if read < count {
                let length = self.buffer.len();
                self.buffer.resize(length + 64 * 1024, 0);
                let count = self.stream.read(&mut self.buffer[length..]).unwrap();
                self.buffer.truncate(length + count);
            }
        }
    }

    /// Sends a request and returns its answer, which must be the next one.
    pub fn ask(&mut self, code: i32, fields: &Fields<'_>, body: &[u8]) -> Answer {
        let opaque = self.send(code, fields, body);
        let answer = self.answer();
        assert_eq!(answer.opaque, opaque, "{answer:?}");
        answer
    }

    /// Sends a message to queue 0 of [`TOPIC`] and expects that it is stored.
    pub fn put(&mut self, body: &str) -> Answer {
        let answer = self.ask(request_code::SEND_MESSAGE_V2, &send_fields(""), body.as_bytes());
        assert_eq!(answer.code, 0, "{answer:?}");
        answer
    }

    /// Fails if an answer is waiting to be read.
    pub fn expect_silence(&mut self) {
        assert_eq!(self.ask(request_code::GET_MIN_OFFSET, &queue_fields(), b"").code, 0);
    }

    pub fn local_address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }
}
