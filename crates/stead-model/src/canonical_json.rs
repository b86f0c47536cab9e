//! Canonical JSON (RFC 8785): one spelling for one value, so that its hash means something.
//!
//! Keys are sorted by their UTF-16 code units, numbers are written as ECMAScript writes them. Values come from files
//! whose nesting is bounded, so writing them may recurse.

use serde_json::{Map, Number, Value};

/// Returns the spelling of an object up to, between and behind the values at `holes`: paths of keys, as they come in the
/// text.
pub fn around(object: &Map<String, Value>, holes: &[&[&str]]) -> Vec<String> {
    let (mut parts, mut text) = (Vec::new(), String::new());
    write_around(object, holes, &mut parts, &mut text);
    parts.push(text);
    parts
}

fn write_around(object: &Map<String, Value>, holes: &[&[&str]], parts: &mut Vec<String>, out: &mut String) {
    out.push('{');
    for (i, (key, value)) in sorted(object, Order::Utf16).into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        string(key, out);
        out.push(':');
        let below: Vec<&[&str]> = holes
            .iter()
            .filter_map(|hole| hole.split_first().filter(|(first, _)| *first == key).map(|(_, rest)| rest))
            .collect();
        if below.contains(&[].as_slice()) {
            parts.push(core::mem::take(out));
        } else if let (Value::Object(inner), false) = (value, below.is_empty()) {
            write_around(inner, &below, parts, out);
        } else {
            write(value, Order::Utf16, out);
        }
    }
    out.push('}');
}

/// How keys are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Utf16,
    CodePoints,
}

/// Returns the one spelling of `value`.
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    write(value, Order::Utf16, &mut text);
    text
}

/// Returns the one spelling of `value` with its keys sorted by code points, as the hashes of a fleet want it.
pub fn by_code_points(value: &Value) -> String {
    let mut text = String::new();
    write(value, Order::CodePoints, &mut text);
    text
}

fn write(value: &Value, order: Order, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(value) => out.push_str(&number(value)),
        Value::String(value) => string(value, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, order, out);
            }
            out.push(']');
        }
        Value::Object(entries) => {
            out.push('{');
            for (i, (key, value)) in sorted(entries, order).into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                string(key, out);
                out.push(':');
                write(value, order, out);
            }
            out.push('}');
        }
    }
}

fn sorted(entries: &Map<String, Value>, order: Order) -> Vec<(&String, &Value)> {
    let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
    match order {
        Order::Utf16 => entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16())),
        Order::CodePoints => entries.sort_by_key(|(key, _)| *key),
    }
    entries
}

fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The largest whole number that every reader of JSON keeps exactly: 2^53.
const EXACT: i64 = 1 << 53;

fn number(number: &Number) -> String {
    match number.as_i64() {
        Some(whole) if (-EXACT..=EXACT).contains(&whole) => whole.to_string(),
        Some(_) | None => double(number.as_f64().unwrap_or_default()),
    }
}

/// Writes a number as ECMAScript's `Number::toString` does.
fn double(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    // Rust writes the same shortest digits: `-1.25e-7`.
    let shortest = format!("{:e}", number.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits = even_of_two(number.abs(), mantissa.replace('.', ""));
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    // Where the point is, counted from the first digit.
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let text = if (count..=21).contains(&point) {
        format!("{digits}{}", zeros(point - count))
    } else if (1..=21).contains(&point) {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        format!("{whole}.{fraction}")
    } else if (-5..=0).contains(&point) {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let sign = if point > 0 { "+" } else { "-" };
        let exponent = (point - 1).abs();
        match digits.split_at(1) {
            (first, "") => format!("{first}e{sign}{exponent}"),
            (first, rest) => format!("{first}.{rest}e{sign}{exponent}"),
        }
    };
    if number < 0.0 { format!("-{text}") } else { text }
}

/// Returns `digits`, or the even ones where two are as near to the number: Rust rounds those up.
fn even_of_two(number: f64, digits: String) -> String {
    let exact = format!("{number:.60e}").replace('.', "");
    let exact = exact.split('e').next().unwrap_or_default();
    let Some((lower, rest)) = exact.split_at_checked(digits.len()) else { return digits };
    let is_halfway = rest.strip_prefix('5').is_some_and(|rest| rest.bytes().all(|digit| digit == b'0'));
    let is_even = lower.bytes().last().is_some_and(|digit| digit % 2 == 0);
    if is_halfway && is_even { lower.to_owned() } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Found by the fuzzer: without `float_roundtrip` three of ten numbers are read as their neighbour, and digests with them.
    #[test]
    fn a_number_that_is_written_is_read_as_the_same() {
        let mut bits = 1_u64;
        for _ in 0..10_000 {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            let number = f64::from_bits(bits);
            if number.is_finite() {
                let read: f64 = serde_json::from_str(&serde_json::to_string(&number).unwrap()).unwrap();
                assert_eq!(read.to_bits(), bits);
            }
        }
    }

    /// Appendix B of RFC 8785.
    #[test]
    fn numbers_of_the_standard() {
        for (bits, text) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(double(f64::from_bits(bits)), text);
        }
        assert_eq!(to_string(&json!(u64::MAX)), "18446744073709552000");
        assert_eq!(to_string(&json!(-5)), "-5");
    }

    /// The sorting example of RFC 8785: by UTF-16 code units, not by code points.
    #[test]
    fn keys_are_sorted_by_utf_16() {
        let value =
            json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7});
        assert_eq!(
            to_string(&value),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn keys_may_be_sorted_by_code_points() {
        let value = json!({"\u{fb33}": 1, "\u{1f600}": 2, "a": {"b": [true, -3]}});
        assert_eq!(by_code_points(&value), "{\"a\":{\"b\":[true,-3]},\"\u{fb33}\":1,\"\u{1f600}\":2}");
    }

    #[test]
    fn texts_are_escaped_as_little_as_possible() {
        assert_eq!(
            to_string(&json!("\u{8}\t\n\u{c}\r\"\\/\u{1f}\u{7f}é")),
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u001f\u{7f}é\""
        );
    }

    proptest! {
        /// What is written reads back as the same number.
        #[test]
        fn numbers_go_both_ways(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            prop_assert_eq!(double(number).parse::<f64>().unwrap(), number);
        }
    }
}
