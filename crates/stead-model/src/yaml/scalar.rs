//! What a plain scalar is, by the core schema of YAML 1.2.

use serde_json::Number;

/// The kind of a plain scalar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Number(Number),
    /// A number that cannot be kept exactly, with why.
    Unusable(&'static str),
    Text,
}

/// Returns what the plain scalar `text` is.
pub(super) fn classify(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "true" | "True" | "TRUE" => return Scalar::Bool(true),
        "false" | "False" | "FALSE" => return Scalar::Bool(false),
        _ => {}
    }
    // Most scalars are words: one look at the first byte settles them.
    if !matches!(text.as_bytes().first(), Some(b'0'..=b'9' | b'+' | b'-' | b'.')) {
        return Scalar::Text;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Scalar::Unusable("infinity and not-a-number cannot be used");
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        let integer = text.strip_prefix('+').unwrap_or(text);
        return match (integer.parse::<i64>(), integer.parse::<u64>()) {
            (Ok(number), _) => Scalar::Number(number.into()),
            (Err(_), Ok(number)) => Scalar::Number(number.into()),
            (Err(_), Err(_)) => Scalar::Unusable("this number does not fit in 64 bits"),
        };
    }
    if !is_float(unsigned) {
        return Scalar::Text;
    }
    match text.parse::<f64>().ok().and_then(Number::from_f64) {
        Some(number) => Scalar::Number(number),
        None => Scalar::Unusable("this number is too large"),
    }
}

fn radix(digits: &str, base: u32) -> Scalar {
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Scalar::Text;
    }
    match u64::from_str_radix(digits, base) {
        Ok(number) => Scalar::Number(number.into()),
        Err(_) => Scalar::Unusable("this number does not fit in 64 bits"),
    }
}

/// Whether `text` is `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && digits(mantissa),
    };
    mantissa_fits
        && exponent.is_none_or(|exponent| {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_schema_decides() {
        for text in ["", "~", "null", "NULL"] {
            assert_eq!(classify(text), Scalar::Null, "{text}");
        }
        for (text, number) in [("0", 0), ("012", 12), ("-7", -7), ("+7", 7), ("0o17", 15), ("0xfF", 255)] {
            assert_eq!(classify(text), Scalar::Number(number.into()), "{text}");
        }
        assert_eq!(classify("18446744073709551615"), Scalar::Number(u64::MAX.into()));
        for (text, number) in [("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("-1e3", -1000.0), ("1.5E-1", 0.15)] {
            assert_eq!(classify(text), Scalar::Number(Number::from_f64(number).unwrap()), "{text}");
        }
        for text in [
            "yes", "no", "on", "off", "y", "-", "+", ".", "1_000", "0b1", "1.2.3", "e5", "1e", "-0x1", "30s",
            "tRUE",
        ] {
            assert_eq!(classify(text), Scalar::Text, "{text}");
        }
        for text in [".inf", "-.INF", ".nan", "99999999999999999999", "0xfffffffffffffffff", "1e999"] {
            assert!(matches!(classify(text), Scalar::Unusable(_)), "{text}");
        }
    }
}
