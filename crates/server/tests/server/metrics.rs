//! The page of metrics of a broker plane.

use metaq_server::Scrape;

use crate::support::request_code::{
    PULL_MESSAGE, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2, UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;

fn page(plane: &Plane) -> String {
    scrape(plane, 100_000).0
}

fn scrape(plane: &Plane, series_max: usize) -> (String, u64) {
    let scraped = plane.broker().scrape(&Scrape { common: Vec::new(), series_max, by_topic: true });
    (scraped.text, scraped.dropped)
}

/// The value of the only series of this name whose labels contain the text.
#[track_caller]
fn value(page: &str, name: &str, labels: &str) -> f64 {
    let lines: Vec<&str> =
        page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(labels)).collect();
    assert_eq!(lines.len(), 1, "{name} with {labels} in\n{page}");
    lines[0].rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn commit(client: &mut Client, queue_offset: &str) {
    let fields = but(queue_fields(), &[("consumerGroup", GROUP), ("commitOffset", queue_offset)]);
    assert_eq!(client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"").code, response_code::SUCCESS);
}

#[test]
fn sends_are_counted_by_topic_and_kind() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put("one");
    client.put(&"x".repeat(5_000));
    let ordered = properties(&[("__SHARDINGKEY", "k")]);
    client.ask(SEND_MESSAGE_V2, &send_fields(&ordered), b"ordered");
    let many = batch(&[("a", ""), ("b", ""), ("c", "")]);
    client.ask(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &many);

    let page = page(&plane);
    let (normal, fifo) = ("message_type=\"normal\"", "message_type=\"fifo\"");
    assert_eq!(value(&page, "rocketmq_messages_in_total", normal), 5.0);
    assert_eq!(value(&page, "rocketmq_messages_in_total", fifo), 1.0);
    let bytes = value(&page, "rocketmq_throughput_in_total", normal)
        + value(&page, "rocketmq_throughput_in_total", fifo);
    assert_eq!(bytes as i64, plane.store.end_offset(), "every byte of the log came in by one of them");
    assert_eq!(value(&page, "rocketmq_message_size_count", normal), 3.0, "a batch is one request");
    assert_eq!(
        value(&page, "rocketmq_message_size_bucket", &format!("{normal},is_system=\"false\",le=\"4096.0\"")),
        2.0
    );
    assert_eq!(
        value(&page, "rocketmq_rpc_latency_milliseconds_count", "request_code=\"310\",response_code=\"0\""),
        3.0
    );
}

#[test]
fn what_a_group_got_and_what_waits_for_it_is_counted() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for body in ["one", "two", "three", "four"] {
        client.put(body);
    }
    commit(&mut client, "1");
    plane.advance_ms(5_000);
    let group = "consumer_group=\"readers\"";
    let quiet = page(&plane);
    assert_eq!(value(&quiet, "rocketmq_consumer_lag_messages", group), 3.0);
    assert_eq!(value(&quiet, "rocketmq_consumer_lag_latency_milliseconds", group), 5_000.0);
    assert_eq!(value(&quiet, "rocketmq_consumer_inflight_messages", group), 0.0);
    assert_eq!(value(&quiet, "rocketmq_consumer_ready_messages", group), 3.0);

    let answer = client.ask(PULL_MESSAGE, &but(pull_fields(1), &[("maxMsgNums", "2")]), b"");
    assert_eq!(answer.bodies(), ["two", "three"]);
    let pulled = page(&plane);
    assert_eq!(value(&pulled, "rocketmq_messages_out_total", group), 2.0);
    assert_eq!(value(&pulled, "rocketmq_throughput_out_total", group) as usize, answer.body.len());
    assert_eq!(value(&pulled, "rocketmq_consumer_lag_messages", group), 3.0, "nothing is committed");
    assert_eq!(value(&pulled, "rocketmq_consumer_inflight_messages", group), 2.0);
    assert_eq!(value(&pulled, "rocketmq_consumer_ready_messages", group), 1.0);

    assert_eq!(plane.broker().unsettled(GROUP, 10), [(TOPIC.to_owned(), 0, 3, Some(1))]);
    assert_eq!(plane.broker().unsettled(GROUP, 0), []);
    assert_eq!(plane.broker().unsettled("strangers", 10), []);

    commit(&mut client, "4");
    assert_eq!(plane.broker().unsettled(GROUP, 10), []);
    let done = page(&plane);
    assert_eq!(value(&done, "rocketmq_consumer_lag_messages", group), 0.0);
    assert_eq!(value(&done, "rocketmq_consumer_lag_latency_milliseconds", group), 0.0);
    assert_eq!(value(&done, "rocketmq_consumer_queueing_latency_milliseconds", group), 0.0);
}

