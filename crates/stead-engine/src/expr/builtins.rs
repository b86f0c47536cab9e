//! The filters, tests and functions that expressions know: minijinja's that are pure, bounded where they can
//! grow, and `quote` and `from_json`. Left out: `debug`, which would print secrets.

use minijinja::value::{Kwargs, Rest, Value as Inner};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};

use super::bounds::{MAX_ELEMENTS, MAX_OUTPUT, to_inner};
use super::quote;

/// The global functions, beside those over tasks.
pub(super) const GLOBALS: &[&str] = &["range", "dict", "namespace"];

/// Widest field of `format`.
const MAX_WIDTH_DIGITS: usize = 5;

macro_rules! table {
    ($($kind:ident $names:ident $add:ident: $($name:literal => $function:expr),+;)+) => {
        $(
            pub(super) const $names: &[&str] = &[$($name),+];

            fn $add(environment: &mut Environment<'static>) {
                $(environment.$kind($name, $function);)+
            }
        )+
    };
}

table! {
    add_filter FREE_FILTERS add_free_filters:
        "abs" => filters::abs, "attr" => filters::attr, "bool" => filters::bool, "capitalize" => filters::capitalize,
        "chain" => filters::chain, "count" => filters::length, "d" => filters::default,
        "default" => filters::default, "dictsort" => filters::dictsort, "first" => filters::first,
        "float" => filters::float, "from_json" => from_json, "int" => filters::int, "items" => filters::items,
        "last" => filters::last, "length" => filters::length, "lines" => filters::lines, "lower" => filters::lower,
        "quote" => quote_filter, "round" => filters::round, "split" => filters::split, "title" => filters::title,
        "trim" => filters::trim, "upper" => filters::upper, "zip" => filters::zip;
    add_test TESTS add_tests:
        "defined" => tests::is_defined, "undefined" => tests::is_undefined, "none" => tests::is_none,
        "boolean" => tests::is_boolean, "odd" => tests::is_odd, "even" => tests::is_even,
        "divisibleby" => tests::is_divisibleby, "number" => tests::is_number, "integer" => tests::is_integer,
        "int" => tests::is_integer, "float" => tests::is_float, "string" => tests::is_string,
        "sequence" => tests::is_sequence, "iterable" => tests::is_iterable, "mapping" => tests::is_mapping,
        "startingwith" => tests::is_startingwith, "endingwith" => tests::is_endingwith, "lower" => tests::is_lower,
        "upper" => tests::is_upper, "eq" => tests::is_eq, "equalto" => tests::is_eq, "==" => tests::is_eq,
        "ne" => tests::is_ne, "!=" => tests::is_ne, "lt" => tests::is_lt, "lessthan" => tests::is_lt,
        "<" => tests::is_lt, "le" => tests::is_le, "<=" => tests::is_le, "gt" => tests::is_gt,
        "greaterthan" => tests::is_gt, ">" => tests::is_gt, "ge" => tests::is_ge, ">=" => tests::is_ge,
        "in" => tests::is_in, "true" => tests::is_true, "false" => tests::is_false, "filter" => tests::is_filter,
        "test" => tests::is_test;
}

macro_rules! bounded {
    ($($name:literal => $function:expr),+) => {
        /// Filters whose work grows with their arguments: checked before they are called.
        const BOUNDED_FILTERS: &[&str] = &[$($name),+];

        fn add_bounded_filters(environment: &mut Environment<'static>) {
            $(
                // The name holds a character no template can write, so only the checked one can be called.
                environment.add_filter(concat!("\u{1}", $name), $function);
                environment.add_filter($name, |state: &mut State, arguments: Rest<Inner>| {
                    check($name, &arguments)?;
                    state.apply_filter(concat!("\u{1}", $name), &arguments)
                });
            )+
        }
    };
}

bounded! {
    "batch" => filters::batch, "format" => filters::format, "groupby" => filters::groupby,
    "indent" => filters::indent, "join" => filters::join, "list" => filters::list, "map" => filters::map,
    "max" => filters::max, "min" => filters::min, "reject" => filters::reject, "rejectattr" => filters::rejectattr,
    "replace" => filters::replace, "reverse" => filters::reverse, "select" => filters::select,
    "selectattr" => filters::selectattr, "slice" => filters::slice, "sort" => filters::sort,
    "string" => filters::string, "sum" => filters::sum, "tojson" => filters::tojson, "unique" => filters::unique
}

