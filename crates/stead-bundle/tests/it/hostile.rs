//! Archives made to hurt: every one ends in a finding or an error, quickly and in little memory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use stead_bundle::{ArchiveFormat, Verification, VerifyError, VerifyOptions, export, info, verify};
use stead_model::ExitCode;

use crate::fixture::sealed;

fn check(path: &Path) -> Result<Verification, VerifyError> {
    verify(path, &VerifyOptions::default())
}

fn exported(directory: &Path, format: ArchiveFormat) -> Vec<u8> {
    let bundle = directory.join("runs/r1");
    if !bundle.exists() {
        sealed(directory, "r1");
        // Long enough for several blocks, and not easy to compress.
        let noise: Vec<u8> = (0..40_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(bundle.join("noise"), noise).unwrap();
        stead_bundle::seal(&bundle).unwrap();
    }
    let out = directory.join(format!("whole.{}", format.as_str()));
    export(&bundle, &out, format, true).unwrap();
    fs::read(out).unwrap()
}

#[test]
fn an_archive_cut_off_anywhere_is_damaged() {
    let state = tempfile::tempdir().unwrap();
    for format in ArchiveFormat::ALL {
        let whole = exported(state.path(), format);
        let path = state.path().join(format!("cut.{}", format.as_str()));
        let cuts = (0..whole.len()).step_by(1024).chain(whole.len() - 60..whole.len());
        for len in cuts {
            fs::write(&path, &whole[..len]).unwrap();
            match check(&path) {
                Ok(found) => {
                    assert_eq!(found.exit_code(), ExitCode::Verification, "{format:?} {len}");
                    assert_eq!(found.errors[0].code, "damaged-archive", "{format:?} {len}: {found:?}");
                }
                // What has no beginning is no archive.
                Err(error) => assert!(len < 4 && error.exit_code() == ExitCode::Invalid, "{len}: {error}"),
            }
            assert!(info(&path).is_err(), "{format:?} {len}");
        }
    }
}

/// A TAR entry as a program would write it.
fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = tar_header(name, kind, content.len() as u64);
    header.extend_from_slice(content);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

fn tar_header(name: &str, kind: u8, len: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    header[124..136].copy_from_slice(format!("{len:011o}\0").as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[156] = kind;
    header[157..160].copy_from_slice(b"/x\0");
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn tar_zst(directory: &Path, entries: &[Vec<u8>]) -> PathBuf {
    let path = directory.join("made.tar.zst");
    let bytes = [entries.concat(), vec![0; 1024]].concat();
    fs::write(&path, zstd(&bytes)).unwrap();
    path
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut child = std::process::Command::new("zstd")
        .args(["-q", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(bytes).unwrap());
        child.wait_with_output().unwrap().stdout
    })
}

fn meta() -> Vec<u8> {
    entry("r1/run_meta.json", b'0', br#"{"run_id": "r1", "status": "success"}"#)
}

#[test]
fn entries_without_a_place_are_told() {
    let state = tempfile::tempdir().unwrap();
    for (odd, code) in [
        (entry("other/x", b'0', b"x"), "outside"),
        (entry("x", b'0', b"x"), "outside"),
        (entry("/etc/passwd", b'0', b"x"), "outside"),
        (entry("r1/../../x", b'0', b"x"), "outside"),
        (entry("./r1/x", b'0', b"x"), "outside"),
        (entry("r1//x", b'0', b"x"), "outside"),
        (meta(), "duplicate"),
        (entry("r1/link", b'2', b""), "not-a-file"),
        (entry("r1/link", b'1', b""), "not-a-file"),
        (entry("r1/pipe", b'6', b""), "not-a-file"),
        (entry("r1/device", b'3', b""), "not-a-file"),
    ] {
        let path = tar_zst(state.path(), &[entry("r1/", b'5', b""), meta(), odd]);
        let found = check(&path).unwrap();
        assert!(found.errors.iter().any(|error| error.code == code), "{code}: {found:?}");
        assert!(!state.path().join("x").exists());
    }
    // One without anything of a bundle is none.
    let path = tar_zst(state.path(), &[entry("r1/x", b'0', b"x")]);
    assert_eq!(check(&path).unwrap_err().exit_code(), ExitCode::Invalid);
}

#[test]
fn names_headers_and_tails_that_never_end_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let long = vec![b'a'; 1 << 20];
    let hidden = [vec![0; 1024], entry("r1/hidden", b'0', b"x")].concat();
    let size = b"13 size=999\n\n".to_vec();
    for (entries, says) in [
        (vec![entry("././@LongLink", b'L', &long), meta()], "a name longer"),
        (vec![entry("pax", b'x', &long), meta()], "a name longer"),
        (vec![entry("pax", b'x', b"9999 path=x\n"), meta()], "does not parse"),
        (vec![entry("pax", b'x', &size), meta()], "outside of its header"),
        (vec![meta(), hidden], "behind its last entry"),
        (vec![meta(), vec![0; 3 << 20]], "behind its last entry"),
        (
            vec![meta(), tar_header("r1/big", b'0', 0o77777777777), tar_header("r1/b", b'0', 0o77777777777)],
            "",
        ),
    ] {
        let path = tar_zst(state.path(), &entries);
        let found = check(&path).unwrap();
        let damage = found.errors.iter().find(|error| error.code == "damaged-archive");
        assert!(damage.is_some_and(|damage| damage.message.contains(says)), "{says}: {found:?}");
    }
}

/// A zip entry: local header, content, and what the directory says of it.
fn zip_of(entries: &[(&str, u32, &[u8])], overlap: bool) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, mode, content) in entries {
        let offset = if overlap { 0 } else { u32::try_from(file.len()).unwrap() };
        let len = u32::try_from(content.len()).unwrap().to_le_bytes();
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let name_len = u16::try_from(name.len()).unwrap().to_le_bytes();
        let common = [
            &[20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0],
            &crc.sum().to_le_bytes()[..],
            &len,
            &len,
            &name_len,
            &[0, 0],
        ]
        .concat();
        if !overlap || file.is_empty() {
            file.extend_from_slice(&[b"PK\x03\x04", &common[..], name.as_bytes(), content].concat());
        }
        directory.extend_from_slice(&[b"PK\x01\x02\x14\x03", &common[..], &[0; 6]].concat());
        directory.extend_from_slice(&(mode << 16).to_le_bytes());
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let count = u16::try_from(entries.len()).unwrap().to_le_bytes();
    let start = u32::try_from(file.len()).unwrap().to_le_bytes();
    let len = u32::try_from(directory.len()).unwrap().to_le_bytes();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &start, &[0, 0]].concat();
    [file, directory, end].concat()
}

