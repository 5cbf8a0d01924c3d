#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn parsed(text: &str) -> Header<'_> {
    parse(text.as_bytes()).unwrap()
}

fn fields(text: &str) -> Vec<(String, String)> {
    let header = parsed(text);
    header.fields().map(|field| field.unwrap()).map(|(name, value)| (name.into(), value.into())).collect()
}

fn refused(text: &str) -> &'static str {
    match parse(text.as_bytes()) {
        Err(WireError::BadHeader(why)) => why,
        other => panic!("{text} gave {other:?}"),
    }
}

#[test]
fn reads_what_a_java_client_sends() {
    let header = parsed(
        r#"{"code":310,"extFields":{"a":"group","b":"T","i":"TAGS\u0001a\u0002"},"flag":2,"language":"GO","opaque":-7,"remark":"why","serializeTypeCurrentRPC":"JSON","version":479}"#,
    );
    assert_eq!((header.code, header.flag, header.opaque, header.version), (310, 2, -7, 479));
    assert_eq!((header.language, header.language_name()), (9, "GO"));
    assert_eq!(header.remark.as_deref(), Some("why"));
    assert!(header.is_oneway() && !header.is_response());
    assert_eq!(header.field("i"), Ok(Some("TAGS\u{1}a\u{2}".into())));
    assert_eq!(header.field("z"), Ok(None));
}

