#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const MESSAGES: Rates = Rates { messages: 100, bytes: 0 };

fn limit(rates: Rates) -> Arc<Limit> {
    Limit::new(rates).unwrap()
}

#[test]
fn no_rates_are_no_limit() {
    assert!(Limit::new(Rates::default()).is_none());
}

#[test]
fn the_same_rates_go_on_counting_and_others_begin_anew() {
    let old = limit(MESSAGES);
    old.charge(1_000, 0, 0);
    let same = Limit::succeed(Limit::new(MESSAGES), Some(&old)).unwrap();
    assert!(Arc::ptr_eq(&same, &old));
    let raised = Limit::succeed(Limit::new(Rates { messages: 200, bytes: 0 }), Some(&old)).unwrap();
    assert_eq!(raised.debt_ns(0), 0, "what was owed at the old rate is forgotten");
    assert!(Limit::succeed(None, Some(&old)).is_none());
}

#[test]
fn a_charge_larger_than_the_bucket_passes_and_is_paid_by_those_behind_it() {
    let limit = limit(MESSAGES);
    assert_eq!(limit.charge(1_000, 0, 0), 0, "the bucket was full");
    assert_eq!(limit.debt_ns(0), 10 * SECOND_NS - BURST_NS);
    assert_eq!(limit.charge(1, 0, 9 * SECOND_NS), SECOND_NS - BURST_NS + SECOND_NS / 100);
}

#[test]
fn a_slow_limit_still_lets_one_message_through() {
    let limit = limit(Rates { messages: 1, bytes: 0 });
    assert_eq!(limit.take(32, 1_000, 0), Some((1, 1_000)));
    assert_eq!(limit.take(32, 1_000, SECOND_NS - 1), None);
    assert_eq!(limit.take(32, 1_000, SECOND_NS), Some((1, 1_000)));
}

#[test]
fn bytes_are_charged_when_they_are_known() {
    let limit = limit(Rates { messages: 0, bytes: 1_000 });
    assert_eq!(limit.take(32, 1_000_000, 0), Some((32, 100)), "a tenth of a second's worth");
    limit.finish_share(0, 1_100, 0);
    assert_eq!(limit.take(32, 1_000_000, SECOND_NS), None);
    assert!(limit.take(32, 1_000_000, SECOND_NS + BURST_NS).is_some());
}

#[test]
fn what_was_not_read_is_given_back() {
    let limit = limit(MESSAGES);
    let (count, _) = limit.take(32, 1, 0).unwrap();
    assert_eq!(count, 10);
    limit.finish_share(7, 0, 0);
    assert_eq!(limit.take(32, 1, 1).map(|(count, _)| count), Some(7));
}

proptest! {
    /// Over any stretch of time, at most rate × time + one bucket passes; a caller that keeps asking gets nearly that.
    #[test]
    fn takes_stay_below_the_rate_and_near_it(
        rate in 1u64..2_000_000,
        steps in prop::collection::vec((1i64..20_000_000, 1usize..64), 1..300),
    ) {
        let limit = limit(Rates { messages: rate, bytes: 0 });
        let burst = (rate / 10).max(1);
        let (mut now_ns, mut passed, mut all_asked) = (0i64, 0u64, true);
        for (step_ns, wanted) in steps {
            now_ns += step_ns;
            while let Some((count, _)) = limit.take(wanted, usize::MAX, now_ns) {
                prop_assert!(count >= 1 && count <= wanted);
                passed += count as u64;
            }
            all_asked &= step_ns <= BURST_NS;
            let allowed = (now_ns as u128 * u128::from(rate) / SECOND_NS as u128) as u64 + burst;
            prop_assert!(passed <= allowed + 1, "{passed} of {allowed} after {now_ns} ns");
            if all_asked {
                let share = (rate / SHARES_PER_SECOND).max(1);
                prop_assert!(passed + share + burst + 64 >= allowed, "{passed} of {allowed}: starved");
            }
        }
    }

    /// Charges wait their turn: in order, never above the rate, and never longer than what is in front of them.
    #[test]
    fn charges_wait_in_order(
        rate in 1u64..1_000_000,
        steps in prop::collection::vec((0i64..20_000_000, 1u64..2_000), 1..300),
    ) {
        let limit = limit(Rates { messages: rate, bytes: 0 });
        let cost_ns = |amount: u64| (u128::from(amount) * SECOND_NS as u128).div_ceil(u128::from(rate)) as i64;
        let burst_ns = BURST_NS.max(cost_ns(1));
        let (mut now_ns, mut owed_ns, mut last_ns) = (0i64, 0i64, 0i64);
        let mut leaving: Vec<(i64, u64)> = Vec::new();
        for (step_ns, amount) in steps {
            now_ns += step_ns;
            owed_ns = (owed_ns - step_ns).max(0);
            let wait_ns = limit.charge(amount, 0, now_ns);
            prop_assert!(wait_ns <= owed_ns, "waits {wait_ns} ns behind {owed_ns} ns");
            owed_ns += cost_ns(amount);
            if cost_ns(amount) <= burst_ns {
                prop_assert!(now_ns + wait_ns + burst_ns >= last_ns, "overtakes by more than a bucket");
            }
            last_ns = now_ns + wait_ns;
            leaving.push((last_ns, amount));
        }
        leaving.sort_unstable();
        let mut passed = 0u128;
        for (at_ns, amount) in leaving {
            let paid = at_ns as u128 * u128::from(rate) / SECOND_NS as u128;
            let burst = u128::from((rate / 10).max(1));
            // One that is larger than the bucket goes through whole.
            prop_assert!(passed <= paid + burst + 1, "{passed} before {at_ns} ns at {rate}/s");
            passed += u128::from(amount);
        }
    }
}
