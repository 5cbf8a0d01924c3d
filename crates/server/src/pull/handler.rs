//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): slices of the log for a consumer, or a wait until there are some.

use std::sync::Arc;
use std::time::Duration;

use metaq_store::{Bounds, Filter, GetStatus, Got, Store};
use metaq_wire::{Encoding, PullHeader};

use crate::codes::response_code;
use crate::limits::flow::Flow;
use crate::metrics::latency::Latencies;
use crate::metrics::traffic::Delivered;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::net::route::{Ask, Outcome};
use crate::policy::Policy;
use crate::pull::admit::Denial;
use crate::pull::answer::pull_code;
use crate::pull::expressions::Expressions;
use crate::pull::function::{is_function, is_unjudged, without_candidates};
use crate::pull::function_lines::FunctionLines;
use crate::pull::held_pulls::Holds;
use crate::pull::offsets::{Committer, Offsets, ResetStep};
use crate::pull::signs_of_life::SignsOfLife;
use crate::pull::visible_end::VisibleEnd;
use crate::settings::PullSettings;

const FLAG_COMMIT: i32 = 1;
const FLAG_SUSPEND: i32 = 2;
/// MetaQ's own: the pull belongs to a range that was fixed before, and is read as it is. Other brokers ignore the bit.
pub(super) const FLAG_FIXED_RANGE: i32 = 1 << 16;

/// A pull that was admitted. A held pull keeps this to run again.
pub struct Pull {
    pub encoding: Encoding,
    pub opaque: i32,
    pub group: Arc<str>,
    pub topic: Arc<str>,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub count_max: usize,
    pub bytes_max: usize,
    pub filter: Filter,
    /// Resets of the group do not concern this pull.
    pub is_fixed_range: bool,
    /// The broker that the group reads from, and the one for records that are no longer in memory.
    pub broker_id: i64,
    pub slow_broker_id: i64,
    pub request_code: i32,
    /// None if the group had got no message of the topic before.
    pub delivered: Option<Arc<Delivered>>,
}

/// Bytes of messages that are read for the pulls that one arrival wakes: each of them checks what it gets.
const READ_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The work that may still be done for pulls in one go. A pull that finds nothing left is answered with where it stands,
/// and its consumer asks again.
pub(super) struct Allowance {
    examined_bytes: u64,
    read_bytes: usize,
}

/// Serves pulls, at once or when there is something for them.
pub struct Puller {
    /// Filters of pulls that bring their own.
    pub expressions: Expressions,
    pub function_lines: FunctionLines,
    pub(super) store: Arc<Store>,
    pub(super) broker_name: String,
    pub(super) settings: PullSettings,
    pub(super) policy: Arc<Policy>,
    pub(super) offsets: Arc<Offsets>,
    pub(super) flow: Arc<Flow>,
    pub(super) holds: Holds,
    pub(super) is_replica: bool,
    /// The last bytes of the log, which are expected in memory; None if no replica is ever suggested.
    pub(super) recent_bytes: Option<i64>,
    pub(super) visible_end: Arc<VisibleEnd>,
    pub(super) latencies: Arc<Latencies>,
    pub signs: Arc<SignsOfLife>,
}

impl Puller {
    #[allow(clippy::too_many_arguments, reason = "the rooms that a pull passes through")]
    pub fn new(
        store: Arc<Store>,
        broker_name: String,
        settings: PullSettings,
        policy: Arc<Policy>,
        offsets: Arc<Offsets>,
        flow: Arc<Flow>,
        visible_end: Arc<VisibleEnd>,
        latencies: Arc<Latencies>,
        signs: Arc<SignsOfLife>,
        is_replica: bool,
    ) -> std::io::Result<Self> {
        let recent_bytes = settings.slave_read.then(|| {
            let memory_bytes = rustix::system::sysinfo();
            let memory_bytes = memory_bytes.totalram as u64 * u64::from(memory_bytes.mem_unit);
            (memory_bytes / 100 * settings.in_memory_percent) as i64
        });
        Ok(Puller {
            expressions: Expressions::default(),
            function_lines: FunctionLines::new(
                settings.hold_max,
                Duration::from_millis(settings.filter_hold_ms_max),
            )?,
            holds: Holds::new(settings.hold_max),
            store,
            broker_name,
            settings,
            policy,
            offsets,
            flow,
            is_replica,
            recent_bytes,
            visible_end,
            latencies,
            signs,
        })
    }

    /// Notes, when a role begins, up to where the log waits for other brokers to confirm it.
    pub(crate) fn note_log_end(&self) {
        self.visible_end.note_log_end();
    }

