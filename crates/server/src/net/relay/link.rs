//! One connection to the master: it is opened for the first request, and again after it broke.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use metaq_transport::{Progress, Transport};
use metaq_wire::{Announced, FrameEncoder, Header, WireError, announced, next_frame};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::output::{Body, Output};
use crate::net::relay::{Asker, Limits, RELAYED, Share, Waiting};
use crate::net::route::HEADER_BYTES_MAX;

/// Space for one read of the socket.
const READ_BYTES: usize = 64 * 1024;
/// A read buffer that grew past this is given back when it is empty.
const INPUT_BYTES_KEPT: usize = 1024 * 1024;
/// Requests are laid out for writing up to this size. Those behind it can still be refused as never sent.
const OUTPUT_BYTES: usize = 256 * 1024;
/// The pause between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long the task sleeps while it waits for nothing in particular.
const LONG: Duration = Duration::from_secs(3600);
const CHANGED: &str = "it is not the master any more";

pub(super) struct Link {
    address: Arc<str>,
    limits: Limits,
    inbox: Mutex<Inbox>,
    wake: Notify,
}

#[derive(Default)]
struct Inbox {
    /// Requests that were not written, the oldest first.
    waiting: VecDeque<Waiting>,
    is_running: bool,
    is_closed: bool,
}

/// A request that was written and has no answer.
struct Unanswered {
    asker: Asker,
    _share: Share,
}

/// The state of an open connection.
struct Conversation {
    transport: Transport,
    input: Vec<u8>,
    output: Output,
    /// By the opaque under which the master knows them.
    unanswered: HashMap<i32, Unanswered, RandomState>,
    /// In the order of the deadlines; answered requests may still be here.
    deadlines: VecDeque<(Instant, i32)>,
    next_opaque: i32,
    /// When the master last sent something on this connection.
    heard_at: Option<Instant>,
}

impl Link {
    pub fn new(address: Arc<str>, limits: Limits) -> Self {
        Link { address, limits, inbox: Mutex::default(), wake: Notify::new() }
    }

    /// Queues a request. The first one starts the task of this link.
    pub fn offer(self: &Arc<Self>, runtime: &Handle, waiting: Waiting) {
        let mut inbox = self.inbox.lock();
        if inbox.is_closed {
            drop(inbox);
            self.refuse_unsent(&waiting, CHANGED);
            return;
        }
        inbox.waiting.push_back(waiting);
        let is_first = !std::mem::replace(&mut inbox.is_running, true);
        drop(inbox);
        if is_first {
            runtime.spawn(Arc::clone(self).run());
        }
        self.wake.notify_one();
    }

    /// Takes no more requests. The task ends when those that the master got are answered, or their time is over.
    pub fn close(&self) {
        self.inbox.lock().is_closed = true;
        self.wake.notify_one();
    }

