use super::*;

const LIMITS: OffsetLimits = OffsetLimits { pairs_max: 100, places_max: 200 };

fn change(key: &str, committed: &[(i32, i64)], resets: &[(i32, i64)]) -> Change {
    (key.to_owned(), committed.iter().copied().collect(), resets.iter().copied().collect())
}

#[test]
fn only_what_changed_is_taken() {
    let offsets = Offsets::new(LIMITS);
    offsets.load(HashMap::from([("t@g".to_owned(), Queues::from([(0, 5)]))]));
    assert_eq!(offsets.take_changed(), [], "what was loaded is on disk");
    offsets.commit("g", "t", 0, 5, 1);
    assert_eq!(offsets.take_changed(), [], "the same offset again changes nothing");
    offsets.commit("g", "t", 0, 6, 1);
    offsets.commit("g", "t", 0, 7, 1);
    offsets.commit("h", "t", 3, 1, 1);
    assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 7)], &[]), change("t@h", &[(3, 1)], &[])]);
    offsets.commit("h", "t", 3, 2, 1);
    offsets.remove(Some("h"), None);
    assert_eq!(offsets.take_changed(), [change("t@h", &[], &[])]);
    offsets.commit("h", "t", 3, 2, 1);
    assert_eq!(offsets.take_changed(), [change("t@h", &[(3, 2)], &[])]);
    assert_eq!(offsets.take_changed(), []);
}

#[test]
fn the_end_of_a_queue_is_looked_up_only_for_offsets_beyond_the_last_one() {
    let offsets = Offsets::new(LIMITS);
    let mut asked = 0;
    let mut commit = |committed_offset: i64, end: i64| {
        offsets.commit_within("g", "t", 0, committed_offset, HERE, || {
            asked += 1;
            if committed_offset > end { Err(end) } else { Ok(end) }
        })
    };
    assert_eq!(commit(0, 0), Ok(true));
    assert_eq!(commit(1, 0), Err(CommitFault::Beyond(0)));
    assert_eq!((commit(3, 10), commit(10, 10), commit(2, 10)), (Ok(true), Ok(true), Ok(true)));
    assert_eq!(commit(11, 10), Err(CommitFault::Beyond(10)));
    assert_eq!(commit(11, 20), Ok(true));
    assert_eq!((asked, offsets.get("g", "t", 0)), (4, Some(11)));
    offsets.remove(None, Some("t"));
    let gone = offsets.commit_within("g", "t", 0, 1, HERE, || Err(0));
    assert_eq!(
        (gone, offsets.get("g", "t", 0)),
        (Err(CommitFault::Beyond(0)), None),
        "the topic was deleted, its ends with it"
    );
}

#[test]
fn offsets_are_found_by_group_and_by_topic_until_they_are_removed() {
    let offsets = Offsets::new(LIMITS);
    offsets.load(HashMap::from([("t@g".to_owned(), Queues::from([(0, 5)]))]));
    offsets.commit("g", "u", 1, 6, HERE);
    offsets.reset("h", "t", 0, 7);
    assert_eq!((offsets.topics_of("g"), offsets.groups_of("t")), (names("t u"), names("g h")));
    assert_eq!((offsets.of("g", "t"), offsets.of("h", "u")), (Queues::from([(0, 5)]), Queues::new()));
    offsets.remove(Some("g"), Some("t"));
    assert_eq!((offsets.topics_of("g"), offsets.groups_of("t")), (names("u"), names("h")));
    offsets.remove(None, Some("t"));
    offsets.remove(Some("g"), None);
    assert_eq!(offsets.resets.load(SeqCst), 0);
    let table = offsets.table.read();
    assert!(table.committed.is_empty() && table.resets.is_empty());
    assert!(table.topics_of_group.is_empty() && table.groups_of_topic.is_empty());
}

