//! What the YAML reader takes and refuses, and that nothing makes it panic.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn load(text: &str) -> (Option<Tree>, Diagnostics) {
    let source = Source { name: "t.yaml".into(), text: text.into() };
    let mut diagnostics = Diagnostics::default();
    let tree = read(&source, Codes::PLAN, &mut diagnostics);
    (tree, diagnostics)
}

fn problems(text: &str) -> Vec<String> {
    let (_, diagnostics) = load(text);
    diagnostics
        .iter()
        .map(|problem| {
            let (_, at) = problem.place.location();
            let (line, column) = at.unwrap_or_default();
            format!("{line}:{column} {}", problem.message)
        })
        .collect()
}

/// Calls `visit` with every node below and including `node`.
fn each<'t>(node: Node<'t>, visit: &mut dyn FnMut(Node<'t>)) {
    visit(node);
    for item in node.as_list().into_iter().flatten() {
        each(item, visit);
    }
    for (key, value) in node.as_map().into_iter().flatten() {
        visit(key);
        each(value, visit);
    }
}

#[test]
fn reads_values_with_the_core_schema() {
    let text = "a: [1, 1.5, 0x10, true, ~, yes, \"1\", 'it''s', \"é\\n\"]\nb:\n- x\n- {c: d}\ne: |\n  two\n  lines\nf: >-\n  folded\n  text\ng:\n";
    let (tree, diagnostics) = load(text);
    assert_eq!(diagnostics.0, []);
    assert_eq!(
        tree.unwrap().root().to_json(),
        json!({"a": [1, 1.5, 16, true, null, "yes", "1", "it's", "é\n"], "b": ["x", {"c": "d"}],
            "e": "two\nlines\n", "f": "folded text", "g": null})
    );
}

#[test]
fn every_key_and_value_knows_its_place() {
    let text = "a: {b: [1, 'two']}\nc:\n  - d: é\n    e: x\n  - f\ng:\n";
    let (tree, _) = load(text);
    let tree = tree.unwrap();
    let mut seen = Vec::new();
    each(tree.root(), &mut |node| {
        let span = node.span();
        seen.push(format!("{}:{} {} {:?}", span.line, span.column, node.path(), node.raw()));
    });
    insta::assert_snapshot!(seen.join("\n"));
}

#[test]
fn refuses_what_makes_a_file_mean_something_else_than_it_seems_to() {
    for (text, expected) in [
        ("a: 1\nb: 2\na: 3\n", "3:1 the key `a` is there twice"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", "3:3 merge keys (`<<`) are not used here"),
        ("a: !!str 5\n", "1:4 tags are not used here"),
        ("a: !x [1]\n", "1:4 tags are not used here"),
        ("1: a\n", "1:1 a key must be text, not the number 1"),
        ("true: a\n", "1:1 a key must be text, not the boolean true"),
        ("? [a]\n: b\n", "1:3 a key must be text, not a list or a map"),
        ("a: {{ x }}\n", "1:5 a key must be text, not a list or a map"),
        ("a: 1\n---\nb: 2\n", "2:1 a second document begins here; a file holds one"),
        ("a: *nope\n", "1:4 there is no anchor `&nope` before this alias"),
        ("a: &a [*a]\n", "1:8 this alias is inside the value it names"),
        ("a: 99999999999999999999\n", "1:4 this number does not fit in 64 bits"),
        ("a: .inf\n", "1:4 infinity and not-a-number cannot be used"),
        ("a: b\u{0}c\n", "1:5 the control character 0x00 is not allowed"),
        ("a: \u{1b}[31m\n", "1:4 the control character 0x1b is not allowed"),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
}

#[test]
fn syntax_errors_are_located_and_helped() {
    let (tree, diagnostics) = load("a: [1, 2\nb: 3\n");
    assert!(tree.is_none());
    assert_eq!(diagnostics.0.len(), 1);
    assert_eq!(diagnostics.0[0].code, "plan/syntax");
    let (_, diagnostics) = load("a: {{ x }} y\n");
    assert!(diagnostics.0[0].help.contains("in quotes"), "{diagnostics}");
}

#[test]
fn several_problems_are_told_at_once_and_the_first_of_two_keys_wins() {
    let (tree, diagnostics) = load("a: 1\na: 2\nb: !t x\n2: y\n");
    assert_eq!(diagnostics.0.len(), 3, "{diagnostics}");
    assert_eq!(tree.unwrap().root().to_json(), json!({"a": 1, "b": "x"}));
}

#[test]
fn duplicates_are_found_in_large_maps_too() {
    let mut text: String = (0..5000).map(|i| format!("k{i}: {i}\n")).collect();
    text.push_str("k77: again\n");
    assert_eq!(problems(&text), ["5001:1 the key `k77` is there twice"]);
}

#[test]
fn aliases_work_and_bombs_do_not() {
    let (tree, diagnostics) = load("x: &x {a: [1, 2]}\ny: [*x, *x]\nz: *x\n");
    assert_eq!(diagnostics.0, []);
    let x = json!({"a": [1, 2]});
    assert_eq!(tree.unwrap().root().to_json(), json!({"x": x, "y": [x, x], "z": x}));

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(", ")));
    }
    let (tree, diagnostics) = load(&bomb);
    assert!(tree.is_none());
    assert!(diagnostics.to_string().contains("aliases of this file stand for more than"), "{diagnostics}");

    let mut texts = format!("a: &a {}\nb:\n", "x".repeat(100_000));
    texts.push_str(&"- *a\n".repeat(1000));
    assert!(load(&texts).0.is_none(), "100 MB out of 100 kB");
}

