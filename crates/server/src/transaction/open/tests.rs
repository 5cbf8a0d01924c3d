use super::*;

const BYTES_MAX: usize = 1 << 20;
const PLAIN: Kind = Kind {
    immunity_ms: -1,
    is_batch: false,
    group: NameKey::numbered(1),
    topic: NameKey::numbered(2),
    address: NameKey::numbered(3),
    bytes: 500,
};

fn settings() -> TransactionSettings {
    TransactionSettings {
        timeout_ms: 6_000,
        immunity_ms_max: 86_400_000,
        open_max: 10,
        open_per_group_max: 10,
        open_per_address_max: 10,
        ended_kept: 64,
        renew_bytes_max: 1 << 20,
        message_keys_max: 64,
    }
}

fn half(stored_ms: i64) -> Half {
    Half::new(stored_ms * 10, stored_ms, stored_ms, PLAIN)
}

fn ledger(count: i64) -> Ledger {
    let mut ledger = Ledger::new(&settings());
    (0..count).for_each(|queue_offset| ledger.open(queue_offset, half(1000 + queue_offset)));
    ledger
}

fn look(now_ms: i64) -> Look {
    Look { now_ms, timeout_ms: 6_000, renew_ms: 60_000, stored_before_ms: now_ms, count_max: 10 }
}

#[test]
fn the_kept_offset_moves_over_what_has_ended_and_no_further() {
    let mut ledger = ledger(3);
    assert_eq!(ledger.offsets(), (0, 0));
    ledger.end(1, End::Committed);
    ledger.note_done(0, 1, 100);
    assert_eq!(ledger.offsets(), (0, 0));
    ledger.end(0, End::RolledBack);
    ledger.note_done(1, 0, 200);
    assert_eq!(ledger.offsets(), (2, 2));
    ledger.end(2, End::Committed);
    assert_eq!(ledger.offsets(), (3, 2), "an end that is not written yet needs no record below the offset");
    let unwritten: Vec<_> = ledger.unwritten.iter().map(|done| (done.queue_offset, done.log_end)).collect();
    assert_eq!((unwritten.as_slice(), ledger.appended_end), (&[(1, 0), (0, 100), (2, 200)][..], 200));
}

#[test]
fn a_group_has_a_limit_of_its_own() {
    let mut ledger = Ledger::new(&TransactionSettings { open_per_group_max: 2, ..settings() });
    let (one, other) = (NameKey::of(b"one"), NameKey::of(b"other"));
    let begin = |ledger: &mut Ledger, queue_offset: i64, group: NameKey| {
        ledger.open(queue_offset, Half::new(7, 1_000, 1_000, Kind { group, ..PLAIN }));
    };
    let is_full = |ledger: &Ledger, group: NameKey| ledger.full(&Kind { group, ..PLAIN }).is_some();
    begin(&mut ledger, 0, one);
    begin(&mut ledger, 1, one);
    assert_eq!((is_full(&ledger, one), is_full(&ledger, other)), (true, false));
    ledger.replace(0, 2, Half::new(8, 1_000, 2_000, Kind { group: one, ..PLAIN }));
    assert!(is_full(&ledger, one), "a copy takes the place of its original");
    ledger.end(2, End::Committed);
    assert!(!is_full(&ledger, one));
    assert_eq!(ledger.open_of_topic().get(&PLAIN.topic), Some(&1), "one of the topic is still open");
    ledger.end(1, End::Committed);
    assert!(ledger.open_in_group(one) == 0 && ledger.open_of_topic().is_empty());
}

#[test]
fn a_kill_finds_what_is_stored_of_a_commit_that_was_cut_short() {
    let mut ledger = ledger(4);
    ledger.note_appended(500);
    ledger.end(0, End::Committed);
    ledger.note_partial_commit(1, 2, 120);
    ledger.note_partial_commit(1, 3, 700);
    ledger.note_appended(800);
    ledger.end(2, End::Committed);
    ledger.replace(1, 4, half(5_000));
    assert_eq!((ledger.stored_of(1), ledger.stored_of(4)), (0, 3));
    ledger.note_appended(900);
    ledger.end(3, End::RolledBack);
    ledger.end(4, End::Committed);
    assert_eq!(ledger.stored_of(4), 0);
    let log_ends: Vec<_> = ledger.unwritten.iter().map(|done| (done.queue_offset, done.log_end)).collect();
    assert_eq!(log_ends, [(0, 500), (2, 120), (1, 120), (3, 120), (4, 900)]);
    ledger.note_partial_commit(4, 3, 120);
    assert_eq!(ledger.stored_of(4), 0, "it has ended");
}

