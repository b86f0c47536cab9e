//! `stead bundle export --attest`: what others can check without Stead.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stead_testkit::sshd::{KeyKind, make_key};

use super::fixture::{Role, run, write_run};

/// Checks an envelope as its specification says, with OpenSSL and nothing of ours, and prints the statement.
const CHECK: &str = r#"
import base64, json, subprocess, sys
envelope = json.load(open(sys.argv[1]))
payload = base64.b64decode(envelope["payload"])
kind = envelope["payloadType"].encode()
signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
blob = base64.b64decode(open(sys.argv[2]).read().split()[1])
open("key.der", "wb").write(bytes.fromhex("302a300506032b6570032100") + blob[-32:])
open("signed", "wb").write(signed)
open("signature", "wb").write(base64.b64decode(envelope["signatures"][0]["sig"]))
subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", "key.der", "-rawin",
                "-in", "signed", "-sigfile", "signature"], check=True, stdout=subprocess.DEVNULL)
print(payload.decode())
"#;

/// Returns the statement that OpenSSL says `key` has signed, none if it says otherwise.
fn checked(dir: &Path, envelope: &str, key: &str) -> Option<Value> {
    let mut python = Command::new("python3");
    let output = python.args(["-c", CHECK, envelope, key]).current_dir(dir).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn an_attestation_says_what_passed_and_others_can_check_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_run(dir, "r1", "failed", &[Role::server(), Role { status: "failed", ..Role::client() }]);
    make_key(&dir.join("ann"), KeyKind::Ed25519);
    make_key(&dir.join("bob"), KeyKind::Ed25519);
    let export = ["bundle", "export", "./r1", "-o", "a.zip", "--attest", "ann"];
    let (code, stdout, stderr) = run(dir, &export);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("a.zip.intoto.json"), "{stdout}");

    let statement = checked(dir, "a.zip.intoto.json", "ann.pub").unwrap();
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://in-toto.io/attestation/test-result/v0.1");
    let hash = Command::new("sha256sum").arg("a.zip").current_dir(dir).output().unwrap().stdout;
    let hash = String::from_utf8(hash).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(statement["subject"], json!([{"name": "a.zip", "digest": {"sha256": hash}}]));
    assert_eq!(statement["predicate"]["result"], "FAILED");
    assert_eq!(statement["predicate"]["passedTests"], json!(["server"]));
    assert_eq!(statement["predicate"]["failedTests"], json!(["client"]));
    assert_eq!(checked(dir, "a.zip.intoto.json", "bob.pub"), None);

    // The same archive and key, the same bytes; nothing is replaced unless that is asked for.
    let before = fs::read(dir.join("a.zip.intoto.json")).unwrap();
    fs::remove_file(dir.join("a.zip")).unwrap();
    let (code, _, stderr) = run(dir, &export);
    assert!(code != 0 && stderr.contains("--force") && !dir.join("a.zip").exists(), "{code} {stderr}");
    assert_eq!(run(dir, &[&export[..], &["--force"]].concat()).0, 0);
    assert_eq!(fs::read(dir.join("a.zip.intoto.json")).unwrap(), before);

    // An attestation that cannot be written leaves no archive that has none.
    fs::create_dir_all(dir.join("c.zip.intoto.json/x")).unwrap();
    let (code, _, stderr) =
        run(dir, &["bundle", "export", "./r1", "-o", "c.zip", "--attest", "ann", "--force"]);
    assert!(code == 1 && !dir.join("c.zip").exists(), "{code} {stderr}");

    // A key that cannot sign is noticed before anything is written.
    let (code, _, stderr) = run(dir, &["bundle", "export", "./r1", "-o", "b.zip", "--attest", "nowhere"]);
    assert!(code == 3 && stderr.contains("nowhere") && !dir.join("b.zip").exists(), "{code} {stderr}");
}
