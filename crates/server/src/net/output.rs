//! The bytes that are due to a peer, gathered for one system call.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
pub use metaq_transport::GATHER_MAX;

/// A body up to this size is copied after its header, which is cheaper than one more entry in the gather list.
const COPY_BYTES_MAX: usize = 2048;
/// A frame buffer that grew past this is given back once it is written.
const TAIL_BYTES_KEPT: usize = 256 * 1024;

/// Chunks in the order they are due; small frames are laid out straight into `tail`.
#[derive(Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    chunk_bytes: usize,
    tail: Vec<u8>,
    tail_written: usize,
}

impl Output {
    /// The buffer for the next frame's header, and for its body if that is small.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a frame's body without copying it, unless it is small.
    pub fn append(&mut self, slices: Vec<Bytes>) {
        let total: usize = slices.iter().map(Bytes::len).sum();
        if total <= COPY_BYTES_MAX {
            for slice in &slices {
                self.tail.extend_from_slice(slice);
            }
            return;
        }
        self.freeze_tail();
        self.chunk_bytes += total;
        self.chunks.extend(slices.into_iter().filter(|slice| !slice.is_empty()));
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
        self.chunks.append(&mut other.chunks);
    }

    pub fn len(&self) -> usize {
        self.chunk_bytes + self.tail.len() - self.tail_written
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `gather` with the next bytes and returns the number of entries.
    pub fn gather<'a>(&'a self, gather: &mut [IoSlice<'a>; GATHER_MAX]) -> usize {
        let mut count = 0;
        for chunk in self.chunks.iter().take(GATHER_MAX) {
            gather[count] = IoSlice::new(chunk);
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
            if written < chunk.len() {
                bytes::Buf::advance(chunk, written);
                self.chunk_bytes -= written;
                return;
            }
            written -= chunk.len();
            self.chunk_bytes -= chunk.len();
            self.chunks.pop_front();
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
            let frozen = Bytes::from(std::mem::take(&mut self.tail)).slice(self.tail_written..);
            self.chunk_bytes += frozen.len();
            self.chunks.push_back(frozen);
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
                output.append(vec![Bytes::from(large.clone())]);
                output.append(vec![Bytes::from(small.clone()), Bytes::new()]);
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
}