#[test]
fn an_end_is_remembered_under_every_copy() {
    let mut ledger = ledger(2);
    ledger.replace(0, 2, half(5_000));
    ledger.replace(2, 3, half(6_000));
    assert_eq!(ledger.standing(0), Standing::Open(3));
    assert_eq!(ledger.standing(2), Standing::Open(3));
    ledger.end(3, End::Committed);
    for copy in [0, 2, 3] {
        assert_eq!(ledger.standing(copy), Standing::Ended(End::Committed));
    }
    assert!(ledger.moved.is_empty());
    assert_eq!(ledger.standing(1), Standing::Open(1));
    assert_eq!(ledger.standing(settings().ended_kept as i64 + 3), Standing::Forgotten);
    assert_eq!(ledger.offsets().0, 1);
}

#[test]
fn after_a_restart_an_open_one_is_found_under_its_first_place() {
    let loaded = || {
        let mut ledger = ledger(0);
        ledger.replace(3, 5, half(6_000));
        ledger
    };
    let mut by_moves = loaded();
    by_moves.link(2, 3);
    by_moves.link(0, 2);
    by_moves.link(7, 9);
    by_moves.link_first(0, 5);
    let mut by_first = loaded();
    by_first.link_first(0, 5);
    by_first.link_first(5, 5);
    by_first.link_first(-1, 5);
    for (mut ledger, places) in [(by_moves, &[0, 2, 3, 5][..]), (by_first, &[0, 3, 5])] {
        assert!(places.iter().all(|place| ledger.standing(*place) == Standing::Open(5)));
        ledger.end(5, End::Committed);
        assert!(places.iter().all(|place| ledger.standing(*place) == Standing::Ended(End::Committed)));
        assert!(ledger.moved.is_empty());
    }
}

#[test]
fn a_half_message_is_due_after_its_time_and_once_per_turn() {
    let mut ledger = ledger(1);
    ledger.open(1, Half::new(7, 1_000, 1_000, Kind { immunity_ms: 30_000, ..PLAIN }));
    ledger.open(2, Half::new(8, 99_999_999, 1_000, PLAIN));
    let places = |ledger: &mut Ledger, look: &Look| {
        ledger.due(look, BYTES_MAX).into_iter().map(|(queue_offset, _)| queue_offset).collect::<Vec<_>>()
    };
    assert_eq!(places(&mut ledger, &look(7_000)), [0_i64; 0]);
    assert_eq!(places(&mut ledger, &look(7_001)), [0, 2], "a clock that runs ahead is not believed");
    assert_eq!(places(&mut ledger, &look(31_001)), [0, 1, 2]);
    assert_eq!(places(&mut ledger, &Look { count_max: 1, ..look(31_001) }), [0]);
    ledger.replace(0, 3, Half::new(9, 1_000, 40_000, PLAIN));
    assert_eq!(places(&mut ledger, &look(40_000)), [1, 2]);
}

#[test]
fn a_half_message_is_immune_for_the_time_that_its_producer_or_the_broker_gives() {
    let immune = |immunity_ms, now_ms| {
        let kind = Kind { immunity_ms, ..PLAIN };
        Half::new(0, 1_000, 1_000, kind).is_immune(&look(now_ms))
    };
    assert!(immune(-1, 7_000) && !immune(-1, 7_001));
    assert!(immune(7_000, 8_000) && !immune(7_000, 8_001));
    assert!(!immune(0, 1_001));
}

#[test]
fn no_producer_gets_more_immunity_than_the_limit() {
    let mut ledger = Ledger::new(&TransactionSettings { immunity_ms_max: 600_000, ..settings() });
    for (queue_offset, is_batch) in [(0, false), (1, true)] {
        let kind = Kind { immunity_ms: immunity_ms(Some(b"2147483647")), is_batch, ..PLAIN };
        ledger.open(queue_offset, Half::new(7, 1_000, 1_000, kind));
    }
    assert!(ledger.half(0).is_some_and(|half| half.is_immune(&look(601_000))));
    assert!(ledger.half(0).is_some_and(|half| !half.is_immune(&look(601_001))));
    assert_eq!(ledger.due(&look(601_001), BYTES_MAX).len(), 2, "one that holds many as well");
    ledger.replace(0, 2, Half::new(8, 1_000, 700_000, Kind { immunity_ms: i64::MAX, ..PLAIN }));
    assert!(ledger.half(2).is_some_and(|half| !half.is_immune(&look(700_000))), "a copy as well");
}

