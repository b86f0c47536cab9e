//! Signatures, made and checked both ways against `ssh-keygen -Y` and a real `ssh-agent`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stead_bundle::{
    AllowedSigners, SignError, SigningKey, Verification, VerifyOptions, export, sign, verify,
};
use stead_model::time::Timestamp;

use crate::fixture::sealed;

fn run(directory: &Path, words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn make_key(directory: &Path, name: &str, kind: &str, passphrase: &str) -> PathBuf {
    run(directory, &["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "a comment", "-f", name]);
    directory.join(name)
}

/// Returns the file that allows the keys called `names`.
fn allow(directory: &Path, names: &[&str], options: &str) -> AllowedSigners {
    let line = |name: &&str| {
        let public = fs::read_to_string(directory.join(format!("{name}.pub"))).unwrap();
        format!("{name}@example.org {options}{public}")
    };
    fs::write(directory.join("signers"), names.iter().map(line).collect::<String>()).unwrap();
    AllowedSigners::load(&directory.join("signers")).unwrap()
}

fn check(bundle: &Path, signers: Option<AllowedSigners>) -> Verification {
    let now = Timestamp::parse("2026-06-01T00:00:00Z").unwrap();
    let signers = signers.map(|signers| (signers, now));
    verify(bundle, &VerifyOptions { allow_extra: false, require_signature: true, signers }).unwrap()
}

/// Asks `ssh-keygen` whether the signature of `bundle` is good and allowed.
fn ssh_keygen_verifies(directory: &Path, bundle: &Path, who: &str) -> bool {
    let hashes = fs::File::open(bundle.join("hashes.txt")).unwrap();
    let signature = bundle.join("hashes.txt.sig");
    Command::new("ssh-keygen")
        .args(["-Y", "verify", "-n", "stead-bundle", "-f", "signers", "-I", who, "-s"])
        .arg(signature)
        .current_dir(directory)
        .env("TZ", "UTC")
        .stdin(hashes)
        .output()
        .unwrap()
        .status
        .success()
}

/// Case 27: what we sign, ssh-keygen accepts; another key is not trusted.
#[test]
fn what_we_sign_ssh_keygen_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = sealed(dir.path(), "r1");
    assert_eq!(check(&bundle, None).errors[0].code, "unsigned");
    let key = SigningKey::load(&make_key(dir.path(), "ann", "ed25519", ""), None).unwrap();
    make_key(dir.path(), "bob", "ed25519", "");
    sign(&bundle, &key).unwrap();

    let signers = allow(dir.path(), &["ann", "bob"], "");
    assert!(ssh_keygen_verifies(dir.path(), &bundle, "ann@example.org"));
    let found = check(&bundle, Some(signers));
    assert!(found.valid, "{found:?}");
    assert_eq!((found.signature.valid, found.signature.trusted), (Some(true), Some(true)));
    let shown = run(dir.path(), &["ssh-keygen", "-lf", "ann.pub"]);
    assert!(shown.contains(found.signature.fingerprint.as_ref().unwrap()), "{shown} {found:?}");
    assert_eq!(check(&bundle, None).signature.trusted, None);

    let bobs = allow(dir.path(), &["bob"], "");
    assert!(!ssh_keygen_verifies(dir.path(), &bundle, "ann@example.org"));
    let found = check(&bundle, Some(bobs));
    assert_eq!((found.valid, found.errors[0].code), (false, "untrusted-signer"), "{found:?}");

    // Its seal is another one after a change, and the signature does not follow.
    let signature = fs::read(bundle.join("hashes.txt.sig")).unwrap();
    fs::write(bundle.join("plan.json"), "{}").unwrap();
    stead_bundle::seal(&bundle).unwrap();
    assert!(!bundle.join("hashes.txt.sig").exists(), "a new seal is not signed");
    fs::write(bundle.join("hashes.txt.sig"), signature).unwrap();
    let found = check(&bundle, None);
    assert_eq!((found.errors[0].code, found.signature.valid), ("bad-signature", Some(false)), "{found:?}");
}

#[test]
fn what_ssh_keygen_signs_we_accept_in_archives_too() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = sealed(dir.path(), "r1");
    for kind in ["ed25519", "rsa", "ecdsa"] {
        let key = make_key(dir.path(), kind, kind, "");
        drop(fs::remove_file(bundle.join("hashes.txt.sig")));
        let hashes = bundle.join("hashes.txt");
        let sign = |namespace: &str| {
            let (key, hashes) = (key.to_str().unwrap(), hashes.to_str().unwrap());
            run(dir.path(), &["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, hashes]);
        };
        sign("file");
        let found = check(&bundle, None);
        assert!(found.errors[0].message.contains("made for `file`"), "{found:?}");
        fs::remove_file(bundle.join("hashes.txt.sig")).unwrap();
        sign("stead-bundle");
        let signers = allow(dir.path(), &[kind], "");
        let found = check(&bundle, Some(signers.clone()));
        assert!(found.valid, "{kind}: {found:?}");
        for format in stead_bundle::ArchiveFormat::ALL {
            let out = dir.path().join(format!("{kind}.{}", format.as_str()));
            export(&bundle, &out, format, false).unwrap();
            assert_eq!(check(&out, Some(signers.clone())), found, "{kind}");
        }
    }
}

/// Options of allowed signers mean what they mean to ssh-keygen.
#[test]
fn options_mean_the_same_to_ssh_keygen() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = sealed(dir.path(), "r1");
    sign(&bundle, &SigningKey::load(&make_key(dir.path(), "ann", "ed25519", ""), None).unwrap()).unwrap();
    for (options, expected) in [
        ("", true),
        ("namespaces=\"stead-bundle\" ", true),
        ("namespaces=\"git,stead-*\" ", true),
        ("namespaces=\"git\" ", false),
        ("namespaces=\"*,!stead-bundle\" ", false),
        ("valid-after=\"20200101\" ", true),
        ("valid-after=\"20200101Z\",valid-before=\"20990101Z\" ", true),
        ("valid-before=\"20200101120000Z\" ", false),
        ("valid-after=\"209901010000Z\" ", false),
    ] {
        let signers = allow(dir.path(), &["ann"], options);
        assert_eq!(ssh_keygen_verifies(dir.path(), &bundle, "ann@example.org"), expected, "{options}");
        assert_eq!(check(&bundle, Some(signers)).valid, expected, "{options}");
    }
}

#[test]
fn keys_that_cannot_sign_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: &Path| SigningKey::load(path, None);
    let locked = make_key(dir.path(), "locked", "ed25519", "secret words");
    let error = load(&locked).unwrap_err();
    assert!(matches!(error, SignError::Encrypted { .. }), "{error}");
    assert!(error.to_string().contains("add it to ssh-agent"), "{error}");
    let error = load(&make_key(dir.path(), "rsa", "rsa", "")).unwrap_err();
    assert!(matches!(error, SignError::OtherKind { .. }), "{error}");
    let error = load(&dir.path().join("locked.pub")).unwrap_err();
    assert!(matches!(error, SignError::NoAgent { .. }), "{error}");
    fs::write(dir.path().join("text"), "hello").unwrap();
    assert!(matches!(load(&dir.path().join("text")).unwrap_err(), SignError::NotAKey { .. }));
    assert!(matches!(load(&dir.path().join("none")).unwrap_err(), SignError::Record(_)));
    let key = load(&make_key(dir.path(), "ann", "ed25519", "")).unwrap();
    let shown = format!("{key:?}");
    assert!(shown.contains("SHA256:") && shown.len() < 100, "{shown}");
    assert!(matches!(sign(dir.path(), &key).unwrap_err(), SignError::Unsealed { .. }));
}

/// An agent in the foreground, ended with the test.
struct Agent(Child, PathBuf);

impl Agent {
    fn start(directory: &Path) -> Self {
        let socket = directory.join("agent");
        let child = Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).spawn();
        let agent = Self(child.unwrap(), socket);
        for _ in 0..6000 {
            if std::os::unix::net::UnixStream::connect(&agent.1).is_ok() {
                return agent;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("ssh-agent does not listen");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_key_held_by_an_agent_signs() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = sealed(dir.path(), "r1");
    let agent = Agent::start(dir.path());
    let key = make_key(dir.path(), "ann", "ed25519", "");
    let public = dir.path().join("ann.pub");
    let error = SigningKey::load(&public, Some(&agent.1)).unwrap_err();
    assert!(matches!(error, SignError::NotHeld { .. }), "{error}");
    let added = Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", &agent.1).status().unwrap();
    assert!(added.success());
    let held = SigningKey::load(&public, Some(&agent.1)).unwrap();
    fs::remove_file(&key).unwrap();
    sign(&bundle, &held).unwrap();
    let signers = allow(dir.path(), &["ann"], "");
    assert!(check(&bundle, Some(signers)).valid);
    assert!(ssh_keygen_verifies(dir.path(), &bundle, "ann@example.org"));
    drop(agent);
    assert!(matches!(sign(&bundle, &held).unwrap_err(), SignError::Agent(_)));
}
