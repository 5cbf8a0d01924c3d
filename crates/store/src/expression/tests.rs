#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::Operation::{self, *};
use super::value::{Search, Value};
use super::{
    ExpressionError, OPERATION_BYTES, OPERATIONS_MAX, PROPERTIES_MAX, PROPERTY_BYTES, Program, STACK_MAX,
};

fn program(operations: &[Operation]) -> Program {
    Program::build(operations.to_vec()).unwrap()
}

fn property(name: &str) -> Operation {
    Property(name.into())
}

fn encode(properties: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in properties {
        metaq_wire::properties::push(&mut bytes, name, value);
    }
    bytes
}

#[test]
fn a_property_is_read_as_what_it_is_compared_with() {
    let cases: &[(Operation, &str, bool)] = &[
        (Integer(5), "5", true),
        (Integer(5), "+5", true),
        (Integer(5), "5.0", false),
        (Integer(5), " 5", false),
        (Integer(5), "3000000000", false),
        (Long(5), "5", true),
        (Double(5.0), "5", true),
        (Double(5.0), " 5e0f ", true),
        (Double(f64::INFINITY), "1e999", true),
        (Double(f64::INFINITY), "inf", false),
        (Bool(true), "TrUe", true),
        (Bool(false), "yes", true),
        (Text("é".into()), "é", true),
        (Text("5".into()), "5.0", false),
    ];
    for (constant, value, expected) in cases {
        let program = program(&[property("a"), constant.clone(), Equal]);
        assert_eq!(program.matches(&encode(&[("a", value)])), *expected, "{constant:?} {value:?}");
    }
}

#[test]
fn what_cannot_be_compared_is_not_delivered_in_either_sense() {
    let properties = encode(&[("a", "abc"), ("b", "2")]);
    let equal = [property("a"), Integer(1), Equal];
    assert!(!program(&equal).matches(&properties));
    assert!(!program(&[&equal[..], &[Not]].concat()).matches(&properties));
    // To the right of what has decided it is never looked at, to the left it decides.
    let second = [property("b"), Integer(2), Equal];
    assert!(program(&[&second[..], &equal, &[Or]].concat()).matches(&properties));
    assert!(!program(&[&equal[..], &second, &[Or]].concat()).matches(&properties));
    assert!(program(&[&second[..], &[Not], &equal, &[And, Not]].concat()).matches(&properties));
}

#[test]
fn unknown_is_neither_true_nor_false() {
    let unknown = [property("missing"), Integer(1), Equal];
    for tail in [vec![], vec![Not], vec![Bool(true), And], vec![Bool(false), Or]] {
        assert!(!program(&[&unknown[..], &tail].concat()).matches(&[]));
    }
    assert!(program(&[&unknown[..], &[Bool(true), Or]].concat()).matches(&[]));
    assert!(program(&[&unknown[..], &[Bool(false), And, Not]].concat()).matches(&[]));
    assert!(program(&[property("missing"), IsNull]).matches(&[]));
    assert!(program(&[property("missing"), property("other"), Equal]).matches(&[]));
}

#[test]
fn the_last_of_two_properties_of_one_name_counts() {
    let program = program(&[property("a"), Text("2".into()), Equal]);
    assert!(program.matches(&encode(&[("a", "1"), ("a", "2")])));
    assert!(!program.matches(&encode(&[("a", "2"), ("a", "1")])));
    assert!(program.matches(b"a\x012"), "the last end mark is optional");
}

#[test]
fn doubles_have_java_s_order() {
    let order = |left: &str, right: &str| {
        let found = |operation| {
            program(&[property("a"), property("b"), operation]).matches(&encode(&[("a", left), ("b", right)]))
        };
        (found(Less), found(LessOrEqual), found(Greater))
    };
    assert_eq!(order("-0.0", "0.0"), (true, true, false));
    assert_eq!(order("NaN", "NaN"), (false, true, false));
    assert_eq!(order("Infinity", "NaN"), (true, true, false));
    assert_eq!(order("-NaN", "NaN"), (false, true, false));
    assert_eq!(order("-Infinity", "-1e308"), (true, true, false));
    assert_eq!(order("10", "9"), (false, false, true));
    for broken in ["", "x", "0x10", "1e", ".", "--1", "+-1", "infinity", "nan", "1_0", "1 2", "f"] {
        assert_eq!(order(broken, "1"), (false, false, false), "{broken}");
    }
    for one in ["1.", "1.0", "01", "1d", "1F", "1e0", "+1", "\t1\n"] {
        assert_eq!(order(one, "1"), (false, true, false), "{one}");
    }
}

#[test]
fn searches_are_false_where_there_is_nothing_to_search() {
    let search = |search, text: &str, negated| Value::Text(b"abc").search(search, text.as_bytes(), negated);
    assert_eq!(search(Search::Anywhere, "b", false), Value::Bool(true));
    assert_eq!(search(Search::Start, "ab", false), Value::Bool(true));
    assert_eq!(search(Search::End, "bc", false), Value::Bool(true));
    assert_eq!(search(Search::End, "ab", true), Value::Bool(true));
    assert_eq!(search(Search::Anywhere, "", false), Value::Bool(false));
    assert_eq!(search(Search::Anywhere, "", true), Value::Bool(false));
    assert_eq!(Value::Null.search(Search::Start, b"a", true), Value::Bool(false));
    assert_eq!(Value::Integer(1).search(Search::Start, b"a", true), Value::Bool(false));
}

