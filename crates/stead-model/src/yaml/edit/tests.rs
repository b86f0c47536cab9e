//! What an edit changes and what it refuses, and that it changes nothing else.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const KUSTOMIZATION: &str = "\
# the cluster
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: platform   # keep
  namespace: flux-system
spec:
  interval: 10m
  sourceRef:
    kind: GitRepository
    path: ./not-this

  path: ./overlays/home   # here
  prune: true
";

fn source(text: &str) -> Source {
    Source { name: "f.yaml".into(), text: text.into() }
}

fn spot(path: &str) -> Spot {
    Spot { select: BTreeMap::new(), path: KeyPath::parse(path).unwrap() }
}

fn selecting(path: &str, select: &[(&str, &str)]) -> Spot {
    let select = select.iter().map(|(path, text)| (KeyPath::parse(path).unwrap(), (*text).to_owned()));
    Spot { select: select.collect(), path: KeyPath::parse(path).unwrap() }
}

fn text(text: &str) -> Wanted {
    Wanted::Text(text.to_owned())
}

fn after(old: &str, path: &str, wanted: &Wanted) -> String {
    set(&source(old), &spot(path), wanted).unwrap().text.unwrap()
}

/// Returns `line:column message` of the only problem.
fn refused(old: &str, spot: &Spot) -> String {
    let problems = find(&source(old), spot).unwrap_err();
    assert_eq!(set(&source(old), spot, &text("x")).unwrap_err(), problems);
    let [problem] = problems.0.as_slice() else { panic!("{problems}") };
    let (_, at) = problem.place.location();
    let (line, column) = at.unwrap_or_default();
    format!("{line}:{column} {}: {}", problem.code, problem.message)
}

#[test]
fn only_the_bytes_of_the_value_change() {
    let new = after(KUSTOMIZATION, "spec.path", &text("./overlays/prod"));
    assert_eq!(new, KUSTOMIZATION.replace("./overlays/home ", "./overlays/prod "));
    assert_eq!(after(&new, "spec.path", &text("./overlays/home")), KUSTOMIZATION);
    let found = find(&source(KUSTOMIZATION), &spot("spec.path")).unwrap();
    assert_eq!((found.value, found.span.line, found.span.column), (json!("./overlays/home"), 13, 9));
    let same = set(&source(KUSTOMIZATION), &spot("spec.path"), &text("./overlays/home")).unwrap();
    assert_eq!(same.text, None);
}

#[test]
fn a_byte_order_mark_line_ends_and_a_missing_final_newline_stay() {
    let old = format!("\u{feff}{}", KUSTOMIZATION.trim_end().replace('\n', "\r\n"));
    let new = after(&old, "spec.path", &text("é"));
    assert_eq!(new, old.replace("./overlays/home ", "é "));
    let new = after(&old, "spec.prune", &Wanted::Bool(false));
    assert_eq!(new, old.replace("prune: true", "prune: false"));
    assert_eq!(after("\u{feff}a: 1", "a", &Wanted::Int(2)), "\u{feff}a: 2");
    assert_eq!(after("a:   x\t # c\r\n", "a", &text("z")), "a:   z\t # c\r\n");
}

#[test]
fn every_kind_of_path_is_followed() {
    let old =
        "a:\n- {name: web, image: 'x'}\n- name: db\n  image: \"y\"\nb: {\"c.d\": [1, [2, 3]]}\n1: one\n";
    assert_eq!(after(old, "a[name=web].image", &text("it's")), old.replace("'x'", "'it''s'"));
    assert_eq!(after(old, "a[1].image", &text("on")), old.replace("\"y\"", "\"on\""));
    assert_eq!(after(old, "b[\"c.d\"][1][0]", &Wanted::Int(7)), old.replace("[2,", "[7,"));
    assert_eq!(after(old, "1", &text("two")), old.replace("one", "two"));
    assert_eq!(after("- a\n- b\n", "[1]", &text("c")), "- a\n- c\n");
}