fn names(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn commits_are_read_back_and_removed_by_group_or_topic() {
    let offsets = Offsets::new(LIMITS);
    offsets.commit("g", "t", 0, 5, 1);
    offsets.commit("g", "u", 1, 6, 1);
    offsets.commit("h", "t", 0, 7, 1);
    assert_eq!(offsets.get("g", "t", 0), Some(5));
    assert_eq!(offsets.get("g", "t", 1), None);
    offsets.remove(Some("g"), Some("t"));
    assert_eq!(offsets.get("g", "t", 0), None);
    assert_eq!(offsets.get("g", "u", 1), Some(6));
    offsets.remove(None, Some("t"));
    assert_eq!(offsets.get("h", "t", 0), None);
    assert_eq!(offsets.snapshot().len(), 1);
}

const HERE: u64 = 1;
const ELSEWHERE: u64 = 2;

fn pull(offsets: &Offsets, asked_offset: i64, peer: u64) -> ResetStep {
    offsets.follow_reset("g", "t", 0, asked_offset, peer)
}

#[test]
fn a_reset_stands_against_commits_until_the_consumer_has_followed() {
    let offsets = Offsets::new(LIMITS);
    offsets.commit("g", "t", 0, 50, HERE);
    assert_eq!(pull(&offsets, 50, HERE), ResetStep::None);
    offsets.reset("g", "t", 0, 5);
    assert_eq!(offsets.get("g", "t", 0), Some(5));
    assert!(!offsets.commit("g", "t", 0, 51, HERE));
    assert_eq!(offsets.get("g", "t", 0), Some(5), "what it commits of the time before is not heard");
    offsets.commit("g", "t", 1, 7, HERE);
    assert_eq!(offsets.get("g", "t", 1), Some(7), "other queues are not touched");
    assert!(offsets.awaits_reset("g", "t", 0) && !offsets.awaits_reset("h", "t", 0));
    assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 5), (1, 7)], &[(0, 5)])]);
    assert_eq!(pull(&offsets, 51, HERE), ResetStep::Redirect(5));
    assert!(!offsets.commit("g", "t", 0, 52, HERE));
    assert_eq!(
        pull(&offsets, 51, HERE),
        ResetStep::Redirect(5),
        "a consumer that insists is sent there again"
    );
    assert_eq!(offsets.get("g", "t", 0), Some(5));
    assert_eq!(offsets.take_changed(), []);
    assert_eq!(pull(&offsets, 5, HERE), ResetStep::Ended, "it has followed");
    assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 5), (1, 7)], &[])]);
    assert!(offsets.commit("g", "t", 0, 6, HERE));
    assert_eq!(offsets.get("g", "t", 0), Some(6));
}

#[test]
fn only_an_informed_consumer_ends_a_reset() {
    let offsets = Offsets::new(LIMITS);
    offsets.reset("g", "t", 0, 900);
    // It pulls from there by chance and holds older messages.
    assert_eq!(pull(&offsets, 900, HERE), ResetStep::Redirect(900));
    assert_eq!(pull(&offsets, 900, ELSEWHERE), ResetStep::Redirect(900));
    assert!(!offsets.commit("g", "t", 0, 300, HERE));
    assert_eq!(pull(&offsets, 900, HERE), ResetStep::Ended);
    offsets.reset("g", "t", 0, 900);
    assert!(!offsets.commit("g", "t", 0, 900, HERE), "the consumer does not know of the second reset");
    assert_eq!(offsets.read("g", "t", 0, HERE), Some((900, true)));
    assert!(offsets.commit("g", "t", 0, 900, HERE), "it reads from a replica and commits here");
    assert_eq!(offsets.read("g", "t", 0, HERE), Some((900, false)));
    offsets.reset("g", "t", 0, 7);
    assert_eq!(offsets.read("g", "t", 0, HERE), Some((7, true)));
    for other in 0..INFORMED_MAX as u64 {
        assert_eq!(pull(&offsets, 1, 100 + other), ResetStep::Redirect(7));
    }
    assert_eq!(
        pull(&offsets, 7, HERE),
        ResetStep::Redirect(7),
        "the reset has forgotten it, and informs it again"
    );
    assert_eq!(pull(&offsets, 7, HERE), ResetStep::Ended);
}