#[test]
fn lists_that_are_no_programs_are_refused() {
    let refused = |operations: Vec<Operation>| Program::build(operations).unwrap_err();
    assert_eq!(refused(vec![]), ExpressionError::NotOneValue { count: 0 });
    assert_eq!(refused(vec![Null, Null]), ExpressionError::NotOneValue { count: 2 });
    assert_eq!(refused(vec![Null, And]), ExpressionError::MissingValue { at: 1 });
    assert_eq!(refused(vec![Null, Null, Between]), ExpressionError::MissingValue { at: 2 });
    let deep = |count| [vec![Null; count], vec![And; count - 1]].concat();
    assert!(Program::build(deep(STACK_MAX)).is_ok());
    assert_eq!(refused(deep(STACK_MAX + 1)), ExpressionError::TooDeep);
    assert!(matches!(refused(vec![Null; OPERATIONS_MAX + 1]), ExpressionError::TooLong { .. }));
    let chain = |count: usize| {
        let names = (0..count).map(|number| [property(&format!("p{number}")), IsNull]);
        let mut operations: Vec<Operation> = names.flatten().collect();
        let joints = operations.len() / 2 - 1;
        for joint in 0..joints {
            operations.insert(4 + joint * 3, And);
        }
        operations
    };
    assert!(program(&chain(PROPERTIES_MAX)).matches(b"x\x01y\x02"));
    assert_eq!(refused(chain(PROPERTIES_MAX + 1)), ExpressionError::TooManyProperties);
}

fn operations() -> impl Strategy<Value = Operation> {
    let text = "[ab0-9.e+-]{0,4}";
    prop_oneof![
        Just(Null),
        any::<bool>().prop_map(Bool),
        (-3..3_i32).prop_map(Integer),
        any::<i64>().prop_map(Long),
        any::<f64>().prop_map(Double),
        text.prop_map(Text),
        "[a-c]".prop_map(Property),
        prop::sample::select(vec![Negate, Truth, Not, IsNull, And, Or, Equal, Between, NotBetween]),
        prop::sample::select(vec![Greater, GreaterOrEqual, Less, LessOrEqual]),
        prop::collection::vec(text, 0..6).prop_map(In),
        prop::collection::vec(text, 0..6).prop_map(NotIn),
        text.prop_map(Contains),
        text.prop_map(NotContains),
        text.prop_map(StartsWith),
        text.prop_map(NotStartsWith),
        text.prop_map(EndsWith),
        text.prop_map(NotEndsWith),
    ]
}

/// Any operations, brought into a shape that can be built.
fn completed(mut operations: Vec<Operation>) -> Vec<Operation> {
    let mut count = 0_usize;
    operations.retain(|operation| {
        let fits = count >= operation.takes();
        if fits {
            count = count + 1 - operation.takes();
        }
        fits
    });
    operations.extend(std::iter::repeat_n(Or, count.saturating_sub(1)));
    operations
}

proptest! {
    #[test]
    fn nothing_that_can_be_built_panics(
        operations in prop::collection::vec(operations(), 0..80),
        properties in prop::collection::vec(any::<u8>(), 0..200),
        values in prop::collection::vec(("[a-c]", "[ab0-9.e+-]{0,6}"), 0..5),
    ) {
        let _refused_or_not = Program::build(operations.clone());
        if let Ok(program) = Program::build(completed(operations)) {
            program.matches(&properties);
            let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            program.matches(&encode(&values));
        }
    }

    /// A program gives the same result on the small stack and on the large one.
    #[test]
    fn space_makes_no_difference(
        operations in prop::collection::vec(operations(), 1..12),
        values in prop::collection::vec(("[a-c]", "[ab0-9.e+-]{0,6}"), 0..5),
    ) {
        let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let properties = encode(&values);
        if let Ok(program) = Program::build(completed(operations)) {
            let wide = program.run::<STACK_MAX, PROPERTIES_MAX>(&properties);
            prop_assert_eq!(program.matches(&properties), wide == Value::Bool(true));
        }
    }
}

#[test]
fn what_reads_long_values_again_and_again_is_counted() {
    let property = || Operation::Property("a".to_owned());
    let text = || Operation::Text("x".to_owned());
    let one_value = |bytes| vec![b'x'; bytes];
    let examined = |left: Operation, right: Operation, compare: Operation| {
        let program = Program::build(vec![left, right, compare]).unwrap();
        program.examined_bytes(&one_value(30_000)) - 3 * OPERATION_BYTES - PROPERTY_BYTES
    };
    assert_eq!(examined(property(), text(), Operation::Equal), 30_000);
    assert_eq!(examined(text(), property(), Operation::Equal), 30_000);
    assert_eq!(examined(property(), property(), Operation::Equal), 60_000);
    assert_eq!(examined(property(), Operation::Double(0.5), Operation::Equal), 32_048);
    assert_eq!(examined(property(), property(), Operation::Less), 32_048);
    let between = vec![property(), Operation::Integer(1), property(), Operation::NotBetween];
    let program = Program::build(between).unwrap();
    let examined = |bytes| program.examined_bytes(&one_value(bytes)) - 4 * OPERATION_BYTES - PROPERTY_BYTES;
    assert_eq!(examined(30_000), 34_096);
    assert_eq!(examined(100), 500);
}

#[test]
fn many_short_properties_are_more_work_than_a_long_one() {
    let program = Program::build(vec![Operation::Property("a".to_owned()), Operation::IsNull]).unwrap();
    let short = b"b\x01x\x02".repeat(1_000);
    let long = vec![b'x'; short.len()];
    let more = program.examined_bytes(&short) - program.examined_bytes(&long);
    assert_eq!(more, 1_000 * PROPERTY_BYTES);
}
