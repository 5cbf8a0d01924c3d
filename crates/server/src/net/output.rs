//! The bytes that are due to a peer, gathered for one system call.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
pub use metaq_transport::GATHER_MAX;

/// A body up to this size is copied after its header, which is cheaper than one more entry in the gather list.
const COPY_BYTES_MAX: usize = 2048;
/// A frame buffer that grew past this is given back once it is written.
const TAIL_BYTES_KEPT: usize = 256 * 1024;
/// A list of chunks that grew past this is given back once it is empty.
const CHUNKS_KEPT: usize = 1024;
/// Memory that a chunk takes besides its bytes: its place in the list, and its owner.
const CHUNK_BYTES: usize = 128;

/// The body of a frame.
pub enum Body {
    /// Slices of the log. The system can drop their memory and read it again.
    Mapped(Vec<Bytes>),
    /// Memory of this process.
    Owned(Bytes),
}

impl Body {
    pub fn len(&self) -> usize {
        match self {
            Body::Mapped(slices) => slices.iter().map(Bytes::len).sum(),
            Body::Owned(bytes) => bytes.len(),
        }
    }
}

struct Chunk {
    bytes: Bytes,
    /// Memory of this process that is free once the whole chunk is written.
    memory: usize,
}

/// Chunks in the order they are due; small frames are laid out straight into `tail`.
#[derive(Default)]
pub struct Output {
    chunks: VecDeque<Chunk>,
    chunk_bytes: usize,
    chunk_memory: usize,
    tail: Vec<u8>,
    tail_written: usize,
}

impl Output {
    /// The buffer for the next frame's header, and for its body if that is small.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a frame's body without copying it, unless it is small.
    pub fn append(&mut self, body: Body) {
        if body.len() <= COPY_BYTES_MAX {
            match &body {
                Body::Mapped(slices) => slices.iter().for_each(|slice| self.tail.extend_from_slice(slice)),
                Body::Owned(bytes) => self.tail.extend_from_slice(bytes),
            }
            return;
        }
        self.freeze_tail();
        match body {
            Body::Mapped(slices) => slices.into_iter().for_each(|slice| self.push(slice, 0)),
            Body::Owned(bytes) => {
                let memory = bytes.len();
                self.push(bytes, memory);
            }
        }
    }

    fn push(&mut self, bytes: Bytes, memory: usize) {
        if bytes.is_empty() {
            return;
        }
        let memory = memory + CHUNK_BYTES;
        self.chunk_bytes += bytes.len();
        self.chunk_memory += memory;
        self.chunks.push_back(Chunk { bytes, memory });
    }

    /// Appends everything that another output holds.
    pub fn absorb(&mut self, mut other: Output) {
        if other.chunks.is_empty() {
            self.tail.extend_from_slice(&other.tail[other.tail_written..]);
            return;
        }
        other.freeze_tail();
        self.freeze_tail();
        self.chunk_bytes += other.chunk_bytes;
        self.chunk_memory += other.chunk_memory;
        self.chunks.append(&mut other.chunks);
    }

