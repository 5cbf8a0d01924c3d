//! One socket: reads what has arrived, writes what is due.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice, Result};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Slices that one system call writes at most.
pub const GATHER_MAX: usize = 64;

/// A growable buffer that a transport reads into.
pub trait Input: BufMut {
    /// Bytes that fit without growing.
    fn spare(&self) -> usize;
    fn reserve(&mut self, additional: usize);
}

impl Input for Vec<u8> {
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    fn reserve(&mut self, additional: usize) {
        Vec::reserve(self, additional);
    }
}

impl Input for BytesMut {
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    fn reserve(&mut self, additional: usize) {
        BytesMut::reserve(self, additional);
    }
}

/// Bytes that are due to the peer.
pub trait Output {
    fn is_empty(&self) -> bool;
    /// Fills `slices` with what is due next and returns how many it filled.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER_MAX]) -> usize;
    /// Removes the first `written` bytes.
    fn advance(&mut self, written: usize);
}

impl Output for VecDeque<Bytes> {
    fn is_empty(&self) -> bool {
        VecDeque::is_empty(self)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER_MAX]) -> usize {
        for (slot, chunk) in slices.iter_mut().zip(self) {
            *slot = IoSlice::new(chunk);
        }
        self.len().min(GATHER_MAX)
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.front_mut() {
            if written < first.len() {
                Buf::advance(first, written);
                return;
            }
            written -= first.len();
            self.pop_front();
        }
    }
}

/// The event that ended [`Transport::ready`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes were read.
    Read(usize),
    /// The peer sends nothing more.
    EndOfStream,
    /// The socket takes output again.
    Writable,
}

/// An open connection to a peer.
pub struct Transport {
    stream: TcpStream,
    /// Space for one read. A longer frame grows the buffer as its bytes arrive, never because its length says so.
    read_bytes: usize,
}

impl Transport {
    pub fn plain(stream: TcpStream, read_bytes: usize) -> Self {
        Transport { stream, read_bytes }
    }

    /// Writes until everything is out or the socket takes no more.
    pub fn write(&self, output: &mut impl Output) -> Result<()> {
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); GATHER_MAX];
            let count = output.gather(&mut slices);
            match self.stream.try_write_vectored(slices.get(..count).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => output.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for bytes, which go to `input`, or for the socket to take output, if `awaits_writable`. Without an `input`
    /// nothing is read. Dropping the future loses no bytes.
    pub async fn ready<I: Input>(
        &mut self,
        input: Option<&mut I>,
        awaits_writable: bool,
    ) -> Result<Progress> {
        let (mut reader, writer) = self.stream.split();
        let read_bytes = self.read_bytes;
        let may_read = input.is_some();
        let read = async {
            match input {
                Some(input) => {
                    if input.spare() < read_bytes / 4 {
                        // A connection that is silent needs no buffer.
                        reader.readable().await?;
                        input.reserve(read_bytes);
                    }
                    reader.read_buf(input).await
                }
                None => Err(Error::from(ErrorKind::Unsupported)),
            }
        };
        tokio::select! {
            // Output is tried again after every read, so reading first starves nothing.
            biased;
            read = read, if may_read => Ok(match read? {
                0 => Progress::EndOfStream,
                count => Progress::Read(count),
            }),
            writable = writer.writable(), if awaits_writable => writable.map(|()| Progress::Writable),
            // Nothing to wait for here: the caller is woken by other events.
            () = std::future::pending() => Err(ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (one.unwrap(), accepted.unwrap().0)
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn everything_that_is_due_arrives_in_order() {
        run(async {
            let (near, mut far) = pair().await;
            let mut transport = Transport::plain(near, 1024);
            let chunks: Vec<Bytes> = (0..2000_u32)
                .map(|number| Bytes::from(vec![number as u8; 3000 + number as usize % 7]))
                .collect();
            let expected: Vec<u8> = chunks.iter().flatten().copied().collect();
            let mut output = VecDeque::from(chunks);
            let total = expected.len();
            let reader = tokio::spawn(async move {
                let mut received = Vec::new();
                while received.len() < total {
                    far.read_buf(&mut received).await.unwrap();
                }
                received
            });
            transport.write(&mut output).unwrap();
            while !output.is_empty() {
                let progress = transport.ready(None::<&mut Vec<u8>>, true).await.unwrap();
                assert_eq!(progress, Progress::Writable);
                transport.write(&mut output).unwrap();
            }
            assert_eq!(reader.await.unwrap(), expected);
        });
    }

    #[test]
    fn what_has_arrived_is_read_until_the_peer_ends() {
        run(async {
            let (near, mut far) = pair().await;
            let mut transport = Transport::plain(near, 16);
            let sent: Vec<u8> = (0..1000_u32).map(|number| number as u8).collect();
            far.write_all(&sent).await.unwrap();
            drop(far);
            let mut input = BytesMut::new();
            let mut reads = 0;
            while let Progress::Read(_) = transport.ready(Some(&mut input), false).await.unwrap() {
                reads += 1;
            }
            assert_eq!(&input[..], sent);
            assert!(reads > 0);
            assert_eq!(transport.ready(Some(&mut input), true).await.unwrap(), Progress::EndOfStream);
        });
    }

    #[test]
    fn a_peer_that_does_not_read_stops_the_output_and_not_the_caller() {
        run(async {
            let (near, far) = pair().await;
            let transport = Transport::plain(near, 1024);
            let mut output = VecDeque::from([Bytes::from(vec![7; 64 << 20])]);
            transport.write(&mut output).unwrap();
            assert!(!output.is_empty());
            drop(far);
        });
    }

    proptest! {
        #[test]
        fn chunks_advance_by_whatever_was_written(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..100),
            steps in prop::collection::vec(1..40_usize, 1..50),
        ) {
            let expected: Vec<u8> = chunks.iter().flatten().copied().collect();
            let mut output: VecDeque<Bytes> = chunks.into_iter().map(Bytes::from).collect();
            let mut written = Vec::new();
            for step in steps.iter().cycle() {
                if Output::is_empty(&output) {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); GATHER_MAX];
                let count = output.gather(&mut slices);
                let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let step = (*step).min(flat.len());
                written.extend_from_slice(&flat[..step]);
                output.advance(step);
            }
            prop_assert_eq!(written, expected);
        }
    }
}
