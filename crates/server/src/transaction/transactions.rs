//! The transactions of a broker: which of them are open, and what it takes to store and end them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metaq_store::Store;
use parking_lot::Mutex;

use crate::policy::Policy;
use crate::pull::offsets::Offsets;
use crate::send::rewrite::AddedProperties;
use crate::settings::TransactionSettings;
use crate::timer::delay_levels::DelayLevels;
use crate::timer::due_time::DueTimes;
use crate::transaction::open::{Kind, Ledger};
use crate::transaction::shares::{Full, NameKey};

/// The transactions of a broker. Half messages are appended and ended inside the ledger's lock, so that the ledger says
/// what the log holds.
pub struct Transactions {
    pub(super) store: Arc<Store>,
    pub(super) store_host: SocketAddr,
    pub(super) settings: TransactionSettings,
    pub(super) flush_timeout: Duration,
    pub(super) policy: Arc<Policy>,
    pub(super) offsets: Arc<Offsets>,
    pub(super) delay_levels: Arc<DelayLevels>,
    pub(super) due_times: DueTimes,
    pub(super) added: Arc<AddedProperties>,
    pub(super) ledger: Mutex<Ledger>,
}

impl Transactions {
    #[allow(clippy::too_many_arguments, reason = "what a committed message passes through")]
    pub fn new(
        store: Arc<Store>,
        store_host: SocketAddr,
        settings: TransactionSettings,
        flush_timeout: Duration,
        policy: Arc<Policy>,
        offsets: Arc<Offsets>,
        delay_levels: Arc<DelayLevels>,
        due_times: DueTimes,
        added: Arc<AddedProperties>,
    ) -> Self {
        let ledger = Mutex::new(Ledger::new(&settings));
        Transactions {
            store,
            store_host,
            settings,
            flush_timeout,
            policy,
            offsets,
            delay_levels,
            due_times,
            added,
            ledger,
        }
    }

    pub fn open_count(&self) -> usize {
        self.ledger.lock().open_count()
    }

    /// How many transactions of these topics are open; topics without any are left out.
    pub fn open_of_topics<'a>(&self, topics: impl Iterator<Item = &'a str>) -> Vec<(&'a str, usize)> {
        // Copied, because senders wait for the lock, and there may be many more topics than open transactions.
        let open = self.ledger.lock().open_of_topic().clone();
        topics.filter_map(|topic| Some((topic, *open.get(&NameKey::of(topic.as_bytes()))?))).collect()
    }

    /// Why a sender may begin no further transaction of this kind.
    pub fn explain_full(&self, kind: &Kind) -> String {
        let settings = &self.settings;
        let full = self.ledger.lock().full(kind);
        match full {
            Some(Full::Address) => format!(
                "[OVERLOAD] this address has {} open transactions already (transactions_open_per_address_max); end some first",
                settings.open_per_address_max
            ),
            Some(Full::Group) => format!(
                "[OVERLOAD] this producer group has {} open transactions already (transactions_open_per_group_max); end some first",
                settings.open_per_group_max
            ),
            // One may have ended just now.
            Some(Full::All) | None => format!(
                "[OVERLOAD] {} transactions are open already (transactions_open_max)",
                settings.open_max
            ),
        }
    }
}
