//! Acknowledgements wait until the store confirms the message.

use std::io::ErrorKind;

use metaq_store::boot_time_ms;
use metaq_store::faulty_disk::Call;
use metaq_wire::Encoding;

use crate::support::request_code::{
    END_TRANSACTION, GET_MAX_OFFSET, PULL_MESSAGE, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2,
};
use crate::support::*;

const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";

/// A data plane whose disk hangs on every sync of the log, and whose senders wait only a moment.
fn hanging() -> Plane {
    let plane = Plane::with(|setup| setup.broker.flush_timeout_ms = 1);
    plane.disk.stall(Call::SyncMapped, "commitlog");
    plane
}

#[test]
fn an_acknowledgement_waits_for_the_disk() {
    let plane = Plane::start();
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let mut client = plane.connect();
    let first = client.send(SEND_MESSAGE_V2, &send_fields(""), b"one");
    client.expect_silence();
    let second = client.send(SEND_MESSAGE_V2, &send_fields(""), b"two");
    client.expect_silence();
    plane.disk.heal();
    for (opaque, queue_offset) in [(first, 0), (second, 1)] {
        let answer = client.answer();
        assert_eq!((answer.code, answer.opaque), (response_code::SUCCESS, opaque));
        assert_eq!(answer.number("queueOffset"), queue_offset);
    }
}

#[test]
fn consumers_see_a_message_when_it_is_confirmed_and_not_before() {
    let plane = Plane::start();
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let (mut sender, mut reader) = (plane.connect(), plane.connect());
    let held = but(pull_fields(0), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")]);
    reader.send(PULL_MESSAGE, &held, b"");
    reader.expect_silence();
    sender.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    sender.expect_silence();
    assert_eq!(reader.ask(GET_MAX_OFFSET, &queue_fields(), b"").number("offset"), 0);
    plane.disk.heal();
    assert_eq!(reader.answer().bodies(), ["m"]);
    assert_eq!(sender.answer().code, response_code::SUCCESS);
}

#[test]
fn a_disk_that_takes_too_long_is_answered_as_a_time_out_with_the_same_fields() {
    let mut answers = Vec::new();
    let key = properties(&[("UNIQ_KEY", "K\"1\\"), ("TIMER_DELAY_SEC", "5")]);
    for encoding in [Encoding::Json, Encoding::Binary] {
        for plane in [Plane::start(), hanging()] {
            plane.broker().due_times.set_recall_key(b"secret".to_vec());
            let mut client = plane.connect_with(encoding);
            answers.push(client.ask(SEND_MESSAGE_V2, &send_fields(&key), b"m"));
        }
    }
    for pair in answers.chunks(2) {
        let [success, late] = pair else { unreachable!() };
        assert_eq!(success.code, response_code::SUCCESS);
        late.refuses(response_code::FLUSH_DISK_TIMEOUT, "[FLUSH] the disk did not confirm in time");
        assert_eq!((&late.fields, &late.body), (&success.fields, &success.body));
        assert_eq!(late.field("transactionId"), "K\"1\\");
        assert!(late.fields.contains_key("recallHandle"));
    }
}

#[test]
fn a_batch_and_a_commit_that_take_too_long_are_answered_as_time_outs() {
    let plane = hanging();
    let mut client = plane.connect();
    let body = batch(&[("one", ""), ("two", "")]);
    let late = client.ask(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body);
    assert_eq!((late.code, late.number("queueOffset")), (response_code::FLUSH_DISK_TIMEOUT, 0));
    assert_eq!(late.field("msgId").split(',').count(), 2);
    plane.disk.heal();
    let pairs = [("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP), ("UNIQ_KEY", "K")];
    while client.ask(SEND_MESSAGE_V2, &send_fields(&properties(&pairs)), b"half").code != 0 {}
    let half = plane.read(HALF_TOPIC, 0).pop().unwrap();
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let end = vec![
        ("producerGroup", PRODUCER_GROUP.to_owned()),
        ("tranStateTableOffset", half.queue_offset.to_string()),
        ("commitLogOffset", half.physical_offset.to_string()),
        ("commitOrRollback", "8".to_owned()),
    ];
    let late = client.ask(END_TRANSACTION, &end, b"");
    assert_eq!((late.code, late.fields.len()), (response_code::FLUSH_DISK_TIMEOUT, 0));
}

#[test]
fn a_sender_that_does_not_wait_is_answered_while_the_disk_hangs() {
    let plane = Plane::start();
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let mut client = plane.connect();
    let waiting = client.send(SEND_MESSAGE_V2, &send_fields(""), b"waits");
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(&[("WAIT", "false")])), b"m");
    assert_eq!((answer.code, answer.number("queueOffset")), (response_code::SUCCESS, 1));
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(9), b"").code, response_code::PULL_OFFSET_MOVED);
    plane.disk.heal();
    assert_eq!(client.answer().opaque, waiting);
}

