//! What the YAML reader takes and refuses, and that nothing makes it panic.

use super::*;

fn load(text: &str) -> (Option<Tree>, Vec<String>) {
    let source = Source { name: "t.yaml".into(), text: text.into() };
    let mut diagnostics = Diagnostics::default();
    let tree = read(&source, Codes::PLAN, &mut diagnostics);
    (tree, diagnostics.iter().map(ToString::to_string).collect())
}

#[test]
fn probe_spans() {
    for text in [
        "a: 1\nb:\n  - x\n  - {c: 'd', e: [1, 2]}\nf: |\n  hello\n  world\ng: >-\n  foo\nh:\ni: \"é\\n\"\n",
        "a: {{ x }}\n",
        "- - - a\n",
        "\u{feff}a: 1\n",
    ] {
        for event in serde_saphyr::granit_parser::Parser::new_from_str(text) {
            println!("{event:?}");
        }
    }
}