#[test]
fn a_plain_value_that_would_mean_something_else_is_quoted() {
    for (value, written) in
        [("on", "\"on\""), ("1.0", "\"1.0\""), ("a: b", "\"a: b\""), ("x y", "x y"), ("", "\"\"")]
    {
        assert_eq!(after("a: old # c\n", "a", &text(value)), format!("a: {written} # c\n"));
    }
    assert_eq!(after("{a: old, b: c}\n", "a", &text("x, y")), "{a: \"x, y\", b: c}\n");
    assert_eq!(after("{\"a\":old}\n", "a", &text("x")), "{\"a\":x}\n");
    // A number in quotes is a text, and a text is no number.
    assert_eq!(after("a: 5\n", "a", &text("5")), "a: \"5\"\n");
    assert_eq!(after("a: \"5\"\n", "a", &Wanted::Int(5)), "a: 5\n");
    assert_eq!(after("a: ~\n", "a", &text("x")), "a: x\n");
}

/// Quotes that a value needs go with it; those that somebody chose stay.
#[test]
fn setting_back_gives_the_same_bytes_through_a_value_that_needs_quotes() {
    for passing in ["on", "1.0", "a: b", ""] {
        let there = after("mode: auto # keep\n", "mode", &text(passing));
        assert_eq!(there, format!("mode: \"{passing}\" # keep\n"));
        assert_eq!(after(&there, "mode", &text("auto")), "mode: auto # keep\n");
    }
    assert_eq!(after("mode: \"on\"\n", "mode", &text("off")), "mode: \"off\"\n");
    for chosen in ["mode: \"auto\"\n", "mode: 'auto'\n"] {
        let there = after(chosen, "mode", &text("manual"));
        assert_eq!(after(&there, "mode", &text("auto")), chosen);
    }
}

#[test]
fn select_picks_one_of_several_documents() {
    let old =
        "---\nkind: A\nmetadata: {name: one}\nv: x\n---\n# c\nkind: A\nmetadata: {name: two}\nv: x\n---\n";
    let picked = selecting("v", &[("kind", "A"), ("metadata.name", "two")]);
    let new = set(&source(old), &picked, &text("z")).unwrap().text.unwrap();
    assert_eq!(
        new,
        "---\nkind: A\nmetadata: {name: one}\nv: x\n---\n# c\nkind: A\nmetadata: {name: two}\nv: z\n---\n"
    );
    assert_eq!(
        refused(old, &spot("v")),
        "7:1 intent/path: the file holds 2 documents, and `select` does not say which is meant"
    );
    assert_eq!(refused(old, &selecting("v", &[("kind", "A")])), "7:1 intent/path: 2 documents have kind: A");
    assert_eq!(refused(old, &selecting("v", &[("kind", "B")])), "0:0 intent/path: no document has kind: B");
    assert_eq!(refused("# nothing\n", &spot("v")), "0:0 intent/path: the file holds no document");
    // What is empty between two marks is no document.
    assert_eq!(after("---\na: x\n---\n", "a", &text("z")), "---\na: z\n---\n");
}

#[test]
fn what_is_not_one_value_of_its_own_is_refused() {
    for (old, path, said) in [
        ("a: {b: 1}\n", "c", "1:1 intent/path: the document has no key `c`"),
        ("a: {b: 1}\n", "a.c", "1:4 intent/path: `a` has no key `c`"),
        ("a: {b: 1}\n", "a", "1:4 intent/path: `a` is a map, not a single value"),
        ("a: [1]\n", "a", "1:4 intent/path: `a` is a list, not a single value"),
        ("a: [1]\n", "a[1]", "1:4 intent/path: `a` has 1 elements, not one at [1]"),
        ("a: [1]\n", "a.b", "1:4 intent/path: `a` is a list, not a map"),
        ("a: {b: 1}\n", "a[0]", "1:4 intent/path: `a` is a map, not a list"),
        ("a: 1\n", "a.b", "1:4 intent/path: `a` is a value without anything below it"),
        ("a: [{n: x}, {n: x}]\n", "a[n=x].n", "1:4 intent/path: `a` has 2 elements with `n: x`"),
        ("a: [{n: x}]\n", "a[n=y].n", "1:4 intent/path: `a` has no element with `n: y`"),
        ("a: |\n  x\n", "a", "2:3 intent/path: `a` is a block of lines (`|` or `>`)"),
        ("a: >-\n  x\n", "a", "2:3 intent/path: `a` is a block of lines (`|` or `>`)"),
        ("b: &x 1\na: *x\n", "a", "2:4 intent/path: `a` is an alias"),
        (
            "b: &x {c: 1}\na: *x\n",
            "a.c",
            "2:4 intent/path: `a` is an alias: what it names is written elsewhere",
        ),
        ("a: &x 1\n", "a", "1:7 intent/path: `a` has an anchor, so other places may change with it"),
        (
            "a: &x {b: 1}\nc: *x\n",
            "a.b",
            "1:7 intent/path: `a.b` is inside an anchored value, so other places would change with it",
        ),
        (
            "b: &x {c: 1}\na:\n  <<: *x\n  d: 1\n",
            "a.c",
            "3:3 intent/path: `c` is not written in `a`; if it is there, it is inherited by `<<`",
        ),
        ("a: !!str 1\n", "a", "1:10 intent/path: `a` has a tag"),
        ("a:\nb: 1\n", "a", "1:2 intent/path: `a` has no value yet"),
        ("a: 1\nb: {c: 1, c: 2}\n", "a", "2:11 intent/file: the key `c` is there twice"),
        ("a: 1\n\"a\": 2\n", "a", "2:1 intent/file: the key `a` is there twice"),
    ] {
        assert_eq!(refused(old, &spot(path)), said, "{old}");
    }
    let broken = find(&source("a: [1\nb: 2\n"), &spot("a")).unwrap_err();
    assert_eq!(broken.0[0].code, "intent/file");
    assert!(broken.0[0].place.location().1.is_some());
    assert_eq!(find(&source("a: *none\n"), &spot("a")).unwrap_err().0[0].code, "intent/file");
}

