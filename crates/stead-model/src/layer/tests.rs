//! Every row of the grammar, and what problems say.

use proptest::prelude::*;

use super::*;

fn source(text: &str) -> Source {
    Source { name: "config.env".into(), text: text.into() }
}

/// Writes a text with `<…>` for references, so that literal dollars stand out.
fn show(text: &Text) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(literal) => literal.clone(),
        Piece::Reference { name, default: None, .. } => format!("<{name}>"),
        Piece::Reference { name, default: Some(default), .. } => format!("<{name}|{}>", show(default)),
    };
    text.0.iter().map(piece).collect()
}

fn read(text: &str) -> (LayerFile, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    (LayerFile::read(&source(text), &mut diagnostics), diagnostics)
}

/// Returns the assignments of a file without problems.
fn good(text: &str) -> Vec<(String, String)> {
    let (file, diagnostics) = read(text);
    assert!(!diagnostics.has_errors(), "{text:?}: {diagnostics}");
    file.assignments.iter().map(|a| (a.key.clone(), show(a.value.as_ref().unwrap()))).collect()
}

fn value(text: &str) -> String {
    let found = good(text);
    assert_eq!(found.len(), 1, "{text:?}: {found:?}");
    assert_eq!(found[0].0, "A", "{text:?}");
    found[0].1.clone()
}

/// Returns code, line and column of every error.
fn errors(text: &str) -> Vec<(&'static str, u32, u32)> {
    let (_, diagnostics) = read(text);
    let errors = diagnostics.iter().filter(|problem| problem.severity == crate::Severity::Error);
    errors
        .map(|problem| {
            let (name, at) = problem.place.location();
            let (line, column) = at.unwrap();
            assert_eq!(name, "config.env");
            assert!(!problem.help.is_empty(), "{problem}");
            (problem.code, line, column)
        })
        .collect()
}

fn error(text: &str) -> (&'static str, u32, u32) {
    let found = errors(text);
    assert_eq!(found.len(), 1, "{text:?}: {found:?}");
    found[0]
}

#[test]
fn notes_and_blank_lines_are_ignored() {
    assert_eq!(good("# note\n\n  \t\n   # A=x 'unclosed $(\n"), []);
    assert_eq!(good(""), []);
}

#[test]
fn plain_exported_and_empty_values() {
    assert_eq!(value("A=plain"), "plain");
    assert_eq!(value("export A=plain\n"), "plain");
    assert_eq!(value("\t export \t A=plain\n"), "plain");
    assert_eq!(value("A="), "");
    assert_eq!(value("  A=\n"), "");
    assert_eq!(value("A=  # note\n"), "");
    assert_eq!(value("A=\"\"''\n"), "");
    assert_eq!(value("A=a=b*?[x]{y,z}!%^+,./:@-_ü\n"), "a=b*?[x]{y,z}!%^+,./:@-_ü");
    assert_eq!(
        good("export=1\nif=2\n_A1=3"),
        [("export".into(), "1".into()), ("if".into(), "2".into()), ("_A1".into(), "3".into())]
    );
}

#[test]
fn a_note_needs_a_blank_before_it() {
    assert_eq!(value("A=x  # note"), "x");
    assert_eq!(value("A=x#y"), "x#y");
    assert_eq!(value("A=#y"), "#y");
    assert_eq!(value("A='x'#y # it's"), "x#y");
}

#[test]
fn single_quotes_are_literal_and_may_span_lines() {
    assert_eq!(value("A='lit ${B} $(x) `y` \\n \" # ; ~'"), "lit ${B} $(x) `y` \\n \" # ; ~");
    assert_eq!(value("A='one\ntwo\n'\n"), "one\ntwo\n");
    assert_eq!(value("A='a\\\nb'"), "a\\\nb");
}

