//! Counters without contention: each connection adds to its own, and a reader sums them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

            pub fn figures(&self, connections: u64) -> ListenerFigures {
                ListenerFigures { connections, $($name: self.$name.get()),* }
            }
        }

        /// The connections that are open now, and the sums of all there have been.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct ListenerFigures { pub connections: u64, $(pub $name: u64),* }
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