#[test]
fn how_far_dead_letters_were_sent_again_is_no_lag() {
    let dead = format!("%DLQ%{GROUP}");
    let plane = Plane::with(|setup| {
        setup.topics.push(topic(&dead));
        setup.groups.push(group("others"));
    });
    let mut client = plane.connect();
    for (name, at) in [(GROUP, "0"), ("others", "0")] {
        let fields = but(queue_fields(), &[("topic", &dead), ("consumerGroup", name), ("commitOffset", at)]);
        assert_eq!(client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"").code, response_code::SUCCESS);
    }
    let page = page(&plane);
    let lag = "rocketmq_consumer_lag_messages";
    assert!(
        !page.lines().any(|line| line.starts_with(lag) && line.contains(&format!("\"{GROUP}\""))),
        "{page}"
    );
    assert_eq!(value(&page, lag, "consumer_group=\"others\""), 0.0, "others consume it as a topic");
}

#[test]
fn a_pull_that_was_held_counts_as_long_polling() {
    let plane = Plane::start();
    let (mut consumer, mut producer) = (plane.connect(), plane.connect());
    let held = but(pull_fields(0), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")]);
    consumer.send(PULL_MESSAGE, &held, b"");
    eventually("the pull is held", || plane.counts().held == 1);
    producer.put("awaited");
    assert_eq!(consumer.answer().bodies(), ["awaited"]);
    let page = page(&plane);
    let name = "rocketmq_rpc_latency_milliseconds_count";
    assert_eq!(value(&page, name, "request_code=\"11\",response_code=\"0\",is_long_polling=\"true\""), 1.0);
    assert!(!page.contains("request_code=\"11\",response_code=\"0\",is_long_polling=\"false\""));
}

#[test]
fn a_dead_letter_counts_when_it_is_stored() {
    let (retries, dead) = (format!("%RETRY%{GROUP}"), format!("%DLQ%{GROUP}"));
    let plane = Plane::with(|setup| setup.topics.extend([topic(&retries), topic(&dead)]));
    let mut client = plane.connect();
    let origin = properties(&[("RETRY_TOPIC", TOPIC)]);
    let fields = but(send_fields(&origin), &[("b", &retries), ("j", "17")]);
    let too_large = vec![b'x'; 65 * 1024];
    assert_ne!(client.ask(SEND_MESSAGE_V2, &fields, &too_large).code, response_code::SUCCESS);
    assert!(!page(&plane).contains("rocketmq_send_to_dlq_messages_total{"));
    assert_eq!(client.ask(SEND_MESSAGE_V2, &fields, b"given up").code, response_code::SUCCESS);
    let labels = format!("topic=\"{TOPIC}\"");
    assert_eq!(value(&page(&plane), "rocketmq_send_to_dlq_messages_total", &labels), 1.0);
    assert_eq!(plane.bodies(&dead, 0), ["given up"]);
}

#[test]
fn pulls_are_counted_from_their_first_message_on() {
    let names: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    let plane = Plane::with(|setup| {
        setup.topics[0].read_queues = 10_000;
        setup.groups.extend(names.iter().map(|name| group(name)));
    });
    let mut client = plane.connect();
    let counted = || {
        let policy = plane.broker().policy.read();
        let pairs: usize = policy.groups().map(|group| group.traffic.all().len()).sum();
        (pairs, plane.broker().policy.queues_counted())
    };
    for name in &names {
        // It brings its own subscription, so it needs no heartbeat.
        let fields = but(pull_fields(0), &[("consumerGroup", name), ("sysFlag", "4"), ("subscription", "*")]);
        assert_eq!(client.ask(PULL_MESSAGE, &fields, b"").code, response_code::PULL_NOT_FOUND);
    }
    assert_eq!(counted(), (0, 0), "a pull that finds nothing leaves nothing");
    client.put("one");
    for name in &names[..7] {
        let fields = but(pull_fields(0), &[("consumerGroup", name)]);
        assert_eq!(client.ask(PULL_MESSAGE, &fields, b"").bodies(), ["one"]);
    }
    assert_eq!(counted(), (7, 7), "one place for each queue that was handed out");
}

#[test]
fn a_page_has_a_limit_and_says_what_it_left_out() {
    let plane = Plane::with(|setup| setup.topics.extend((0..20).map(|number| topic(&format!("t{number}")))));
    let mut client = plane.connect();
    for number in 0..20 {
        client.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("b", &format!("t{number}"))]), b"x");
    }
    let (whole, none) = scrape(&plane, 100_000);
    assert_eq!((whole.matches("rocketmq_messages_in_total{").count(), none), (20, 0));
    let (cut, dropped) = scrape(&plane, 60);
    let series = cut.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 60, "{series} series");
    assert!(dropped > 0);
}

#[test]
fn a_topic_that_is_gone_is_counted_no_more() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put("one");
    client.ask(PULL_MESSAGE, &pull_fields(0), b"");
    assert!(page(&plane).contains("rocketmq_messages_out_total{"));
    plane.broker().policy.remove_topic(TOPIC);
    let page = page(&plane);
    assert!(!page.contains(TOPIC), "{page}");
}