#[test]
fn zip_archives_that_lie_are_found_out() {
    const META: (&str, u32, &[u8]) =
        ("r1/run_meta.json", 0o100_644, br#"{"run_id": "r1", "status": "success"}"#);
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("made.zip");
    let check_bytes = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        check(&path).unwrap()
    };
    let has = |found: &Verification, code: &str| found.errors.iter().any(|error| error.code == code);
    for (odd, code) in [
        (("other/x", 0o100_644, &b"x"[..]), "outside"),
        (("../x", 0o100_644, b"x"), "outside"),
        (("/x", 0o100_644, b"x"), "outside"),
        (("r1/a\0b", 0o100_644, b"x"), "outside"),
        (META, "duplicate"),
        (("r1/link", 0o120_777, b"/etc/passwd"), "not-a-file"),
        (("r1/pipe", 0o010_644, b""), "not-a-file"),
    ] {
        let found = check_bytes(&zip_of(&[META, odd], false));
        assert!(has(&found, code), "{code}: {found:?}");
    }
    let good = zip_of(&[META, ("r1/x", 0o100_644, b"content")], false);
    assert!(!has(&check_bytes(&good), "damaged-archive"));
    // Many entries that share one content: small, and without end when unpacked.
    let bomb = zip_of(&[META, ("r1/a", 0o100_644, b"x"), ("r1/b", 0o100_644, b"x")], true);
    assert!(has(&check_bytes(&bomb), "damaged-archive"));
    for (what, bytes) in [
        ("something before", [b"#!/bin/sh\n", &good[..]].concat()),
        ("something behind", [&good[..], b"x"].concat()),
        ("another name inside", String::from_utf8_lossy(&good).replacen("r1/x", "r1/y", 1).into_bytes()),
        ("another content", String::from_utf8_lossy(&good).replacen("content", "CONTENT", 1).into_bytes()),
    ] {
        fs::write(&path, &bytes).unwrap();
        match check(&path) {
            Ok(found) => assert!(has(&found, "damaged-archive"), "{what}: {found:?}"),
            Err(error) => assert_eq!(error.exit_code(), ExitCode::Invalid, "{what}: {error}"),
        }
    }
}

/// A gigabyte of zeros in a few kilobytes is read to its end, and held nowhere.
#[test]
fn much_that_comes_out_of_little_is_not_held() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let file = fs::File::create(bundle.join("zeros")).unwrap();
    file.set_len(256 << 20).unwrap();
    // Metadata that long is refused rather than read.
    fs::create_dir_all(bundle.join("roles/a")).unwrap();
    fs::File::create(bundle.join("roles/a/role_meta.json")).unwrap().set_len(65 << 20).unwrap();
    stead_bundle::seal(&bundle).unwrap();
    let out = state.path().join("z.tar.zst");
    let exported = export(&bundle, &out, ArchiveFormat::TarZst, false).unwrap();
    assert!(exported.bytes < 1 << 20, "{exported:?}");
    let found = check(&out).unwrap();
    let codes: Vec<_> = found.errors.iter().map(|error| (error.code, error.path.as_str())).collect();
    assert!(codes.contains(&("unreadable", "roles/a/role_meta.json")), "{found:?}");
    assert_eq!(found.hash_mismatches, [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is changed in an archive, verification ends, and never finds the bundle valid.
    #[test]
    fn a_changed_archive_is_never_valid(zip in any::<bool>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let state = tempfile::tempdir().unwrap();
        let format = if zip { ArchiveFormat::Zip } else { ArchiveFormat::TarZst };
        let mut bytes = exported(state.path(), format);
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        let before = bytes[at];
        bytes[at] = to;
        let path = state.path().join("changed");
        fs::write(&path, &bytes).unwrap();
        if let Ok(found) = check(&path) {
            // What programs and people never see may change: versions, dates and modes of a zip.
            let unseen = found.valid && zip;
            prop_assert!(!found.valid || unseen, "{before} to {to} at {at}: {found:?}");
        }
    }

    #[test]
    fn any_bytes_behind_a_beginning_end_in_an_answer(zip in any::<bool>(), rest in prop::collection::vec(any::<u8>(), 0..2_000)) {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("any");
        let beginning: &[u8] = if zip { b"PK\x03\x04" } else { b"\x28\xb5\x2f\xfd" };
        fs::write(&path, [beginning, &rest].concat()).unwrap();
        if let Ok(found) = check(&path) {
            prop_assert!(!found.valid);
        }
    }
}