    async fn run(self: Arc<Self>) {
        while self.wait_for_request().await {
            match self.connect().await {
                Ok(stream) => {
                    let mut conversation = Conversation::new(stream);
                    let end = self.converse(&mut conversation).await;
                    self.fail_unanswered(conversation, &end);
                }
                Err(reason) => {
                    self.refuse_waiting(&reason);
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
            }
        }
        self.refuse_waiting(CHANGED);
    }

    /// Returns once there is something to send; false if the link was closed.
    async fn wait_for_request(&self) -> bool {
        loop {
            {
                let inbox = self.inbox.lock();
                if inbox.is_closed || !inbox.waiting.is_empty() {
                    return !inbox.is_closed;
                }
            }
            self.wake.notified().await;
        }
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        let connecting = tokio::time::timeout(self.limits.timeout, TcpStream::connect(&*self.address));
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                outcome = &mut connecting => return match outcome {
                    Ok(Ok(stream)) => {
                        let _best_effort = stream.set_nodelay(true);
                        Ok(stream)
                    }
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err(format!("no connection within {} ms", self.limits.timeout.as_millis())),
                },
                () = self.wake.notified() => {
                    if self.inbox.lock().is_closed {
                        return Err(CHANGED.to_owned());
                    }
                }
            }
        }
    }

    /// Passes requests and answers on until the connection ends. Returns why it ended.
    async fn converse(&self, talk: &mut Conversation) -> String {
        loop {
            if !self.lay_out(talk) {
                self.refuse_waiting(CHANGED);
                // A broker that hands its mastership over still answers what it got before.
                if talk.unanswered.is_empty() && talk.output.is_empty() {
                    return CHANGED.to_owned();
                }
            }
            if let Err(error) = talk.transport.write(&mut talk.output) {
                return error.to_string();
            }
            let deadline = self.next_deadline(talk).into();
            let progress = tokio::select! {
                progress = talk.transport.ready(Some(&mut talk.input), !talk.output.is_empty()) => progress,
                () = self.wake.notified() => continue,
                () = tokio::time::sleep_until(deadline) => {
                    if self.end_overdue(talk, Instant::now()) {
                        return self.no_answer();
                    }
                    continue;
                }
            };
            match progress {
                Ok(Progress::Read(_)) => {
                    if let Err(error) = talk.take_answers(self.limits.frame_bytes_max) {
                        return format!("its answer is not a frame: {error}");
                    }
                }
                Ok(Progress::Writable) => {}
                Ok(Progress::EndOfStream) => return "it closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Lays requests out for writing, as many as the output takes; false if the link was closed.
    fn lay_out(&self, talk: &mut Conversation) -> bool {
        loop {
            let mut inbox = self.inbox.lock();
            if inbox.is_closed {
                return false;
            }
            if talk.output.len() >= OUTPUT_BYTES {
                return true;
            }
            let Some(waiting) = inbox.waiting.pop_front() else {
                return true;
            };
            drop(inbox);
            talk.lay_out(waiting, self.limits.frame_bytes_max);
        }
    }

    fn next_deadline(&self, talk: &mut Conversation) -> Instant {
        while talk.deadlines.front().is_some_and(|(_, opaque)| !talk.unanswered.contains_key(opaque)) {
            talk.deadlines.pop_front();
        }
        let waiting = self.inbox.lock().waiting.front().map(|waiting| waiting.deadline);
        let written = talk.deadlines.front().map(|(deadline, _)| *deadline);
        waiting.into_iter().chain(written).min().unwrap_or_else(|| Instant::now() + LONG)
    }

    /// Answers requests whose time is over. Returns true if the master has been silent for as long, or has never sent
    /// anything on this connection: then the connection is of no use.
    fn end_overdue(&self, talk: &mut Conversation, now: Instant) -> bool {
        loop {
            let mut inbox = self.inbox.lock();
            if inbox.waiting.front().is_none_or(|waiting| waiting.deadline > now) {
                break;
            }
            let overdue = inbox.waiting.pop_front();
            drop(inbox);
            overdue.iter().for_each(|waiting| self.refuse_unsent(waiting, "it does not take requests"));
        }
        let mut is_overdue = false;
        while talk.deadlines.front().is_some_and(|(deadline, _)| *deadline <= now) {
            let unanswered =
                talk.deadlines.pop_front().and_then(|(_, opaque)| talk.unanswered.remove(&opaque));
            is_overdue |= unanswered.is_some();
            unanswered.iter().for_each(|unanswered| self.refuse_unanswered(unanswered, &self.no_answer()));
        }
        is_overdue && talk.heard_at.is_none_or(|at| now.duration_since(at) >= self.limits.timeout)
    }

    fn no_answer(&self) -> String {
        format!("no answer within {} ms (relay_timeout_ms)", self.limits.timeout.as_millis())
    }

    fn refuse_waiting(&self, reason: &str) {
        let waiting = std::mem::take(&mut self.inbox.lock().waiting);
        waiting.iter().for_each(|waiting| self.refuse_unsent(waiting, reason));
    }

    fn refuse_unsent(&self, waiting: &Waiting, reason: &str) {
        let remark = format!(
            "[RELAY] this broker is a replica and cannot reach its master {}: {reason}; try again later",
            self.address
        );
        Asker::of(&waiting.request).refuse(response_code::SERVICE_NOT_AVAILABLE, &remark);
    }

    fn fail_unanswered(&self, talk: Conversation, reason: &str) {
        talk.unanswered.values().for_each(|unanswered| self.refuse_unanswered(unanswered, reason));
    }

    fn refuse_unanswered(&self, unanswered: &Unanswered, reason: &str) {
        let remark = format!(
            "[RELAY] the master {} got this request and did not answer: {reason}; it may have been carried out, and a message that is sent again may be stored twice",
            self.address
        );
        unanswered.asker.refuse(response_code::SERVICE_NOT_AVAILABLE, &remark);
    }
}

impl Conversation {
    fn new(stream: TcpStream) -> Self {
        Conversation {
            transport: Transport::plain(stream, READ_BYTES),
            input: Vec::new(),
            output: Output::default(),
            unanswered: HashMap::default(),
            deadlines: VecDeque::new(),
            next_opaque: 0,
            heard_at: None,
        }
    }

    /// Lays a request out for writing and remembers who waits for its answer.
    fn lay_out(&mut self, waiting: Waiting, frame_bytes_max: usize) {
        let Waiting { request, deadline, share } = waiting;
        self.next_opaque = self.next_opaque.wrapping_add(1);
        let asker = Asker::of(&request);
        let before = self.output.tail().len();
        let written = request.header().and_then(|header| {
            let out = self.output.tail();
            let mut frame = copy_header(out, &asker, &header, self.next_opaque);
            frame.field(RELAYED, "true");
            frame.finish(request.body.len())?;
            check_lengths(&out[before..], frame_bytes_max).inspect_err(|_| out.truncate(before))
        });
        match written {
            Ok(_) => self.output.append(Body::Owned(request.body.clone())),
            Err(error) => {
                asker.refuse(response_code::SYSTEM_ERROR, &format!("[RELAY] it cannot be relayed: {error}"));
                return;
            }
        }
        if !asker.is_oneway {
            self.unanswered.insert(self.next_opaque, Unanswered { asker, _share: share });
            self.deadlines.push_back((deadline, self.next_opaque));
        }
    }

    /// Passes every whole answer in the input on to the client that waits for it.
    fn take_answers(&mut self, frame_bytes_max: usize) -> Result<(), WireError> {
        self.heard_at = Some(Instant::now());
        let mut start = 0;
        while let Some(frame) = next_frame(&self.input[start..], frame_bytes_max)? {
            start += frame.size;
            let header = Header::parse(frame.encoding, frame.header)?;
            // Requests of the master are meant for clients that are connected to it, and late answers come in vain.
            let asker = header.is_response().then(|| self.unanswered.remove(&header.opaque)).flatten();
            if let Some(Unanswered { asker, .. }) = asker {
                let mut answers = Answers::default();
                let out = answers.output.tail();
                if copy_header(out, &asker, &header, asker.opaque).finish(frame.body.len()).is_ok() {
                    answers.output.append(Body::Owned(Bytes::copy_from_slice(frame.body)));
                    let _gone = asker.peer.post(answers);
                }
            }
        }
        self.input.drain(..start);
        if self.input.is_empty() && self.input.capacity() > INPUT_BYTES_KEPT {
            self.input = Vec::new();
        }
        Ok(())
    }
}

/// Refuses a frame that the master would not read: it would close the connection, and with it lose the requests of all
/// others. A copy may be longer than its original, which had fewer characters escaped.
fn check_lengths(head: &[u8], frame_bytes_max: usize) -> Result<(), WireError> {
    match announced(head) {
        Some(Announced { header_length: length, .. }) if length > HEADER_BYTES_MAX => {
            Err(WireError::HeaderTooLong { length, limit: HEADER_BYTES_MAX })
        }
        Some(Announced { size: length, .. }) if length > frame_bytes_max => {
            Err(WireError::FrameTooLong { length, limit: frame_bytes_max })
        }
        _ => Ok(()),
    }
}

/// Copies a header with all its fields under another opaque.
fn copy_header<'a>(
    out: &'a mut Vec<u8>,
    asker: &Asker,
    header: &Header<'_>,
    opaque: i32,
) -> FrameEncoder<'a> {
    let mut frame = FrameEncoder::copy(out, asker.encoding, header, opaque);
    for (name, value) in header.fields().flatten() {
        frame.field(&name, &value);
    }
    frame
}