#[test]
fn after_a_failed_sync_nothing_is_called_stored() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let plane = Plane::start();
        let mut client = plane.connect_with(encoding);
        client.put("safe");
        plane.disk.fail(Call::SyncMapped, "commitlog", ErrorKind::Other);
        let mut bytes = Vec::new();
        let opaques = [b"lost", b"too "]
            .map(|body| client.frame(&mut bytes, SEND_MESSAGE_V2, 0, &send_fields(""), body));
        client.write(&bytes);
        for opaque in opaques {
            let answer = client.answer();
            assert_eq!(answer.opaque, opaque);
            answer.refuses(response_code::SYSTEM_ERROR, "a sync of the commit log failed");
            assert!(answer.fields.is_empty());
        }
        let answer = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"refused");
        answer.refuses(response_code::SERVICE_NOT_AVAILABLE, "sync");
        assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies()[0], "safe", "reads go on");
    }
}

#[test]
fn with_asynchronous_flush_nobody_waits() {
    let plane = Plane::with(|setup| {
        setup.store.sync_flush = false;
    });
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let mut client = plane.connect();
    client.put("one");
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["one"]);
}

#[test]
fn a_copy_that_the_disk_does_not_confirm_is_an_error() {
    let plane = Plane::with(|setup| setup.broker.flush_timeout_ms = 50);
    let mut client = plane.connect();
    while client.ask(SEND_MESSAGE_V2, &send_fields(""), b"m").code != response_code::SUCCESS {}
    let physical_offset = plane.read(TOPIC, 0)[0].physical_offset;
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let resend = metaq_server::Resend {
        physical_offset,
        topic: TOPIC.to_owned(),
        queue_id: 1,
        reconsume_times: 1,
        delay_level: 0,
        drop: Vec::new(),
        set: Vec::new(),
        system_names: Vec::new(),
    };
    let error = plane.broker().sends.resend(&resend).unwrap_err();
    assert!(error.to_string().contains("did not confirm it in time"), "{error}");
}

#[test]
fn after_a_lease_sends_are_refused_and_those_under_way_time_out() {
    let plane = Plane::with(|setup| setup.broker.flush_timeout_ms = 1_000);
    plane.store.acknowledge_until(Some(boot_time_ms() + 3_600_000));
    let mut client = plane.connect();
    assert_eq!(client.ask(SEND_MESSAGE_V2, &send_fields(""), b"in time").code, response_code::SUCCESS);
    plane.disk.stall(Call::SyncMapped, "commitlog");
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"under way");
    client.expect_silence();
    plane.store.acknowledge_until(Some(boot_time_ms()));
    plane.disk.heal();
    assert_eq!(client.answer().code, response_code::FLUSH_SLAVE_TIMEOUT);
    let refused = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"too late");
    assert_eq!(refused.code, response_code::SERVICE_NOT_AVAILABLE);
    assert!(refused.remark.contains("still the master"), "{}", refused.remark);
}

#[test]
fn a_master_that_was_replaced_stops_at_once_and_says_that_nothing_is_sure() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let plane = Plane::start();
        plane.store.gate_confirmation(0);
        let mut client = plane.connect_with(encoding);
        let opaque = client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
        client.expect_silence();
        plane.broker_plane.stop(false);
        let answer = client.answer();
        assert_eq!((answer.opaque, answer.number("queueOffset")), (opaque, 0));
        answer.refuses(response_code::FLUSH_SLAVE_TIMEOUT, "stopped being the master");
        client
            .ask(SEND_MESSAGE_V2, &send_fields(""), b"m")
            .refuses(response_code::SERVICE_NOT_AVAILABLE, "[ROLE]");
    }
}

#[test]
fn a_master_that_stops_waits_for_confirmations() {
    let plane = Plane::start();
    plane.store.gate_confirmation(0);
    let mut client = plane.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    client.expect_silence();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| plane.broker_plane.stop(true));
        eventually("the plane is detached", || {
            client.ask(GET_MAX_OFFSET, &queue_fields(), b"").code == response_code::SERVICE_NOT_AVAILABLE
        });
        assert!(!stopping.is_finished());
        plane.store.confirm_replicated(plane.store.end_offset());
    });
    assert_eq!(client.answer().code, response_code::SUCCESS);
}
