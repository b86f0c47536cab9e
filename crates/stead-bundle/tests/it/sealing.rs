//! Seals, checked by the real `sha256sum`.

use std::fs;
use std::process::Command;

use stead_bundle::{SealError, VerifyOptions, is_sealed, seal, unseal, verify};

use crate::fixture::sealed;

#[test]
fn sha256sum_accepts_every_name() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let odd = bundle.join("artifacts/odd");
    fs::create_dir_all(odd.join("a")).unwrap();
    let names =
        ["back\\slash", "new\nline", "cr\r", " space", "-dash", "ümlaut", "a/b", "a.b", "a-b", "p[eu]"];
    for name in names {
        fs::write(odd.join(name), name).unwrap();
    }
    seal(&bundle).unwrap();
    let check = Command::new("sha256sum")
        .args(["--strict", "-c", "hashes.txt"])
        .current_dir(&bundle)
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));

    let text = fs::read(bundle.join("hashes.txt")).unwrap();
    let paths: Vec<_> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty() && line[0] != b'\\')
        .map(|line| &line[66..])
        .collect();
    assert!(paths.is_sorted(), "by bytes of the path");
    assert!(!paths.iter().any(|path| path.starts_with(b"lock") || path.starts_with(b"hashes.txt")));
    let found = verify(&bundle, &VerifyOptions::default()).unwrap();
    assert!(found.valid, "{found:?}");
}

#[test]
fn many_and_large_files_are_hashed_right() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    fs::create_dir_all(bundle.join("artifacts/many")).unwrap();
    for i in 0..300 {
        fs::write(bundle.join(format!("artifacts/many/{i}")), i.to_string().repeat(i)).unwrap();
    }
    fs::write(bundle.join("artifacts/large"), vec![7; 5 << 20]).unwrap();
    seal(&bundle).unwrap();
    let check = Command::new("sha256sum")
        .args(["--strict", "--quiet", "-c", "hashes.txt"])
        .current_dir(&bundle)
        .output();
    assert!(check.unwrap().status.success());
    let lines = fs::read_to_string(bundle.join("hashes.txt")).unwrap().lines().count();
    let find = Command::new("find").arg(&bundle).args(["-type", "f"]).output().unwrap();
    let files = find.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(lines, files - 2, "all but hashes.txt and lock");
}

#[test]
fn unsealing_takes_the_seal_and_sealing_again_gives_the_same() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let before = fs::read(bundle.join("hashes.txt")).unwrap();
    unseal(&bundle).unwrap();
    assert!(!is_sealed(&bundle));
    unseal(&bundle).unwrap();
    // What a driver that died in the middle of an atomic replace leaves.
    fs::write(bundle.join(".tmp-7"), "half").unwrap();
    fs::create_dir_all(bundle.join("roles/client/out")).unwrap();
    fs::write(bundle.join("roles/client/out/.x.pcapAbCdEf.stead-tmp"), "half").unwrap();
    seal(&bundle).unwrap();
    assert_eq!(fs::read(bundle.join("hashes.txt")).unwrap(), before);
}

#[test]
fn a_symlink_is_not_sealed() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    std::os::unix::fs::symlink("/etc/passwd", bundle.join("artifacts/link")).unwrap();
    let error = seal(&bundle).unwrap_err();
    assert!(matches!(&error, SealError::NotAFile { path } if path.ends_with("artifacts/link")), "{error}");
    assert!(!is_sealed(&bundle));
}