#[test]
fn the_keys_own_value_beside_a_merge_key_is_edited() {
    let old = "b: &x {c: 1}\na:\n  <<: *x\n  c: 2\n";
    assert_eq!(after(old, "a.c", &Wanted::Int(3)), "b: &x {c: 1}\na:\n  <<: *x\n  c: 3\n");
    // Nothing names the anchor, so nothing else can change.
    assert_eq!(after("a: &x {b: 1}\n", "a.b", &Wanted::Int(2)), "a: &x {b: 2}\n");
}

/// Case 22: a key that moved is said to be elsewhere.
#[test]
fn a_key_of_the_same_name_elsewhere_is_named_and_not_touched() {
    let moved = KUSTOMIZATION.replace("\n  path: ./overlays/home   # here\n", "");
    let problems = find(&source(&moved), &spot("spec.path")).unwrap_err();
    assert_eq!(
        problems.0[0].help,
        "`spec.sourceRef.path` in line 11 has this name, and is not touched: put the key where the path says"
    );
}

#[test]
fn depth_is_bounded() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    assert_eq!(find(&source(&deep), &spot("[0]")).unwrap_err().0[0].code, "intent/file");
}

/// Any document of maps, lists and scalars in any style, with the paths of its scalars.
fn any_yaml() -> impl Strategy<Value = String> {
    let word = "[a-z./$ é:#'-]{0,8}";
    let scalar = prop_oneof![
            word.prop_map(|text| quote::spellings(&Wanted::Text(text), ScalarStyle::Plain, true).remove(0)),
            word.prop_map(
                |text| quote::spellings(&Wanted::Text(text), ScalarStyle::SingleQuoted, true).remove(0)
            ),
            word.prop_map(
                |text| quote::spellings(&Wanted::Text(text), ScalarStyle::DoubleQuoted, true).remove(0)
            ),
            Just("12".to_owned()),
            Just("~".to_owned()),
            Just("true".to_owned()),
        ];
    let flow = scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(inner, 0..4).prop_map(|values| {
                let entries = values.iter().enumerate().map(|(index, value)| format!("k{index}: {value}"));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(" , "))
            }),
        ]
    });
    let line = (flow, prop::sample::select(vec!["", " # note", "  ", "\n# above\n"]));
    let lines = prop::collection::vec(line, 1..5);
    (lines, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(lines, bom, crlf, newline)| {
        let mut text = String::new();
        for (index, (value, end)) in lines.iter().enumerate() {
            text.push_str(&format!("k{index}:\n  in: {value}{end}\n  list:\n  - {value}\n"));
        }
        let text = if newline { text } else { text.trim_end().to_owned() };
        let text = if crlf { text.replace('\n', "\r\n") } else { text };
        if bom { format!("\u{feff}{text}") } else { text }
    })
}

