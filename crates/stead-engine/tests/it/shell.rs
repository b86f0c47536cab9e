//! The layer grammar against real shells: what it accepts means the same to a shell that sources the file.
//!
//! Only files are compared in which it does not matter when references are expanded: every reference is to the key
//! itself, to a key whose last line came before, or to a name nobody sets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use stead_engine::values::{Inputs, LayerInput, LayerState, resolve};
use stead_model::Catalogue;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::layer::LayerFile;

const KEYS: [&str; 5] = ["A", "B", "C", "D", "E"];

/// Sources every file in a shell of its own and prints, for each key, an `x` and the value if it is set.
const SCRIPT: &str = r#"
for file do
    ( . "$file"; printf '%s\0' "${A+x$A}" "${B+x$B}" "${C+x$C}" "${D+x$D}" "${E+x$E}" ) || exit
done"#;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let text = "api_version: v1\nname: any\nundeclared: allow\nlayers: [{file: layer.env}]\n\
                steps: {one: {run: one.sh}}\napply: [{steps: [one]}]\n";
    Catalogue::read(&Source { name: "steps.yaml".into(), text: text.into() }, Path::new("/steps.yaml"))
        .unwrap()
});

/// The values a file gives, by key; none if it is refused or not to be compared.
fn ours(text: &str) -> Option<BTreeMap<String, String>> {
    let source = Source { name: "layer.env".into(), text: text.into() };
    let mut diagnostics = Diagnostics::default();
    let file = LayerFile::read(&source, &mut diagnostics);
    if diagnostics.has_errors() || !is_timeless(&file) {
        return None;
    }
    let layers = [LayerInput { name: "layer.env".to_owned(), state: LayerState::Read(file), secret: false }];
    let environment = BTreeMap::new();
    let inputs = Inputs { catalogue: &CATALOGUE, layers: &layers, environment: &environment, set: &[] };
    let values = resolve(&inputs, &mut diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let value = |key: &str| Some((key.to_owned(), values.get(key)?.value.clone()));
    Some(KEYS.into_iter().filter_map(value).collect())
}

/// Whether the values are the same whenever references are expanded.
fn is_timeless(file: &LayerFile) -> bool {
    let last = |name: &str| file.assignments.iter().rposition(|assignment| assignment.key == name);
    file.assignments.iter().enumerate().all(|(i, assignment)| {
        let references = assignment.value.as_ref().map(|text| text.references()).unwrap_or_default();
        references.iter().all(|(name, _)| *name == assignment.key || last(name).is_none_or(|last| last < i))
    })
}

/// What `shell` makes of the files: the values of each, by key. Or what it complains of.
fn theirs(shell: &Path, texts: &[String]) -> Result<Vec<BTreeMap<String, String>>, String> {
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..texts.len()).map(|i| directory.path().join(format!("{i}.env"))).collect();
    for (file, text) in files.iter().zip(texts) {
        fs::write(file, text).unwrap();
    }
    let output = Command::new(shell)
        .args(["-c", SCRIPT, "sh"])
        .args(&files)
        .env_clear()
        .env("HOME", "/nowhere")
        .current_dir(directory.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let fields: Vec<&str> = stdout.split_terminator('\0').collect();
    let is_complete = fields.len() == KEYS.len() * texts.len();
    if !output.status.success() || !output.stderr.is_empty() || !is_complete {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let row = |row: &[&str]| {
        let set = KEYS.iter().zip(row).filter_map(|(key, field)| Some((key, field.strip_prefix('x')?)));
        set.map(|(key, value)| ((*key).to_owned(), value.to_owned())).collect()
    };
    Ok(fields.chunks(KEYS.len()).map(row).collect())
}

fn one(shell: &Path, text: &str) -> Vec<BTreeMap<String, String>> {
    match theirs(shell, &[text.to_owned()]) {
        Ok(values) => values,
        Err(complaint) => panic!("{} does not read {text:?}: {complaint}", shell.display()),
    }
}

/// The shells of this machine.
#[expect(clippy::print_stderr, reason = "what could not be checked is said")]
fn shells() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut shells = vec![PathBuf::from("/bin/sh")];
    match std::env::split_paths(&path).map(|directory| directory.join("bash")).find(|bash| bash.is_file()) {
        Some(bash) => shells.push(bash),
        None => {
            assert!(std::env::var_os("STEAD_CI").is_none(), "bash is not installed");
            eprintln!("bash is not installed: the layer grammar was compared with /bin/sh only");
        }
    }
    shells
}

/// Compares what is accepted of `texts`; returns how many that is.
fn compare(texts: impl IntoIterator<Item = String>) -> usize {
    let (texts, ours): (Vec<String>, Vec<_>) =
        texts.into_iter().filter_map(|text| Some((text.clone(), ours(&text)?))).unzip();
    for shell in shells() {
        for (texts, ours) in texts.chunks(100).zip(ours.chunks(100)) {
            // Where a shell complains, each file alone shows of which.
            let all = theirs(&shell, texts)
                .unwrap_or_else(|_| texts.iter().flat_map(|text| one(&shell, text)).collect());
            for ((text, ours), theirs) in texts.iter().zip(ours).zip(all) {
                assert_eq!(*ours, theirs, "{} reads another value from {text:?}", shell.display());
            }
        }
    }
    texts.len()
}

/// A piece of a value: text, quoted text, an escape, a reference.
fn fragment() -> impl Strategy<Value = String> {
    let text = "[a-z0-9_./,=:%@+*?!^{}\\[\\]#~$ü-]{0,5}";
    let reference = "[$][A-Z]|[$][{][A-Z][}]|[$][{][A-Z]:-[a-z0-9 .,:;&|<>()#*?!{$~-]{0,5}[}]|[$][{]A:-[$][{]B:-[a-z $]{0,3}[}][A-E]?[}]";
    prop_oneof![
        4 => text,
        2 => "'[ -&(-~\n]{0,6}'",
        1 => "\\\\[ -~ü\n]",
        1 => "[$]\\\\\n[A-Z({$]?",
        3 => reference,
        3 => proptest::collection::vec(prop_oneof!["[a-z0-9 ;&|<>()#~:'{}\n$]{0,4}", "\\\\[ -~\n]", reference], 0..4)
            .prop_map(|parts| format!("\"{}\"", parts.concat())),
    ]
}

/// A line that has a good chance to be accepted.
fn line() -> impl Strategy<Value = String> {
    let value = proptest::collection::vec(fragment(), 0..4).prop_map(|fragments| fragments.concat());
    let assignment = ("[ \t]{0,2}", "(export[ \t]{1,2})?", "[A-E]", value, "([ \t]{1,2}(# it's [$][(]\")?)?")
        .prop_map(|(blanks, export, key, value, note)| format!("{blanks}{export}{key}={value}{note}\n"));
    prop_oneof![8 => assignment, 1 => "[ \t]{0,2}(# [ -~]{0,8})?\n"]
}

/// Characters that mean something to a shell, in any order.
fn soup() -> impl Strategy<Value = String> {
    let token = proptest::sample::select(vec![
        "A=", "B=", "C=", "export ", "a", "b", "$", "${", "}", ":-", ":", "'", "\"", "\\", "\n", " ", "#",
        "~", "{", ",", "..", "`", "(", ")", "<", "*", "=", "$A", "${B}", "${C:-", "\\\n", "-", "[", "]", "!",
        "\t",
    ]);
    (
        proptest::sample::select(vec!["A=", "export A=", "A=\"", "A='", "A=${B:-"]),
        proptest::collection::vec(token, 0..9),
    )
        .prop_map(|(start, tokens)| format!("{start}{}", tokens.concat()))
}

fn generate(count: usize, strategy: impl Strategy<Value = String>) -> Vec<String> {
    let mut runner = TestRunner::default();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn what_the_grammar_accepts_means_the_same_to_a_shell() {
    let files = generate(3_000, proptest::collection::vec(line(), 1..5).prop_map(|lines| lines.concat()));
    let compared = compare(files);
    assert!(compared > 500, "only {compared} of 3000 were accepted");
}

#[test]
fn what_the_grammar_accepts_of_any_mixture_means_the_same_to_a_shell() {
    let compared = compare(generate(20_000, soup()));
    assert!(compared > 1_000, "only {compared} of 20000 were accepted");
}

/// Every accepted row of the contract's table, and the corners found while comparing.
#[test]
fn the_rows_of_the_grammar_mean_the_same_to_a_shell() {
    let files = [
        "# note\n\n   A=plain\nexport B=plain\nC=\n",
        "A=x  # note\nB=x#y\nC=#z\n",
        "B=b\nA='lit ${B}\ntwo'\n",
        "B=b\nA=\"q \\\" \\$ \\\\ \\n \\` ${B}\nx\\\ny\"\n",
        "A=a\\ b\nB=\"x\"y'z'\nC=a\\\nb\n",
        "A=a\nB=$A${A}${C:-text $A}\n",
        "A=cost$\nB=\"50 $ off\"\nC=$.\n",
        "A=x\nA=${A}y\nA=\"${A}z\"\n",
        "A=\"$'x'\"\n",
        "B=b\nBC=bc\nA=$B\\\nC\n",
        "A=x=~\nexport B=x=~\nC=''~\nD=\":\"~\n",
        "A={a,b}\nexport B={}\nexport C='{a,b}'\n",
        "A=*\nexport B=*?[a-z]\n",
        "A='x   y'\nexport B=$A\nexport C=${Z:-x   y}\n",
        "A=${Z:-a{b}c}\nB=${Z:-a$}\nC=\"${Z:-< (x) a:~}\"\n",
        "A=x \\\n# note\nB=\\\n\\\ny\n",
        "A\\\n=x\nexport \\\n B=y\n",
        "export=1\nA=${export}\n",
        "A=a\rb\n",
        "A=!x\nB=%1^\n",
    ];
    assert_eq!(compare(files.map(str::to_owned)), files.len());
}
