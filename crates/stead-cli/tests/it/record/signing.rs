//! Signatures on the command line.

use std::fs;

use stead_bundle::{SigningKey, sign};
use stead_testkit::sshd::{KeyKind, make_key};

use super::fixture::{Role, json_of, run, write_run};

/// Case 27: a signed bundle, its signer allowed, another one, and none.
#[test]
fn a_signed_bundle_verifies_for_those_who_may_sign() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = write_run(dir.path(), "r1", "success", &[Role::client()]);
    let allow = |name: &str, options: &str| {
        let key = dir.path().join(name);
        if !key.exists() {
            make_key(&key, KeyKind::Ed25519);
        }
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        fs::write(dir.path().join("signers"), format!("{name} {options}{public}")).unwrap();
    };
    allow("ann", "");
    let verify = ["bundle", "verify", "./r1", "--require-signature", "--allowed-signers", "signers"];
    let (code, stdout, _) = run(dir.path(), &verify);
    assert_eq!(code, 4);
    assert!(stdout.contains("error[unsigned]"), "{stdout}");

    sign(&bundle, &SigningKey::load(&dir.path().join("ann"), None).unwrap()).unwrap();
    let (code, stdout, _) = run(dir.path(), &verify);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("signed by SHA256:"), "{stdout}");
    let found = json_of(dir.path(), &["bundle", "verify", "./r1", "--json"]);
    assert_eq!(
        (&found["signature"]["valid"], &found["signature"]["trusted"]),
        (&true.into(), &serde_json::Value::Null)
    );
    assert_eq!(json_of(dir.path(), &["bundle", "info", "./r1", "--json"])["signature"]["valid"], true);
    assert_eq!(run(dir.path(), &["bundle", "export", "./r1", "-o", "a.zip"]).0, 0);

    allow("bob", "");
    for path in ["./r1", "a.zip"] {
        let words = ["bundle", "verify", path, "--allowed-signers", "signers"];
        let (code, stdout, _) = run(dir.path(), &words);
        assert_eq!(code, 4);
        assert!(stdout.contains("error[untrusted-signer]"), "{stdout}");
    }
    allow("ann", "cert-authority ");
    let (code, _, stderr) = run(dir.path(), &verify);
    assert_eq!(code, 3);
    assert!(stderr.contains("line 1: cert-authority is not supported"), "{stderr}");
    assert_eq!(run(dir.path(), &["bundle", "verify", "./r1", "--allowed-signers", "nowhere"]).0, 3);
}
