//! Golden renderings.

use super::*;
use crate::yaml::span_at;

fn source(text: &str) -> Source {
    Source { name: "plan.yaml".into(), text: text.into() }
}

fn place(source: &Source, at: Range<usize>) -> Place {
    Place::Text { source: source.clone(), span: span_at(&source.text, at.start, at.end) }
}

fn at(text: &str, part: &str) -> Diagnostic {
    let source = source(text);
    let start = text.find(part).unwrap();
    Diagnostic::error("plan/bad-value", place(&source, start..start + part.len()), "something is wrong")
}

#[test]
fn shows_code_place_line_related_places_and_help() {
    let text = "name: a\nvars: {}\nname: b\n";
    let source = source(text);
    let error = Diagnostic::error("plan/syntax", place(&source, 17..21), "the key `name` is there twice")
        .related(place(&source, 0..4), "first here")
        .help("keep one of them");
    let warning = Diagnostic::warning("plan/unquoted-shell", place(&source, 8..12), "not quoted");
    insta::assert_snapshot!(Diagnostics(vec![error, warning]).render(false));
}

#[test]
fn nothing_in_a_file_reaches_the_terminal_as_a_command() {
    let text = "name: \u{1b}[2J\u{9b}31m\u{202e}evil\u{7}\n";
    let mut problem = at(text, "evil").help("use \u{1b}]0;x\u{7} \r\n less");
    problem.message = "bad \u{1b}[31m\u{202e}thing\rhere".to_owned();
    let shown = Diagnostics(vec![problem]).render(false);
    assert!(shown.chars().all(|c| c == '\n' || !is_unsafe(c)), "{shown:?}");
    insta::assert_snapshot!(shown);
}

#[test]
fn of_a_very_long_line_only_the_part_around_the_problem_is_shown() {
    let text = format!("a: \"{}HERE{}\"\n", "x".repeat(500_000), "y".repeat(500_000));
    let shorter = format!("a: \"{}HERE{}\"\n", "x".repeat(5_000), "y".repeat(5_000));
    let shown = Diagnostics(vec![at(&text, "HERE"), at(&shorter, "HERE")]).render(false);
    assert!(shown.len() < 1000, "{} bytes", shown.len());
    insta::assert_snapshot!(shown);
}

#[test]
fn tabs_wide_characters_crlf_and_the_end_of_the_file_keep_the_caret_in_place() {
    let eof = source("tasks: [a");
    let eof = Diagnostic::error("plan/syntax", place(&eof, 9..9), "the list is not closed");
    let empty = Diagnostic::error("plan/syntax", place(&source(""), 0..0), "nothing is here");
    let all = Diagnostics(vec![
        at("a:\tvalue here\r\nb: 1\r\n", "value"),
        at("日本語: ありがとう x\n", "ありがとう"),
        at("a: [1,\n  2]\n", "[1,\n  2]"),
        eof,
        empty,
    ]);
    insta::assert_snapshot!(all.render(false));
}

#[test]
fn colors_are_only_used_when_asked_for() {
    let one = Diagnostics(vec![at("a: b\n", "b")]);
    assert!(one.render(true).contains('\u{1b}'));
    assert!(!one.render(false).contains('\u{1b}'));
    assert_eq!(Diagnostics::default().render(true), "");
}

#[test]
fn flags_and_several_files_are_counted() {
    let flag =
        Diagnostic::error("plan/undeclared", Place::Named("--var x".into()), "the plan has no variable `x`");
    assert_eq!(Diagnostics(vec![flag.clone()]).summary(), "1 problem");
    let other = Source { name: "vars.yaml".into(), text: "a".into() };
    let other = Diagnostic::warning("plan/x", place(&other, 0..1), "w");
    assert_eq!(Diagnostics(vec![flag, at("a", "a"), other]).summary(), "2 problems, 1 warning in 2 files");
}