#[test]
fn what_lies_at_one_place_for_long_is_due_for_a_copy() {
    let mut ledger = Ledger::new(&settings());
    ledger.open(0, Half::new(7, 1_000, 1_000, Kind { immunity_ms: 3_600_000, ..PLAIN }));
    assert!(ledger.due(&look(61_000), BYTES_MAX).is_empty());
    assert_eq!(ledger.due(&look(61_001), BYTES_MAX).len(), 1);
}

#[test]
fn an_immune_one_is_stored_again_when_its_age_has_doubled() {
    let (day_ms, kind) = (86_400_000, Kind { immunity_ms: 86_400_000, ..PLAIN });
    let mut ledger = Ledger::new(&settings());
    ledger.open(0, Half::new(7, 1_000, 1_000, kind));
    let mut copies = 0;
    for now_ms in (1_000..1_000 + day_ms).step_by(30_000) {
        for (queue_offset, half) in ledger.due(&look(now_ms), BYTES_MAX) {
            copies += 1;
            ledger.replace(queue_offset, queue_offset + 1, half.stored_again(7, now_ms));
        }
    }
    assert_eq!(copies, 10, "and not one every minute and a half");
    assert_eq!(
        ledger.due(&look(day_ms + 1_001), BYTES_MAX).len(),
        1,
        "its producer is asked when it must be"
    );
}

#[test]
fn what_an_address_has_beyond_its_share_waits_for_the_next_turn() {
    let mut ledger = Ledger::new(&TransactionSettings { renew_bytes_max: 2_000_000, ..settings() });
    let large = Kind { bytes: 1_000_000, ..PLAIN };
    let other = Kind { address: NameKey::numbered(4), ..large };
    for (queue_offset, kind) in [(0, large), (1, large), (2, large), (3, other)] {
        ledger.open(queue_offset, Half::new(7, 1_000, 1_000, kind));
    }
    let mut taken = |look: &Look, bytes_max| {
        let due = ledger.due(look, bytes_max);
        for (queue_offset, half) in &due {
            ledger.replace(*queue_offset, queue_offset + 10, half.stored_again(8, look.now_ms));
        }
        due.into_iter().map(|(queue_offset, _)| queue_offset).collect::<Vec<_>>()
    };
    let first = look(10_000);
    assert_eq!(taken(&first, 1), [0], "what is not taken is not counted");
    assert_eq!(taken(&first, usize::MAX), [1, 3]);
    assert_eq!(taken(&first, usize::MAX), [0_i64; 0]);
    assert_eq!(taken(&Look { stored_before_ms: 10_001, ..look(10_000) }, usize::MAX), [2, 10, 13]);
}

#[test]
fn one_that_holds_many_is_looked_at_when_its_age_has_doubled() {
    let mut ledger = Ledger::new(&settings());
    let kind = Kind { immunity_ms: 10_000, is_batch: true, ..PLAIN };
    ledger.open(0, Half::new(7, 1_000, 1_000, kind));
    let looks = |ledger: &mut Ledger, from_ms: i64, until_ms: i64| {
        (from_ms..=until_ms)
            .step_by(1_000)
            .find(|now_ms| !ledger.due(&look(*now_ms + 1), BYTES_MAX).is_empty())
    };
    assert_eq!(looks(&mut ledger, 1_000, 900_000), Some(61_000));
    ledger.replace(0, 1, Half::new(8, 1_000, 61_000, kind));
    assert_eq!(looks(&mut ledger, 61_000, 900_000), Some(121_000));
    ledger.replace(1, 2, Half::new(9, 1_000, 121_000, kind));
    assert_eq!(looks(&mut ledger, 121_000, 900_000), Some(241_000));
    let mut ledger = Ledger::new(&settings());
    ledger.open(0, Half::new(7, 1_000, 3_600_000, kind));
    assert_eq!(
        looks(&mut ledger, 3_600_000, 3_700_000),
        Some(3_660_000),
        "its producer's clock is an hour late"
    );
}