    pub fn handle(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let header = match PullHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        let policy = self.policy.read();
        let Some(group) = policy.group(&header.consumer_group) else {
            if ask.again {
                let remark = format!(
                    "group[{}] does not exist; create it or let its consumers send a heartbeat",
                    header.consumer_group
                );
                return ask.refuse(answers, response_code::SUBSCRIPTION_GROUP_NOT_EXIST, &remark);
            }
            return Outcome::Cross;
        };
        let pull = match self.admit(&policy, group, &header, ask) {
            Ok(pull) => pull,
            Err(Denial::Refused(refusal)) => return ask.refuse_with(answers, &refusal),
            Err(Denial::UnknownExpression) => return Outcome::Cross,
        };
        self.signs.note(&pull.group, &pull.topic, pull.queue_id);
        let step = self.reset_step(&pull, ask.peer);
        if let ResetStep::Redirect(queue_offset) = step {
            self.add_redirect(&pull, queue_offset, answers);
            return Outcome::Done;
        }
        let commits = step == ResetStep::None;
        let may_wait = header.system_flag & FLAG_SUSPEND != 0 && header.suspend_timeout_ms > 0;
        let wait = may_wait.then(|| self.suspension(header.suspend_timeout_ms as u64));
        let Some(got) = self.get_within(&pull, ask.peer, false, &mut self.allowance()) else {
            if commits {
                self.take_commit(&header, self.store.max_offset(&header.topic, header.queue_id), ask.peer);
            }
            return self.hold_paced(ask, pull, wait, answers);
        };
        if got.examined_bytes > 0 {
            answers.note_costly();
        }
        if commits {
            self.take_commit(&header, got.max_offset, ask.peer);
        }
        let code = pull_code(&got, pull.queue_offset);
        if is_unjudged(&pull, &got) {
            return self.hold(ask, pull, wait.unwrap_or_default(), Puller::line_up, answers);
        }
        if let (response_code::PULL_NOT_FOUND, Some(wait)) = (code, wait) {
            let put = match got.status {
                GetStatus::Damaged => Puller::register_before_damage,
                _ => Puller::register,
            };
            return self.hold(ask, pull, wait, put, answers);
        }
        self.add_answer(&pull, ask.peer, code, got, answers);
        Outcome::Done
    }

    /// Commits the offset that the pull carries, unless it lies beyond the end of the queue.
    fn take_commit(&self, header: &PullHeader<'_>, end: i64, peer: &Peer) {
        let committed_offset = header.commit_offset;
        let is_given = header.system_flag & FLAG_COMMIT != 0 && committed_offset >= 0;
        if !is_given || self.visible_end.exceeds(committed_offset, end) {
            return;
        }
        let (group, topic) = (&header.consumer_group, &header.topic);
        if self.is_replica {
            self.offsets.keep(group, topic, header.queue_id, committed_offset);
        } else {
            let by = Committer { peer: peer.id, network: peer.network };
            let _ignored = self.offsets.commit(group, topic, header.queue_id, committed_offset, by);
        }
    }

    pub(super) fn allowance(&self) -> Allowance {
        Allowance { examined_bytes: self.settings.examined_bytes_max, read_bytes: READ_BYTES_MAX }
    }

    pub(super) fn get(&self, pull: &Pull, allowance: &mut Allowance) -> Got {
        self.get_at_most(pull, pull.count_max, pull.bytes_max, allowance)
    }

    pub(super) fn get_at_most(
        &self,
        pull: &Pull,
        count_max: usize,
        bytes_max: usize,
        allowance: &mut Allowance,
    ) -> Got {
        if allowance.read_bytes == 0 {
            return self.not_yet(pull);
        }
        let bounds = Bounds { count_max, bytes_max, examined_bytes_max: allowance.examined_bytes };
        let got = self.store.get_within(&pull.topic, pull.queue_id, pull.queue_offset, bounds, &pull.filter);
        allowance.examined_bytes = allowance.examined_bytes.saturating_sub(got.examined_bytes);
        allowance.read_bytes = allowance.read_bytes.saturating_sub(got.bytes);
        let got = self.or_wait(pull, got);
        if is_function(&pull.filter) { without_candidates(got, pull.queue_offset) } else { got }
    }

    /// Lets a pull wait that asks for an offset beyond the visible end, if the offset may become visible here: the
    /// consumer may have read up to it on another broker, before this one learned that it is confirmed. An answer that
    /// corrects the offset would then repeat messages, or skip those that come to stand there.
    pub(super) fn or_wait(&self, pull: &Pull, got: Got) -> Got {
        let is_beyond = matches!(got.status, GetStatus::PastEnd | GetStatus::NoQueue | GetStatus::EmptyQueue);
        if !is_beyond || pull.queue_offset <= got.max_offset || !self.visible_end.may_move() {
            return got;
        }
        Got { status: GetStatus::AtEnd, next_offset: pull.queue_offset, ..got }
    }

    /// Forgets the pulls of a peer that has left.
    pub fn drop_peer(&self, peer: &Arc<Peer>) {
        self.holds.drop_peer(peer);
        self.function_lines.drop_peer(peer);
        self.flow.paced.drop_peer(peer);
    }
}