/// Returns every filter's name.
pub(super) fn filter_names() -> impl Iterator<Item = &'static str> {
    FREE_FILTERS.iter().chain(BOUNDED_FILTERS).copied()
}

/// Adds everything expressions know of themselves.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    add_free_filters(environment);
    add_bounded_filters(environment);
    add_tests(environment);
    environment.add_function("range", functions::range);
    environment.add_function("dict", functions::dict);
    environment.add_function("namespace", functions::namespace);
}

fn check(filter: &str, arguments: &[Inner]) -> Result<(), Error> {
    let size = |argument: &Inner| argument.as_str().map_or(0, str::len);
    let elements =
        arguments.iter().filter(|argument| argument.as_str().is_none()).filter_map(Inner::len).max();
    if elements.is_some_and(|count| count > MAX_ELEMENTS) {
        return Err(too_large(filter));
    }
    let value = arguments.first();
    let produced = match filter {
        // An empty needle matches between all characters.
        "replace" => {
            value.map_or(0, size).saturating_add(1).saturating_mul(arguments.get(2).map_or(0, size).max(1))
        }
        "join" => {
            let count = value.and_then(Inner::len).unwrap_or(0);
            count.saturating_mul(arguments.iter().skip(1).map(size).max().unwrap_or(0))
        }
        "indent" | "batch" | "slice" => {
            let rows = if filter == "indent" {
                value.and_then(Inner::as_str).map_or(0, |text| text.lines().count())
            } else {
                1
            };
            widest(&arguments[1.min(arguments.len())..]).saturating_mul(rows)
        }
        "format" if value.and_then(Inner::as_str).is_some_and(has_wide_field) => usize::MAX,
        "format" => widest(&arguments[1.min(arguments.len())..]) / 1_000_000,
        _ => 0,
    };
    if produced > MAX_OUTPUT { Err(too_large(filter)) } else { Ok(()) }
}

/// Returns the largest whole number among `arguments`, named ones included.
fn widest(arguments: &[Inner]) -> usize {
    let one = |argument: &Inner| argument.as_usize().unwrap_or(0);
    let named = |argument: &Inner| {
        Kwargs::try_from(argument.clone()).map_or(0, |named| {
            named
                .args()
                .filter_map(|name| named.peek::<Inner>(name).ok())
                .map(|value| one(&value))
                .max()
                .unwrap_or(0)
        })
    };
    arguments.iter().map(|argument| one(argument).max(named(argument))).max().unwrap_or(0)
}

/// Whether a format holds a number of more than [`MAX_WIDTH_DIGITS`] digits, or takes its width from an argument.
fn has_wide_field(format: &str) -> bool {
    format.contains('*')
        || format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > MAX_WIDTH_DIGITS)
}

fn too_large(filter: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("filter `{filter}` would give a value that is too large"))
}

fn quote_filter(value: &Inner) -> Result<String, Error> {
    let argument = |item: &Inner| {
        if item.is_undefined() {
            Err(Error::from(ErrorKind::UndefinedError))
        } else {
            Ok(item.as_str().map_or_else(|| item.to_string(), str::to_owned))
        }
    };
    // A list is an argument vector: each element is its own word.
    if matches!(value.kind(), minijinja::value::ValueKind::Seq | minijinja::value::ValueKind::Iterable) {
        let words = value.try_iter()?.take(MAX_ELEMENTS).map(|item| argument(&item));
        let words = words.map(|word| word.map(|word| quote::word(&word))).collect::<Result<Vec<_>, _>>()?;
        return Ok(words.join(" "));
    }
    Ok(quote::word(&argument(value)?))
}

fn from_json(text: &str) -> Result<Inner, Error> {
    serde_json::from_str::<serde_json::Value>(text)
        .map(|value| to_inner(&value))
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("the text is not JSON: {error}")))
}
