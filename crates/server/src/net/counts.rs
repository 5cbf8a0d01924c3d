//! Counters without contention: each connection adds to its own, and a reader sums them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::net::memory::Memory;

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// The figures of one connection; its own task alone writes them.
        #[derive(Default)]
        pub struct Counts { $(pub $name: Count),* }

        impl Counts {
            /// Adds these figures to a sum.
            pub fn add_to(&self, sum: &Counts) {
                $(sum.$name.add(self.$name.get());)*
            }

            pub fn figures(&self, connections: u64, memory: &Memory) -> ListenerFigures {
                let (group_bytes, group_bytes_peak) = memory.groups.largest();
                ListenerFigures {
                    connections,
                    memory_bytes: memory.used() as u64,
                    memory_bytes_peak: memory.peak() as u64,
                    group_memory_bytes: group_bytes as u64,
                    group_memory_bytes_peak: group_bytes_peak as u64,
                    $($name: self.$name.get()),*
                }
            }
        }

        /// The connections that are open now and what is kept for them, and the sums of all there have been.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct ListenerFigures {
            pub connections: u64,
            pub memory_bytes: u64,
            pub memory_bytes_peak: u64,
            /// The memory of the group that uses most.
            pub group_memory_bytes: u64,
            pub group_memory_bytes_peak: u64,
            $(pub $name: u64),*
        }
    };
}

counts!(
    requests,
    messages_in,
    bytes_in,
    messages_out,
    bytes_out,
    refused,
    crossed,
    held,
    sends_slowed,
    sends_over_limit,
    pulls_paced,
    connections_cut,
);

/// One counter. Its writers are few and rare enough to share a plain atomic.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