#[test]
fn double_quotes_expand_escape_and_may_span_lines() {
    assert_eq!(value(r#"A="q \" \$ \\ \n ${B}""#), r#"q " $ \ \n <B>"#);
    assert_eq!(value("A=\"\\` \\a \\' \\# it's\""), "` \\a \\' \\# it's");
    assert_eq!(value("A=\"one\ntwo\\\nthree\""), "one\ntwothree");
    assert_eq!(value("A=\"; & | < > ( ) # ~ {a,b}\""), "; & | < > ( ) # ~ {a,b}");
    assert_eq!(value("A=\"$B's\""), "<B>'s");
}

#[test]
fn a_backslash_outside_quotes_and_parts_side_by_side() {
    assert_eq!(value(r"A=a\ b"), "a b");
    assert_eq!(value(r#"A="x"y'z'"#), "xyz");
    assert_eq!(value(r#"A=\$B\"\'\\\~\;\#\n"#), r#"$B"'\~;#n"#);
    assert_eq!(value("A=one\\\ntwo"), "onetwo");
    assert_eq!(value("A=\\\n  # nothing"), "");
    assert_eq!(value("A\\\n=x"), "x");
}

#[test]
fn references_with_and_without_braces_and_with_a_default() {
    assert_eq!(value("A=$B.${C}/x"), "<B>.<C>/x");
    assert_eq!(value("A=\"$B.${C}\""), "<B>.<C>");
    assert_eq!(value("A=${B:-text}"), "<B|text>");
    assert_eq!(value("A=${B:-}"), "<B|>");
    assert_eq!(value("A=${B:-a b;c&d|e<f> (g)#h}"), "<B|a b;c&d|e<f> (g)#h>");
    assert_eq!(value("A=\"${B:-< (x) a:~}\""), "<B|< (x) a:~>");
    assert_eq!(value("A=${B:-$C-${D:-${E}}$}x"), "<B|<C>-<D|<E>>$>x");
    assert_eq!(value("A=${B:-a{b}c}"), "<B|a{b>c}");
    assert_eq!(value("A=$B\\\nC"), "<BC>");
    assert_eq!(value("A=\"$\\\nB\""), "<B>");
}

#[test]
fn a_reference_knows_its_place() {
    let (file, _) = read("X=1\nA=\"ü ${B}\ny $C\"\n");
    let references = file.assignments[1].value.as_ref().unwrap().references();
    let places: Vec<_> = references.iter().map(|(name, span)| (*name, span.line, span.column)).collect();
    assert_eq!(places, [("B", 2, 6), ("C", 3, 3)]);
    assert_eq!((file.assignments[1].span.line, file.assignments[1].span.column), (2, 1));
    assert_eq!(file.assignments[1].raw, "\"ü ${B}\ny $C\"");
}

#[test]
fn a_dollar_before_anything_else_is_literal() {
    assert_eq!(value("A=cost$"), "cost$");
    assert_eq!(value("A=\"50 $ off\""), "50 $ off");
    assert_eq!(value("A=$% # x"), "$%");
    assert_eq!(value("A=$.$/$:$=$,"), "$.$/$:$=$,");
    assert_eq!(value("A=\"$'x'$\""), "$'x'$");
    assert_eq!(value(r"A=$\x"), "$x");
}

#[test]
fn substitutions_are_refused_in_double_quotes_too() {
    let forms = [
        "$(cmd)",
        "`cmd`",
        "$((1))",
        "$[1]",
        "${B#x}",
        "${B-x}",
        "${B:=x}",
        "${#B}",
        "${!B}",
        "${B:1}",
        "${B^^}",
        "${1}",
        "${B[0]}",
        "${}",
        "${ B}",
        "${?}",
        "$1",
        "$0",
        "$?",
        "$#",
        "$@",
        "$*",
        "$-",
        "$$",
        "$!",
        "$_",
        "${_}",
        "${_:-x}",
        "${B:-$(x)}",
        "${B:-`x`}",
        "${B:-$1}",
        "$\\\n(x)",
    ];
    for form in forms {
        for text in [format!("A=a{form}\n"), format!("A=\"a{form}\"\n"), format!("export A=a{form}")] {
            assert_eq!(error(&text).0, SUBSTITUTION, "{text}");
        }
    }
    for text in ["A=$'x'", "A=$\"x\"", "A=${B:-<(x)}", "A=${B:->(x)}", "A=\"${B:-<(x)}\""] {
        assert_eq!(error(text).0, SUBSTITUTION, "{text}");
    }
}

#[test]
fn what_is_no_assignment_is_refused() {
    let forms = [
        "A = x",
        "A =x",
        "A= x",
        "A=x y",
        "1A=x",
        "_=x",
        "echo hi",
        "export A",
        "export A # note",
        "export",
        "A+=x",
        "A[0]=x",
        "=x",
        "A",
        "-x",
        "export -n A=x",
        "export A=x B=y",
        "A=x B=y",
        "'A'=x",
        "$A=x",
        "A.b=x",
        "A-b=x",
        "ü=x",
        "A\\ =x",
    ];
    for form in forms {
        let found = errors(&format!("{form}\nB=fine\n"));
        assert_eq!(found.len(), 1, "{form}: {found:?}");
        assert_eq!((found[0].0, found[0].1), (SYNTAX, 1), "{form}");
    }
}

#[test]
fn each_mistake_says_how_to_write_it() {
    for (text, words) in [
        ("A = x", "write `A=value` without blanks"),
        ("A= x", "write `A=value` without blanks"),
        ("A=x y", "put the value in quotes: `A=\"…\"`"),
        ("1A=x", "a key is a letter"),
        ("echo hi", "write `KEY=value`, one to a line"),
        ("export A", "write `export A=value`"),
        ("A+=x", "write `A=\"${A}…\"`"),
        ("A='x", "close it"),
        ("A=x;", "put the value in quotes"),
        ("A=~/x", "write `${HOME}`"),
        ("A=$(x)", "write `\\$`"),
        ("A=\0", "remove it"),
    ] {
        let (_, diagnostics) = read(text);
        assert!(diagnostics.0[0].help.contains(words), "{text}: {diagnostics}");
    }
}

#[test]
fn operators_and_tildes_must_be_quoted() {
    for operator in [";", "&", "|", "<", ">", "(", ")"] {
        for text in [format!("A=x{operator}y"), format!("A={operator}"), format!("A=x {operator} y")] {
            assert_eq!(error(&text).0, SYNTAX, "{text}");
        }
    }
    for text in [
        "A=~",
        "A=~/x",
        "A=x:~/y",
        "A=$B:~",
        "A=\\\n~",
        "A=x:\\\n~",
        "A=${B:-~}",
        "A=\"${B:-~/x}\"",
        "A=${B:-a:~}",
    ] {
        assert_eq!(error(text).0, SYNTAX, "{text}");
    }
    for (text, expected) in
        [("A=x~", "x~"), ("A=\"~\":'~'", "~:~"), ("A=\\~", "~"), ("A=x=~", "x=~"), ("A=''~", "~")]
    {
        assert_eq!(value(text), expected);
    }
}

#[test]
fn braces_that_export_would_expand_are_refused() {
    assert_eq!(error("export A={a,b}").0, SYNTAX);
    assert_eq!(error("export A=x{1..3}").0, SYNTAX);
    assert_eq!(value("export A={}"), "{}");
    assert_eq!(value("export A='{a,b}'"), "{a,b}");
}

#[test]
fn unclosed_quotes_and_braces_are_refused_and_the_next_lines_are_read() {
    assert_eq!(error("A='x\nB=fine\n"), (SYNTAX, 1, 3));
    assert_eq!(error("A=\"x\nB=fine\n"), (SYNTAX, 1, 3));
    assert_eq!(error("A=x\\"), (SYNTAX, 1, 4));
    for open in ["A=${B", "A=${B:-x", "A=\"${B:-x\n}\"", "A=${", "A=\"${\n}\""] {
        assert_eq!((error(open).0, error(open).1), (SYNTAX, 1), "{open}");
    }
    assert_eq!(errors("A='x\nB=$(y)\nC=a b\n"), [(SYNTAX, 1, 3), (SUBSTITUTION, 2, 3), (SYNTAX, 3, 4)]);
}

#[test]
fn a_default_holds_no_quotes_and_no_backslashes_and_is_not_nested_without_end() {
    for text in ["A=${B:-'x'}", "A=${B:-\"x\"}", "A=\"${B:-\\}}\"", "A=${B:-a\\\nb}"] {
        assert_eq!(error(text).0, SYNTAX, "{text}");
    }
    let nested = |depth: usize| format!("A={}{}", "${B:-".repeat(depth), "}".repeat(depth));
    assert!(errors(&nested(32)).is_empty());
    assert_eq!(error(&nested(33)).0, SYNTAX);
    assert_eq!(error(&nested(100_000)).0, SYNTAX);
}

#[test]
fn byte_order_mark_and_carriage_returns_are_dropped() {
    assert_eq!(
        good("\u{feff}A=x\r\nB='a\r\nb'\r\nC=\"a\\\r\nb\"\r\n# note\r\n\r\nD=\r\n"),
        [
            ("A".into(), "x".into()),
            ("B".into(), "a\nb".into()),
            ("C".into(), "ab".into()),
            ("D".into(), String::new())
        ]
    );
    assert_eq!(value("A=a\rb"), "a\rb");
}

#[test]
fn nul_bytes_are_refused_wherever_they_are() {
    assert_eq!(errors("A=x\0y\n# \0\0\nB='\0'\n"), [(SYNTAX, 1, 4), (SYNTAX, 2, 3), (SYNTAX, 3, 4)]);
}

#[test]
fn bytes_that_are_no_text_are_refused_and_the_rest_is_read() {
    let mut diagnostics = Diagnostics::default();
    let file = LayerFile::from_bytes("config.env", b"A=x\nB=geheim\xff\nC=$(x)\n", &mut diagnostics);
    assert_eq!(file.assignments.len(), 3);
    let found: Vec<_> = diagnostics.iter().map(|problem| problem.place.to_string()).collect();
    assert_eq!(found, ["config.env:2:9", "config.env:3:3"]);
    assert!(!diagnostics.render(false).contains("geheim"));
}

#[test]
fn a_key_set_twice_is_a_warning_with_both_lines_and_both_are_kept() {
    let (file, diagnostics) = read("A=1\nB=2\nA=${A}3\n");
    assert_eq!(file.assignments.len(), 3);
    assert!(!diagnostics.has_errors());
    assert_eq!(diagnostics.0.len(), 1);
    assert_eq!(diagnostics.0[0].code, DUPLICATE);
    assert_eq!(diagnostics.0[0].place.to_string(), "config.env:3:1");
    assert!(diagnostics.0[0].message.contains("line 1 and again in line 3"), "{diagnostics}");
}

#[test]
fn a_bad_value_keeps_its_key() {
    let (file, _) = read("A=$(x)\nB=fine\n");
    let kept: Vec<_> = file.assignments.iter().map(|a| (a.key.as_str(), a.value.is_some())).collect();
    assert_eq!(kept, [("A", false), ("B", true)]);
}

/// Case 8, as far as the file alone can tell: each line is told of, at once.
#[test]
fn one_problem_per_line_and_all_lines_at_once() {
    let text = "X=$(touch pwned)\nA=\"$(echo \"a b\") `x`\"\nB=a b # don't\nC='fine\n'\necho \"two\nlines\"\nD=a b c\nE=fine\n";
    assert_eq!(
        errors(text),
        [(SUBSTITUTION, 1, 3), (SUBSTITUTION, 2, 4), (SYNTAX, 3, 4), (SYNTAX, 6, 1), (SYNTAX, 8, 4)]
    );
}

#[test]
fn no_problem_shows_a_value() {
    let secret = "hunter2";
    for text in [
        "A=hunter2 hunter2",
        "A=hunter2;hunter2",
        "A='hunter2",
        "A=\"hunter2 $(hunter2)\"",
        "A= hunter2",
        "A = hunter2",
        "hunter2",
        "hunter2 hunter2",
        "1A=hunter2",
        "A=hunter2\nA=hunter2",
        "export A=hunter2{a,b}",
        "A+=hunter2",
        "A=${B:-hunter2",
        "A=${B:-hunter2'}",
        "A=${B:-hunter2\nhunter2}",
        "A=~hunter2",
        "A=hunter2\0",
        "export A=x hunter2",
        "A='hunter2\nhunter2' hunter2 # hunter2",
    ] {
        let (file, diagnostics) = read(text);
        assert!(!diagnostics.0.is_empty(), "{text:?}");
        for shown in
            [diagnostics.render(false), format!("{file:?} {:?}", file.assignments), diagnostics.to_string()]
        {
            assert!(!shown.contains(secret), "{text:?}: {shown}");
        }
    }
}

#[test]
fn a_problem_shows_the_key_and_where_in_the_value() {
    let (_, diagnostics) = read("TOKEN=abc def\n");
    insta::assert_snapshot!(diagnostics.render(false), @r#"
    error[layer/syntax]: the value ends at this blank, and more follows
     --> config.env:1:10
      |
    1 | TOKEN=*** ***
      |          ^
      |
      = help: put the value in quotes: `TOKEN="…"`

    1 problem in config.env
    "#);
}

#[test]
fn strings_of_a_catalogue() {
    let place = Place::Text { source: source("x"), span: Span { start: 0, end: 1, line: 3, column: 5 } };
    let parse = |text: &str| {
        let mut diagnostics = Diagnostics::default();
        let parsed = Text::parse(text, &place, &mut diagnostics);
        (show(&parsed), diagnostics)
    };
    for (text, expected) in [
        ("", ""),
        ("plain 'it' \"is\" ~ ; # \\n", "plain 'it' \"is\" ~ ; # \\n"),
        ("${A}/$B/${C:-d e}", "<A>/<B>/<C|d e>"),
        ("\\$A \\\\$B \\", "$A \\$B \\"),
        ("`x` 5$ $. $'a'", "`x` 5$ $. $'a'"),
        ("a\r\nb", "a\r\nb"),
        ("$A\\\nB", "<A>\\\nB"),
        ("${A:-<(`x`)}", "<A|<(`x`)>"),
    ] {
        let (shown, diagnostics) = parse(text);
        assert_eq!((shown.as_str(), diagnostics.0.len()), (expected, 0), "{text:?}");
    }
    for text in ["$(x)", "${A#x}", "${A", "$1", "$?", "${A:-'x'}", "${A:-~}", "$[1]"] {
        let (shown, diagnostics) = parse(text);
        assert_eq!((shown.as_str(), diagnostics.0.len()), ("", 1), "{text:?}");
        assert_eq!(diagnostics.0[0].place, place);
    }
    let mut diagnostics = Diagnostics::default();
    let parsed = Text::parse("a${B:-$C}", &place, &mut diagnostics);
    assert_eq!(
        parsed.references().iter().map(|(name, span)| (*name, span.line)).collect::<Vec<_>>(),
        [("B", 3), ("C", 3)]
    );
    assert_eq!(format!("{parsed:?}"), "\"***${B:-***}\"");
}

proptest! {
    #[test]
    fn no_text_panics_the_reader(text in "\\PC*") {
        read(&text);
    }

    #[test]
    fn no_near_miss_panics_the_reader_or_is_misplaced(
        text in "([AB]=|export |[$]|[{]|[}]|:-|'|\"|\\\\|\n|\r\n|\r| |#|~|:|ü|\u{0}|`|x|[(]|;|\u{feff}){0,40}"
    ) {
        let (file, diagnostics) = read(&text);
        for Assignment { key, span, .. } in &file.assignments {
            let written = text[span.start..span.end].replace("\\\r\n", "").replace("\\\n", "");
            prop_assert_eq!(key, &written);
        }
        for diagnostic in diagnostics.iter() {
            let Place::Text { source, span } = &diagnostic.place else { panic!("{diagnostic}") };
            prop_assert_eq!(source.text.len(), text.len());
            prop_assert!(span.start <= span.end && source.text.get(span.start..span.end).is_some());
        }
        diagnostics.render(false);
        let mut unread = Diagnostics::default();
        Text::parse(&text, &Place::Named("x".to_owned()), &mut unread);
    }

    #[test]
    fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        LayerFile::from_bytes("x", &bytes, &mut Diagnostics::default());
    }
}