#[test]
fn a_reset_goes_with_its_group() {
    let offsets = Offsets::new(LIMITS);
    offsets.take_changed();
    offsets.reset("g", "t", 0, 5);
    assert_eq!(offsets.take_changed().len(), 1, "a reset to where the group is already counts too");
    offsets.remove(Some("g"), None);
    assert_eq!(pull(&offsets, 9, HERE), ResetStep::None);
    offsets.assign("g", "t", 0, 3);
    assert_eq!(offsets.get("g", "t", 0), Some(3));
}

#[test]
fn there_is_a_limit_to_offsets_that_nobody_has_committed_yet() {
    let offsets = Offsets::new(LIMITS);
    let commit = |group: &str, queue_id, committed_offset| {
        offsets.commit_within(group, "t", queue_id, committed_offset, HERE, || Ok(9))
    };
    offsets.load(HashMap::from([("t@loaded".to_owned(), (0..150).map(|queue_id| (queue_id, 5)).collect())]));
    for queue_id in 0..50 {
        assert_eq!(commit("g", queue_id, 0), Ok(true));
    }
    let refused = commit("g", 50, 0).unwrap_err();
    assert!(remark(refused).contains("more than 200 queues, the limit (committed_offsets_max)"));
    assert!(!offsets.commit("g", "t", 50, 0, HERE));
    offsets.advance("g", "t", 50, 1);
    assert_eq!(offsets.get("g", "t", 50), None);
    assert_eq!((commit("g", 49, 3), commit("loaded", 7, 9)), (Ok(true), Ok(true)), "known ones go on");
    offsets.remove(Some("loaded"), None);
    for number in 0..99 {
        let group = format!("g{number}");
        assert_eq!(offsets.commit_within(&group, "t", 0, 0, number, || Ok(9)), Ok(true));
    }
    let refused = commit("one-more", 0, 0).unwrap_err();
    assert!(
        remark(refused)
            .contains("more than 100 pairs of a topic and a group, the limit (committed_pairs_max)")
    );
    assert_eq!(commit("g", 51, 0), Ok(true), "another queue of a known pair");
    assert!(!offsets.table.read().topics_of_group.contains_key("one-more"), "nothing is kept of it");
}

fn remark(fault: CommitFault) -> String {
    match fault {
        CommitFault::Full(full) => full.to_string(),
        CommitFault::Beyond(end) => format!("beyond {end}"),
    }
}

fn queues(count: i32) -> Vec<i32> {
    (0..count).collect()
}

#[test]
fn resets_fill_a_part_of_the_offsets_and_leave_the_rest_to_commits() {
    let offsets = Offsets::new(LIMITS);
    let may_reset = |group: &str, topics: &[(&str, &[i32])]| {
        offsets.check_resets(group, topics.iter().copied()).map_err(|full| full.to_string())
    };
    let reset = |group: &str, topic: &str, queues: &[i32]| {
        queues.iter().for_each(|queue_id| offsets.reset(group, topic, *queue_id, 0));
    };
    let refused = may_reset("g", &[("t", &queues(26))]).unwrap_err();
    assert!(refused.contains("the group would have committed offsets of more than 25 queues"), "{refused}");
    assert!(refused.contains("(an eighth of committed_offsets_max)"), "{refused}");
    let refused = may_reset("g", &[("t", &queues(13)), ("u", &queues(13))]).unwrap_err();
    assert!(refused.contains("25 queues"), "all topics of the request count: {refused}");
    for group in ["a", "b", "c", "d"] {
        assert_eq!(may_reset(group, &[("t", &queues(25))]), Ok(()));
        reset(group, "t", &queues(25));
        assert!(may_reset(group, &[("u", &[0])]).is_err());
    }
    let refused = may_reset("e", &[("t", &[0])]).unwrap_err();
    assert!(refused.contains("100 queues, the limit for resets and copies (half of committed_offsets_max)"));
    assert_eq!(may_reset("a", &[("t", &queues(25))]), Ok(()), "what is there already may move");
    assert_eq!(offsets.commit_within("e", "t", 0, 3, HERE, || Ok(9)), Ok(true), "consumers go on");
    offsets.remove(Some("a"), None);
    assert_eq!(may_reset("e", &[("t", &queues(24))]), Ok(()));
    assert!(
        may_reset("e", &[("t", &queues(26))]).is_err(),
        "the one that was committed is in the group's share"
    );
}

