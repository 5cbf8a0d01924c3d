//! A name server and broker that do nothing: every send is answered at once and dropped.
//!
//! The benchmark runs it beside the real brokers. Its figures are the limit of the clients and of the machine, with
//! any broker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use metaq_wire::{FRAME_BYTES_MAX, Frame, FrameEncoder, Header, next_frame};

const GET_ROUTE: i32 = 105;
const SENDS: [i32; 3] = [10, 310, 320];
const READ_BYTES: usize = 64 * 1024;

fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    println!("READY {address}");
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || converse(stream, address));
    }
    Ok(())
}

fn converse(mut stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Vec::new();
    let mut output = Vec::new();
    loop {
        let unread = input.len();
        input.resize(unread + READ_BYTES, 0);
        let read = stream.read(&mut input[unread..])?;
        if read == 0 {
            return Ok(());
        }
        input.truncate(unread + read);
        let mut handled = 0;
        while let Ok(Some(frame)) = next_frame(&input[handled..], FRAME_BYTES_MAX) {
            answer(&frame, address, &mut output);
            handled += frame.size;
        }
        input.drain(..handled);
        stream.write_all(&output)?;
        output.clear();
    }
}

fn answer(frame: &Frame<'_>, address: SocketAddr, output: &mut Vec<u8>) {
    let Ok(header) = Header::parse(frame.encoding, frame.header) else { return };
    if header.is_oneway() {
        return;
    }
    let mut response = FrameEncoder::response(output, frame.encoding, 0, header.opaque);
    let mut body = String::new();
    if SENDS.contains(&header.code) {
        response.field("msgId", "7F00000100002A9F0000000000000000");
        response.field("queueId", "0");
        response.field("queueOffset", "0");
    } else if header.code == GET_ROUTE {
        body = route(address);
    }
    if response.finish(body.len()).is_ok() {
        output.extend_from_slice(body.as_bytes());
    }
}

/// Every topic has eight queues here.
fn route(address: SocketAddr) -> String {
    format!(
        r#"{{"brokerDatas":[{{"brokerAddrs":{{"0":"{address}"}},"brokerName":"nothing","cluster":"DefaultCluster"}}],"#
    ) + r#""filterServerTable":{},"queueDatas":[{"brokerName":"nothing","perm":6,"readQueueNums":8,"#
        + r#""topicSysFlag":0,"writeQueueNums":8}]}"#
}