#[test]
fn takes_any_order_white_space_and_nulls() {
    let header = parsed(
        "\n{ \"version\" : 1 ,\t\"extFields\" : { \"x\" : null , \"y\" : \"1\" } , \"remark\":null,\r\n \"opaque\":2,\"code\":3,\"flag\":null } ",
    );
    assert_eq!((header.version, header.opaque, header.code, header.flag), (1, 2, 3, 0));
    assert_eq!(header.remark, None);
    assert_eq!(header.fields().count(), 1);
    assert_eq!(parsed("{}").fields().count(), 0);
    assert_eq!(parsed(r#"{"extFields":null}"#).fields().count(), 0);
    assert_eq!(parsed(r#"{"extFields":{}}"#).fields().count(), 0);
}

#[test]
fn values_of_other_kinds_come_as_their_text() {
    let read =
        fields(r#"{"extFields":{"a":12,"b":-1.5e3,"c":true,"d":false,"e":[1,{"x":"]"}],"f":{"g":"}"}}}"#);
    let expected = [
        ("a", "12"),
        ("b", "-1.5e3"),
        ("c", "true"),
        ("d", "false"),
        ("e", r#"[1,{"x":"]"}]"#),
        ("f", r#"{"g":"}"}"#),
    ];
    assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn raw_control_characters_and_escaped_names_are_taken() {
    let read = fields("{\"extFields\":{\"propert\\u0069es\":\"TAGS\u{1}a\u{2}\\\"\"}}");
    assert_eq!(read, [("properties".to_owned(), "TAGS\u{1}a\u{2}\"".to_owned())]);
    assert_eq!(parsed(r#"{"c\u006fde":5}"#).code, 5);
}

#[test]
fn plain_values_are_borrowed() {
    let header = parsed(r#"{"extFields":{"topic":"orders"}}"#);
    assert!(matches!(header.field("topic"), Ok(Some(std::borrow::Cow::Borrowed("orders")))));
}

#[test]
fn languages_by_name_or_number() {
    let language = |value: &str| parse(format!(r#"{{"language":{value}}}"#).as_bytes()).unwrap().language;
    for (code, name) in LANGUAGES.iter().enumerate() {
        assert_eq!(usize::from(language(&format!("\"{name}\""))), code);
    }
    assert_eq!(
        (language("\"KLINGON\""), language("null"), language("9"), language("14"), language("-1")),
        (7, 7, 9, 7, 7)
    );
    assert_eq!(parsed("{}").language, LANGUAGE_JAVA);
}

#[test]
fn the_last_of_a_name_counts() {
    let header = parsed(r#"{"code":1,"code":2,"extFields":{"t":"x"},"extFields":{"t":"a","t":"b"}}"#);
    assert_eq!(header.code, 2);
    assert_eq!(header.field("t"), Ok(Some("b".into())));
}

#[test]
fn more_fields_than_are_noted() {
    for count in [NOTED_MAX - 1, NOTED_MAX, NOTED_MAX + 1, NOTED_MAX + 7] {
        // Nulls before, at and after the last recorded field.
        let members: Vec<_> =
            (0..count).map(|n| format!(r#""n":null, "k{n}" : "v{n}\n", "n":null"#)).collect();
        let text = format!(r#"{{"extFields":{{{}}},"code":9}}"#, members.join(" ,"));
        let expected: Vec<_> = (0..count).map(|n| (format!("k{n}"), format!("v{n}\n"))).collect();
        assert_eq!(fields(&text), expected);
        assert_eq!(parsed(&text).code, 9);
        assert_eq!(
            parsed(&text).field(&format!("k{}", count - 1)).unwrap().unwrap(),
            format!("v{}\n", count - 1)
        );
    }
}

#[test]
fn numbers_may_be_quoted_but_must_fit() {
    assert_eq!(parsed(r#"{"code":"310","opaque":-2147483648}"#).code, 310);
    for bad in ["2147483648", "1.0", "true", "\"\"", "{}", "-"] {
        assert_eq!(
            refused(&format!(r#"{{"code":{bad}}}"#)),
            "a number of the JSON header is not a 32-bit integer"
        );
    }
}

#[test]
fn refuses_what_is_no_object() {
    for bad in [
        "",
        " ",
        "[]",
        "1",
        "null",
        r#"{"code"}"#,
        r#"{"code":1,}"#,
        r#"{"code":1 "flag":2}"#,
        r#"{,}"#,
        r#"{code:1}"#,
        r#"{"a":nul}"#,
        r#"{"a":tru}"#,
        r#"{"a":x}"#,
        r#"{"a":[}"#,
        r#"{"a":[1}}"#,
        r#"{} x"#,
        r#"{}{}"#,
        r#"{"extFields":[]}"#,
        r#"{"extFields":"x"}"#,
        r#"{"extFields":{"a":1 "b":2}}"#,
    ] {
        refused(bad);
    }
}

#[test]
fn refuses_wrong_escapes() {
    for bad in [r"\x", r"\u12", r"\u12g4", r"\u", r"\", r"\ud83d\u"] {
        assert!(parse(format!(r#"{{"remark":"{bad}"}}"#).as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn every_cut_is_an_error() {
    let text = r#"{"code":1,"extFields":{"a":"b\u0001","c":[{"d":null}]},"flag":true,"x":{"y":["z"]}}"#;
    let text = text.replace("true", "0");
    assert!(parse(text.as_bytes()).is_ok());
    for length in 0..text.len() {
        assert!(parse(&text.as_bytes()[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn nesting_has_a_limit() {
    let nested = |depth: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(32).as_bytes()).is_ok());
    assert_eq!(refused(&nested(33)), "the JSON header is nested too deeply");
    assert_eq!(
        refused(&format!(r#"{{"x":{}"#, "{".repeat(1_000_000))),
        "the JSON header is nested too deeply"
    );
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    let header = parse(b"{\"extFields\":{\"b\":\"\xC4\xE3\"}}").unwrap();
    assert_eq!(header.field("b"), Ok(Some("\u{fffd}\u{fffd}".into())));
}

proptest! {
    #[test]
    fn never_panics(text in r#"[{}\[\]",:\\ u0-9a-c]{0,60}"#, bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        crate::fuzzing::frame_json(text.as_bytes());
        crate::fuzzing::frame_json(&bytes);
        crate::fuzzing::frame_json(format!(r#"{{"extFields":{{{text}}}}}"#).as_bytes());
    }
}