#[test]
fn resets_fill_a_part_of_the_pairs_too() {
    let offsets = Offsets::new(LIMITS);
    let topics: Vec<String> = (0..13).map(|number| format!("t{number}")).collect();
    let wanted: Vec<(&str, &[i32])> = topics.iter().map(|topic| (topic.as_str(), &[0][..])).collect();
    let refused = offsets.check_resets("g", wanted.iter().copied()).unwrap_err().to_string();
    assert!(refused.contains("more than 12 pairs") && refused.contains("an eighth of committed_pairs_max"));
    assert!(offsets.check_resets("g", wanted[..12].iter().copied()).is_ok());
    for number in 0..50 {
        offsets.commit(&format!("g{number}"), "t", 0, 0, HERE);
    }
    let refused = offsets.check_resets("g", wanted[..1].iter().copied()).unwrap_err().to_string();
    assert!(refused.contains("more than 50 pairs") && refused.contains("half of committed_pairs_max"));
}

#[test]
fn one_address_does_not_use_up_the_offsets_that_all_need() {
    let offsets = Offsets::new(LIMITS);
    let commit = |group: &str, queue_id, peer: u64| {
        offsets.commit_within(group, "t", queue_id, 0, peer, || Ok(0)).map_err(|fault| match fault {
            CommitFault::Full(full) => full.to_string(),
            CommitFault::Beyond(_) => String::new(),
        })
    };
    let taken = (0..LIMITS.places_max as i32).take_while(|queue_id| commit("a", *queue_id, 1).is_ok());
    assert_eq!(taken.count(), LIMITS.places_max / 2);
    let refused = commit("b", 0, 1).unwrap_err();
    assert!(
        refused.contains("this address") && refused.contains("half of committed_offsets_max"),
        "{refused}"
    );
    assert!(commit("a", 0, 1).is_ok(), "what is known goes on");
    let taken = (0..LIMITS.places_max as i32).take_while(|queue_id| commit("b", *queue_id, 2).is_ok());
    assert_eq!(taken.count(), LIMITS.places_max / 2);
    assert!(commit("c", 0, 3).unwrap_err().contains("the limit (committed_offsets_max)"));
}

#[test]
fn changes_are_taken_in_parts_and_each_of_them_once() {
    let limits = OffsetLimits { pairs_max: 10_000, places_max: 10_000 };
    let offsets = Offsets::new(limits);
    let count = TAKEN_AT_ONCE * 2 + 1;
    for number in 0..count {
        offsets.commit(&format!("g{number}"), "t", 0, 1, 1);
    }
    let mut keys = BTreeSet::new();
    for part in 0..3 {
        let (changes, is_more) = offsets.take_some_changed();
        assert!(changes.len() <= TAKEN_AT_ONCE);
        assert_eq!(is_more, part < 2, "what changes in between belongs to the next round");
        keys.extend(changes.into_iter().map(|(key, ..)| key));
        offsets.commit("new", "t", part, 1, 1);
    }
    assert_eq!(keys.len(), count);
    assert_eq!(offsets.take_changed(), [change("t@new", &[(0, 1), (1, 1), (2, 1)], &[])]);
}