/// Returns the paths of all nodes of the only document.
fn paths(old: &Source) -> Vec<KeyPath> {
    let documents = documents::read(old).unwrap();
    let mut open = vec![(documents.roots[0], Vec::new())];
    let mut paths = Vec::new();
    while let Some((node, at)) = open.pop() {
        let below = |part| [at.clone(), vec![part]].concat();
        match &documents.nodes[node].kind {
            Kind::Map(entries) => {
                for (key, value) in entries {
                    let Kind::Scalar { value: key, .. } = &documents.nodes[*key].kind else { continue };
                    open.push((*value, below(PathPart::Key(key.clone()))));
                }
            }
            Kind::List(items) => {
                open.extend(items.iter().enumerate().map(|(i, item)| (*item, below(PathPart::Index(i)))));
            }
            Kind::Scalar { .. } | Kind::Alias => paths.push(KeyPath(at)),
        }
    }
    paths.sort();
    paths
}

/// Returns the value of every path, from a reading of its own.
fn values(text: &str) -> Vec<(KeyPath, Value)> {
    let source = source(text);
    let all = paths(&source).into_iter().filter_map(|path| {
        let found = find(&source, &Spot { select: BTreeMap::new(), path: path.clone() }).ok()?;
        Some((path, found.value))
    });
    all.collect()
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    prop_oneof![
        "\\PC{0,10}".prop_map(Wanted::Text),
        "[a-z0-9:# ,'\"\\[\\]{}\\n\\t\\\\.-]{0,10}".prop_map(Wanted::Text),
        prop::sample::select(vec!["on", "1.0", "a: b", "~", "", "---", "./overlays/home"])
            .prop_map(|text| Wanted::Text(text.to_owned())),
        any::<i64>().prop_map(Wanted::Int),
        any::<bool>().prop_map(Wanted::Bool),
    ]
}

/// Returns the value as something wanted, where it can be.
fn as_wanted(value: &Value) -> Option<Wanted> {
    match value {
        Value::String(text) => Some(Wanted::Text(text.clone())),
        Value::Bool(value) => Some(Wanted::Bool(*value)),
        Value::Number(number) => number.as_i64().map(Wanted::Int),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

proptest! {
    /// Section 14: an edit changes one path only, and all bytes around the value stay.
    #[test]
    fn an_edit_changes_one_path_only(old in any_yaml(), at in any::<prop::sample::Index>(), wanted in any_wanted()) {
        let before = values(&old);
        prop_assume!(!before.is_empty());
        let (path, value) = at.get(&before).clone();
        let spot = Spot { select: BTreeMap::new(), path: path.clone() };
        let edited = set(&source(&old), &spot, &wanted).unwrap();
        let Some(new) = edited.text else {
            prop_assert_eq!(value, wanted.to_json());
            return Ok(());
        };
        let after = values(&new);
        prop_assert_eq!(before.len(), after.len());
        for (before, after) in before.iter().zip(&after) {
            let (there, value) = if before.0 == path { (&path, wanted.to_json()) } else { (&before.0, before.1.clone()) };
            prop_assert_eq!((there, &value), (&after.0, &after.1));
        }
        let span = edited.before.span;
        prop_assert!(new.starts_with(&old[..span.start]) && new.ends_with(&old[span.end..]));
        // Back again: the same bytes, where nobody's quotes were lost on the way.
        let style = |text: &str, at: usize| text[at..].chars().next().filter(|c| matches!(c, '"' | '\''));
        let needs_quotes = |wanted: &Wanted| {
            matches!(wanted, Wanted::Text(text)
                if quote::spellings(wanted, ScalarStyle::Plain, true)[0] != *text)
        };
        let comes_back = match (style(&old, span.start), style(&new, span.start)) {
            (None, _) => true,
            (Some('"'), Some('"')) => !needs_quotes(&wanted),
            (was, now) => was == now,
        };
        if let Some(was) = as_wanted(&value) && comes_back {
            let back = set(&source(&new), &spot, &was).unwrap().text;
            prop_assert_eq!(back.as_deref(), Some(old.as_str()));
        }
    }

    #[test]
    fn no_text_panics(text in "[a-c:\\-\\[\\]{}&*!|>'\"%@`#?, <\\n\\r\\té\u{feff}]{0,40}", wanted in any_wanted()) {
        for path in ["a", "a.b", "[0]", "a[0].c", "a[b=c].a"] {
            let spot = spot(path);
            let source = source(&text);
            if let Ok(edited) = set(&source, &spot, &wanted) && let Some(new) = edited.text {
                let found = find(&Source { text: new.into(), ..source }, &spot).unwrap();
                prop_assert_eq!(found.value, wanted.to_json());
            }
        }
    }
}