    pub fn len(&self) -> usize {
        self.chunk_bytes + self.tail.len() - self.tail_written
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// About the memory of this process that the bytes take.
    pub fn memory(&self) -> usize {
        self.chunk_memory + self.tail.capacity()
    }

    /// Gives back the part of the frame buffer that is written or was never used, if that is most of it.
    pub fn trim(&mut self) {
        let unsent = self.tail.len() - self.tail_written;
        if self.tail.capacity() > COPY_BYTES_MAX + 2 * unsent {
            self.tail = self.tail.split_off(self.tail_written);
            self.tail.shrink_to_fit();
            self.tail_written = 0;
        }
    }

    /// Gives back buffers that hold nothing.
    pub fn release_buffers(&mut self) {
        if self.tail.is_empty() {
            self.tail = Vec::new();
        }
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// Fills `gather` with the next bytes and returns the number of entries.
    pub fn gather<'a>(&'a self, gather: &mut [IoSlice<'a>; GATHER_MAX]) -> usize {
        let mut count = 0;
        for chunk in self.chunks.iter().take(GATHER_MAX) {
            gather[count] = IoSlice::new(&chunk.bytes);
            count += 1;
        }
        if count < GATHER_MAX && self.tail_written < self.tail.len() {
            gather[count] = IoSlice::new(&self.tail[self.tail_written..]);
            count += 1;
        }
        count
    }

    /// Forgets the first `written` bytes.
    pub fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let Some(chunk) = self.chunks.front_mut() else {
                break;
            };
            let len = chunk.bytes.len();
            if written < len {
                bytes::Buf::advance(&mut chunk.bytes, written);
                self.chunk_bytes -= written;
                return;
            }
            written -= len;
            self.chunk_bytes -= len;
            self.chunk_memory -= chunk.memory;
            self.chunks.pop_front();
            if self.chunks.is_empty() && self.chunks.capacity() > CHUNKS_KEPT {
                self.chunks = VecDeque::new();
            }
        }
        self.tail_written += written;
        if self.tail_written >= self.tail.len() {
            self.tail_written = 0;
            if self.tail.capacity() > TAIL_BYTES_KEPT {
                self.tail = Vec::new();
            } else {
                self.tail.clear();
            }
        }
    }

    fn freeze_tail(&mut self) {
        if self.tail_written < self.tail.len() {
            let tail = std::mem::take(&mut self.tail);
            let memory = tail.capacity();
            self.push(Bytes::from(tail).slice(self.tail_written..), memory);
        }
        self.tail.clear();
        self.tail_written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(output: &mut Output, step: usize) -> Vec<u8> {
        let mut seen = Vec::new();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); GATHER_MAX];
            let count = output.gather(&mut slices);
            let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            let written = step.min(flat.len());
            seen.extend_from_slice(&flat[..written]);
            output.advance(written);
        }
        seen
    }

    #[test]
    fn bytes_leave_in_the_order_they_came_whatever_the_socket_takes() {
        for step in [1, 7, 100, 5000, usize::MAX] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for round in 0..5u8 {
                output.tail().extend_from_slice(&[round; 10]);
                expected.extend_from_slice(&[round; 10]);
                let large = vec![100 + round; COPY_BYTES_MAX + 1];
                let small = vec![200 + round; 5];
                output.append(Body::Owned(Bytes::from(large.clone())));
                output.append(Body::Mapped(vec![Bytes::from(small.clone()), Bytes::new()]));
                expected.extend(large);
                expected.extend(small);
            }
            let mut other = Output::default();
            other.tail().extend_from_slice(b"other");
            output.absorb(other);
            expected.extend_from_slice(b"other");
            assert_eq!(output.len(), expected.len());
            assert_eq!(drain(&mut output, step), expected);
        }
    }
    #[test]
    fn memory_is_what_the_process_itself_holds_and_is_given_back() {
        let large = Bytes::from(vec![1; 1 << 20]);
        let mut output = Output::default();
        output.append(Body::Mapped(vec![large.clone(); 3]));
        assert_eq!(
            (output.len(), output.memory()),
            (3 << 20, 3 * CHUNK_BYTES),
            "the log's memory is not ours"
        );
        output.append(Body::Owned(large));
        assert!(output.memory() > 1 << 20);
        output.advance((4 << 20) - 1);
        assert!(output.memory() > 1 << 20, "a chunk stays until its last byte is written");
        output.advance(1);
        assert_eq!((output.len(), output.memory()), (0, 0));
        output.tail().extend_from_slice(&[7; 200_000]);
        output.advance(150_000);
        output.trim();
        assert_eq!((output.len(), output.memory()), (50_000, 50_000));
        assert_eq!(drain(&mut output, usize::MAX), [7; 50_000]);
        output.release_buffers();
        for number in 0..10_000_u32 {
            output.append(Body::Mapped(vec![Bytes::from(vec![number as u8; COPY_BYTES_MAX + 1])]));
            output.tail().extend_from_slice(b"header");
        }
        assert!(output.memory() > 10_000 * CHUNK_BYTES);
        drain(&mut output, usize::MAX);
        output.release_buffers();
        assert_eq!((output.memory(), output.chunks.capacity(), output.tail.capacity()), (0, 0, 0));
    }
}
