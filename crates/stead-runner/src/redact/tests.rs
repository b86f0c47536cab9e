//! Streamed masking equals masking the whole, wherever reads split it.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn redactor(values: &[&str]) -> Redactor {
    Redactor::new(values).unwrap()
}

#[test]
fn values_and_their_lines_become_stars() {
    let redactor = redactor(&["hunter22", "first line\nab\r\nsecond line"]);
    for (text, masked) in [
        ("the password is hunter22!", "the password is ***!"),
        ("hunter22hunter22", "******"),
        ("x first line\nab\r\nsecond line y", "x *** y"),
        ("first line, then second line and ab", "***, then *** and ab"),
        ("hunter2", "hunter2"),
        ("", ""),
    ] {
        assert_eq!(redactor.redact_text(text), masked);
    }
    assert!(matches!(redactor.redact_text("nothing here"), Cow::Borrowed(_)));
}

#[test]
fn the_longest_secret_at_a_place_wins() {
    assert_eq!(redactor(&["abcd", "abcdefgh"]).redact_text("abcdefgh abcdef"), "*** ***ef");
}

/// Case 29: no secret in `Debug`.
#[test]
fn debug_shows_nothing() {
    let secret = Secret::new("hunter22");
    let redactor = Redactor::new([&secret]).unwrap();
    let mut stream = redactor.stream();
    assert_eq!(stream.push(b"hunter").as_ref(), b"");
    let shown = format!("{secret:?} {redactor:?} {stream:?}");
    assert!(!shown.contains("hunt"), "{shown}");
}

#[test]
fn values_are_masked_in_texts_numbers_and_keys() {
    let redactor = redactor(&["hunter22", "987654"]);
    let mut value = json!({
        "hunter22": 1, "***": 2, "list": [["a hunter22 b"], 1_987_654_u64, 98765, true, null],
    });
    redactor.redact_value(&mut value);
    let text = value.to_string();
    assert!(!text.contains("hunter22") && !text.contains("987654"), "{text}");
    assert_eq!(value["list"], json!([["a *** b"], "1***", 98765, true, null]));
    assert_eq!(value.as_object().unwrap().len(), 3, "no value is lost: {text}");
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let mut value = json!("hunter22");
    for _ in 0..100_000 {
        value = Value::Array(vec![value]);
    }
    redactor(&["hunter22"]).redact_value(&mut value);
    // Taken apart by hand: dropping a value this deep recurses.
    let mut depth = 0;
    while let Value::Array(items) = &mut value {
        let inner = items.pop().unwrap();
        value = inner;
        depth += 1;
    }
    assert_eq!((depth, value), (100_000, json!("***")));
}

#[test]
fn a_long_secret_file_is_masked_whole_and_by_line() {
    let lines: Vec<_> = (0..2_000).map(|i| format!("{i:05}{}", "k".repeat(59))).collect();
    let key = lines.join("\n");
    let mut stream = redactor(&[&key]).stream();
    let text = format!("before {key} after {} end", lines[777]);
    let mut shown = Vec::new();
    for piece in text.as_bytes().chunks(1_000) {
        shown.extend_from_slice(&stream.push(piece));
    }
    shown.extend_from_slice(&stream.finish());
    assert_eq!(String::from_utf8(shown).unwrap(), "before *** after *** end");
}

#[test]
fn without_secrets_nothing_is_held_or_copied() {
    let mut stream = redactor(&[""]).stream();
    assert!(matches!(stream.push(b"abc"), Cow::Borrowed(b"abc")));
    assert_eq!(stream.finish(), b"");
}

#[test]
fn output_that_begins_no_secret_is_shown_at_once() {
    let mut stream = redactor(&["a-very-long-secret-indeed"]).stream();
    assert_eq!(stream.push(b"password: ").as_ref(), b"password: ");
    assert_eq!(stream.push(b"a-very").as_ref(), b"");
    assert_eq!(stream.push(b" nice day").as_ref(), b"a-very nice day");
    assert_eq!(stream.push(b"x a-ver").as_ref(), b"x ");
    assert_eq!(stream.finish(), b"a-ver");
}

#[test]
fn bytes_that_are_not_text_are_masked_too() {
    let secret = Secret::new(vec![0xff, 0xfe, 0x00, 0x80]);
    let redactor = Redactor::new([&secret]).unwrap();
    assert_eq!(redactor.redact_bytes(b"a\xff\xfe\x00\x80b").as_ref(), b"a***b");
}

proptest! {
    /// Case 29: a read that splits a secret anywhere does not show it.
    #[test]
    fn any_split_gives_what_the_whole_gives(
        secrets in prop::collection::vec("[abc\n]{1,9}", 1..5),
        text in "[abcx\n]{0,80}",
        cuts in prop::collection::vec(0_usize..80, 0..12),
    ) {
        let values: Vec<_> = secrets.iter().map(|secret| Secret::new(secret.as_str())).collect();
        let redactor = Redactor::new(&values).unwrap();
        let longest = secrets.iter().map(String::len).max().unwrap();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let mut stream = redactor.stream();
        let mut streamed = Vec::new();
        for pair in cuts.windows(2) {
            streamed.extend_from_slice(&stream.push(&text.as_bytes()[pair[0]..pair[1]]));
            prop_assert!(stream.held.len() < longest);
        }
        streamed.extend_from_slice(&stream.finish());
        prop_assert_eq!(String::from_utf8(streamed).unwrap(), redactor.redact_text(&text));
    }
}

#[test]
fn a_text_that_begins_inside_a_secret_has_its_start_masked() {
    let redactor = redactor(&["correct horse battery"]);
    for (text, masked) in [
        ("horse battery and more", "*** and more"),
        ("\u{FFFD}\u{FFFD}battery", "***"),
        ("ery: too little of it to tell", "ery: too little of it to tell"),
        ("a battery", "a battery"),
    ] {
        let mut tail = text.to_owned();
        redactor.redact_start(&mut tail);
        assert_eq!(tail, masked);
    }
}