#[test]
fn fates_come_back_from_their_text() {
    for fate in [Fate::Ended(End::Committed), Fate::Ended(End::GivenUp), Fate::MovedTo(77)] {
        assert_eq!(Fate::read(&fate.text()), Some(fate));
    }
    for text in ["", "0", "4", ">", ">x", "-1"] {
        assert_eq!(Fate::read(text), None, "{text}");
    }
}

#[test]
fn immunity_times_as_properties_have_them() {
    assert_eq!(immunity_ms(Some(b"30")), 30_000);
    assert_eq!(immunity_ms(Some(b"0")), 0);
    assert_eq!(immunity_ms(Some(b"-1")), -1);
    assert_eq!(immunity_ms(Some(b"soon")), -1);
    assert_eq!(immunity_ms(Some(b"9223372036854775807")), i64::MAX);
    assert_eq!(immunity_ms(None), -1);
}

#[test]
fn a_turn_looks_at_what_is_due_and_at_nothing_else() {
    let mut ledger = Ledger::new(&TransactionSettings { renew_bytes_max: 8_192, ..settings() });
    let immune = Kind { immunity_ms: 3_600_000, ..PLAIN };
    for queue_offset in 0..5_000 {
        ledger.open(queue_offset, Half::new(7, 1_000, 1_000, immune));
    }
    ledger.open(5_000, Half::new(7, 1_000, 1_000, PLAIN));
    assert_eq!(ledger.due(&look(7_001), BYTES_MAX).len(), 1);
    assert_eq!(ledger.schedule.looked_at, 1, "and not at 5,000 that wait");
    // All are due, but the share of their address is used up after two.
    assert_eq!(ledger.due(&look(61_001), BYTES_MAX).len(), 2);
    assert_eq!(ledger.schedule.looked_at, 4);
    // Copies of this turn are not looked at again.
    for (queue_offset, half) in ledger.due(&look(61_002), BYTES_MAX) {
        ledger.replace(queue_offset, queue_offset + 10_000, half.stored_again(8, 61_002));
    }
    ledger.schedule.looked_at = 0;
    assert!(ledger.due(&look(61_002), BYTES_MAX).is_empty());
    assert_eq!(ledger.schedule.looked_at, 1);
}

#[test]
fn the_schedule_agrees_with_a_look_at_all_of_them() {
    let mut ledger = Ledger::new(&TransactionSettings { renew_bytes_max: u64::MAX, ..settings() });
    let mut number = 1_u64;
    let mut random = |below: i64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as i64 % below
    };
    for queue_offset in 0..500 {
        let kind = Kind { immunity_ms: random(3) * 40_000 - 1, is_batch: random(2) == 0, ..PLAIN };
        ledger.open(queue_offset, Half::new(7, 1 + random(50_000), 1 + random(60_000), kind));
        if random(3) == 0 {
            let copy = Half::new(8, 1 + random(50_000), 50_000 + random(50_000), kind);
            ledger.replace(queue_offset, queue_offset + 1_000, copy);
        }
    }
    for now_ms in (0..400_000).step_by(7_000) {
        for renew_ms in [60_000, 9_000] {
            let look = Look { renew_ms, count_max: usize::MAX, ..look(now_ms) };
            let is_due = |half: &Half| half.stored_ms < now_ms && half.is_wanted(&look);
            let all: Vec<i64> =
                ledger.open.iter().filter(|(_, half)| is_due(half)).map(|(place, _)| *place).collect();
            let due: Vec<i64> = ledger.due(&look, usize::MAX).into_iter().map(|(place, _)| place).collect();
            assert_eq!(due, all, "at {now_ms}");
        }
    }
}

#[test]
fn one_open_transaction_does_not_keep_a_place_for_each_later_end() {
    let mut ledger = ledger(1);
    let ends = 200 * DONE_NEIGHBOURS;
    (0..ends).for_each(|done_offset| ledger.note_done(done_offset, done_offset + 1, 0));
    assert!(ledger.done.len() <= DONE_MAX + 200, "{} places for {ends} records", ledger.done.len());
    assert_eq!(ledger.offsets(), (0, 0));
    ledger.open(ends - 10, half(1_000));
    ledger.end(0, End::Committed);
    let (half_offset, done_offset) = ledger.offsets();
    assert_eq!(half_offset, ends - 10);
    // The record at `ends - 11` names the half message before that one.
    assert!((ends - 11 - DONE_NEIGHBOURS..ends - 10).contains(&done_offset), "{done_offset} of {ends}");
}