#[test]
fn nesting_is_bounded_however_it_is_written() {
    assert!(load(&format!("{}{}", "[".repeat(128), "]".repeat(128))).0.is_some());
    for text in [
        format!("{}{}", "[".repeat(129), "]".repeat(129)),
        format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{}x", "- ".repeat(129)),
        format!("{}x", "- ".repeat(50_000)),
        format!("a: &a {}{}\nb: {}*a{}\n", "[".repeat(100), "]".repeat(100), "[".repeat(50), "]".repeat(50)),
    ] {
        let (tree, diagnostics) = load(&text);
        assert!(tree.is_none());
        assert!(diagnostics.to_string().contains("nested deeper than 128 levels"), "{diagnostics}");
    }
}

#[test]
fn bytes_that_are_no_text_or_too_many_are_refused() {
    let error = source("t.yaml", b"a: b\nc: \xff\n".to_vec(), Codes::PLAN).unwrap_err();
    assert_eq!(
        error.to_string(),
        "error[plan/syntax]: t.yaml:2:4: this byte is not UTF-8 (help: save the file as UTF-8)"
    );
    let error = source("t.yaml", vec![b'a'; MAX_BYTES + 1], Codes::PLAN).unwrap_err();
    assert!(error.to_string().contains("64 MiB"), "{error}");
}

#[test]
fn an_empty_file_is_null() {
    for text in ["", "\n", "# only a comment\n", "---\n", "\u{feff}"] {
        let (tree, diagnostics) = load(text);
        assert_eq!(diagnostics.0, [], "{text:?}");
        assert_eq!(tree.unwrap().root().to_json(), json!(null), "{text:?}");
    }
}

#[test]
fn booleans_in_other_spellings_are_named() {
    let (tree, mut diagnostics) = load("- yes\n- Off\n- \"true\"\n- 1\n");
    let tree = tree.unwrap();
    let mut walk = Walk::new(&mut diagnostics);
    for item in tree.root().as_list().unwrap() {
        assert_eq!(walk.boolean(item), None);
    }
    insta::assert_snapshot!(diagnostics.to_string());
}

/// Plans that are nearly right: what people's typos make of a file.
fn mutated() -> impl Strategy<Value = String> {
    const PLAN: &str = "api_version: v1\nname: web\nvars: {a: 1, b: [x, \"y\"]}\ntasks:\n  - &t {name: é, exec: [a, 'b'], when: \"x\"}\n  - name: b\n    shell: |\n      echo\n    depends_on: [a]\n  - *t\n";
    let edit = (any::<prop::sample::Index>(), 0..3_usize, "[\\[\\]{}:,&*!|>'\"%@`#?\\- \\n\\tab1~é]{0,4}");
    prop::collection::vec(edit, 1..6).prop_map(|edits| {
        let mut text: Vec<char> = PLAN.chars().collect();
        for (at, removed, added) in edits {
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, added.chars());
        }
        text.into_iter().collect()
    })
}

fn check_spans(text: &str) {
    let (tree, diagnostics) = load(text);
    for problem in diagnostics.iter() {
        if let Place::Text { source, span } = &problem.place {
            assert!(source.text.get(span.start..span.end).is_some(), "{problem}");
        }
    }
    assert!(tree.is_some() || diagnostics.has_errors(), "a file is read or refused");
    if let Some(tree) = &tree {
        each(tree.root(), &mut |node| {
            let span = node.span();
            assert!(text.get(span.start..span.end).is_some() && span.line > 0 && span.column > 0, "{node:?}");
            let _ = (node.path(), node.describe());
        });
    }
    assert_eq!(diagnostics.render(false).is_empty(), diagnostics.0.is_empty());
}

proptest! {
    #[test]
    fn no_text_panics_and_spans_lie_in_it(text in "\\PC*|[\\[\\]{}:,&*!|>'\"%?\\- \\n\\r\\ta~é\u{feff}]{0,60}") {
        check_spans(&text);
    }

    #[test]
    fn no_mutated_plan_panics(text in mutated()) {
        check_spans(&text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(source) = source("t.yaml", bytes, Codes::PLAN) {
            check_spans(&source.text);
        }
    }
}
