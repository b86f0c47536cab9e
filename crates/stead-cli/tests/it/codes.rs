//! `stead explain`: every code that the source says is explained, and nothing else is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regex::Regex;
use stead_model::explain::{self, families};

use crate::process::stead;

/// Texts that look like codes and are none: paths, names, a master that is away, a hold that ended.
const NO_CODES: [&str; 5] = ["run/task", "plan/x", "fleet/w1", "fleet/away", "fleet/released"];

/// Returns the source of every crate that is shipped, without its tests.
fn sources() -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("stead-testkit") || !path.join("src").is_dir() {
            continue;
        }
        read_below(&path.join("src"), &mut found);
    }
    found
}

fn read_below(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // The table itself says every code; tests make some up.
        if matches!(name, "tests" | "explain.rs")
            || (name == "explain" && path.parent().unwrap().ends_with("stead-model/src"))
        {
            continue;
        }
        if path.is_dir() {
            read_below(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.ends_with("_capnp.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
            found.push((path, shipped));
        }
    }
}

/// Returns the codes that the source says: those with a family, and those of bundles and masters, which are words.
fn said() -> BTreeSet<String> {
    let families = "plan|reach|steps|layer|value|intent|run|node|fleet|record|server|job|usage|input|work|verify|lock|confirm";
    let quoted = Regex::new(&format!(r#""((?:{families})/[a-z-]+)""#)).unwrap();
    let shown = Regex::new(r"\[warning\] ([a-z]+/[a-z-]+):").unwrap();
    let finding =
        Regex::new(r#"(?:self\.(?:error|warn)\([^;]*?|misplaced\.push\([^;]*?)"([a-z-]+)""#).unwrap();
    let refused = [
        r#"\b(?:refused|refusal)\(\s*"([a-z-]+)""#,
        r#"code: "([a-z-]+)"\.to_owned\(\)"#,
        r#"\badd\(\s*"([a-z-]+)""#,
        r#"Self::[A-Za-z_| .{}()]+ => "(store-unavailable|identity)""#,
        r#"\(\("?([a-z]+-?[a-z]*)", "the (?:certificate|master)"#,
    ]
    .map(|pattern| Regex::new(pattern).unwrap());
    let mut found = BTreeSet::new();
    for (path, text) in sources() {
        let path = path.display().to_string();
        let mut add = |pattern: &Regex, prefix: &str| {
            found.extend(pattern.captures_iter(&text).map(|said| format!("{prefix}{}", &said[1])));
        };
        add(&quoted, "");
        add(&shown, "");
        if path.contains("stead-bundle/src/verify/judge") || path.contains("stead-bundle/src/archive.rs") {
            add(&finding, "bundle/");
        }
        if path.contains("stead-fleet/src") || path.contains("stead-engine/src/fleet") {
            refused.iter().for_each(|pattern| add(pattern, "fleet/"));
        }
    }
    // Words of types, and what is no refusal but an event.
    found.retain(|code| !NO_CODES.contains(&code.as_str()));
    found
}

/// Returns whether a code is a type's, which `stead-model` checks by its values.
fn is_of_a_type(code: &str) -> bool {
    ["exit/", "failed/", "skipped/", "filter/", "repository/"].iter().any(|family| code.starts_with(family))
        || !code.contains('/')
        || code.starts_with("fleet/join-")
}

#[test]
fn every_code_of_the_source_is_explained_and_no_other() {
    let said = said();
    let status: BTreeSet<&str> = stead_model::fleet::Code::ALL.iter().map(|code| code.word()).collect();
    let unexplained: Vec<&String> = said
        .iter()
        .filter(|code| explain::find(code).is_empty())
        .filter(|code| code.strip_prefix("fleet/").is_none_or(|word| !status.contains(word)))
        .collect();
    assert_eq!(unexplained, Vec::<&String>::new(), "codes without an explanation in stead-model/src/explain");
    let text: String = sources().into_iter().map(|(_, text)| text).collect();
    let unsaid: Vec<&str> = families()
        .iter()
        .flat_map(|family| &family.codes)
        .map(|known| known.code)
        .filter(|code| !is_of_a_type(code) && !said.contains(*code))
        // Words of masters are also made in other ways; each is in the source as it is.
        .filter(|code| !code.strip_prefix("fleet/").is_some_and(|word| text.contains(&format!("\"{word}\""))))
        .collect();
    assert_eq!(unsaid, Vec::<&str>::new(), "explanations of codes that nothing says");
}

/// Words of types of other crates than the table's.
#[test]
fn words_of_schedulers_and_watchers_are_explained() {
    use stead_engine::fleet::schedule::Filter;
    let of = |family: &str| -> BTreeSet<String> {
        let all = families().into_iter().flat_map(|family| family.codes);
        all.filter_map(|known| known.code.strip_prefix(family).map(str::to_owned)).collect()
    };
    let words: BTreeSet<String> = Filter::ALL.iter().map(|filter| filter.word().to_owned()).collect();
    assert_eq!(of("filter/"), words);
    let head = sources().into_iter().find(|(path, _)| path.ends_with("publisher/owner/head.rs")).unwrap().1;
    let states = Regex::new(r#"(?:watch_state|reject)\((?:new, |head, )?"([a-z-]+)""#).unwrap();
    let mut seen: BTreeSet<String> = states.captures_iter(&head).map(|state| state[1].to_owned()).collect();
    assert!(seen.remove("ok"));
    assert_eq!(of("repository/"), seen);
}

fn explained(args: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let ended = stead(dir.path()).arg("explain").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

#[test]
fn a_code_is_explained_as_text_and_as_a_document() {
    let (code, stdout, _) = explained(&["5"]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("exit/5: Locked\n") && stdout.contains("What to do: "), "{stdout}");
    let (_, stdout, _) = explained(&["crash-loop", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["schema"], 1);
    assert_eq!(document["codes"][0]["code"], "crash-loop");
    let (code, list, _) = explained(&[]);
    assert_eq!(code, Some(0));
    let (_, all, _) = explained(&["--json"]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    for known in all["codes"].as_array().unwrap() {
        assert!(list.contains(known["code"].as_str().unwrap()), "{known}");
    }
}

#[test]
fn an_unknown_code_names_the_nearest() {
    let (code, stdout, stderr) = explained(&["plan/sintax"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.starts_with("error[usage/unknown-name]: there is no code `plan/sintax`\n"), "{stderr}");
    assert!(stderr.contains("did you mean `plan/syntax`"), "{stderr}");
    let (_, stdout, _) = explained(&["nothing", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["error"]["code"], "usage/unknown-name");
}

/// The page is what the command prints: `stead explain --markdown > docs/codes.md` makes it.
#[test]
fn the_page_of_codes_is_what_the_command_prints() {
    let (_, stdout, _) = explained(&["--markdown"]);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/codes.md");
    assert!(
        std::fs::read_to_string(page).unwrap() == stdout,
        "docs/codes.md is old: cargo run -p stead-cli -- explain --markdown > docs/codes.md"
    );
}
