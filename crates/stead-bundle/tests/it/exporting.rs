//! Archives of bundles: the same bytes every time, read by real programs, and read back by us as bundles.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use stead_bundle::{
    ArchiveFormat, ExportError, KnownHashes, VerifyOptions, archive_path, export, info, list, resolve, seal,
    verify,
};
use stead_model::ExitCode;

use crate::fixture::{create, sealed};

fn export_to(bundle: &Path, directory: &Path, name: &str) -> PathBuf {
    let out = directory.join(name);
    let format = ArchiveFormat::of_name(&out).unwrap();
    let exported = export(bundle, &out, format, false).unwrap();
    assert_eq!((exported.path.as_path(), exported.bytes), (out.as_path(), fs::metadata(&out).unwrap().len()));
    out
}

/// Returns what a program prints that has to succeed.
fn run(directory: &Path, words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A bundle with every kind of name: long, in directories, with blanks, not ASCII, not even text.
fn with_odd_names(state: &Path) -> PathBuf {
    let bundle = sealed(state, "r1");
    let deep = bundle.join(format!("roles/client/{}/{}", "d".repeat(90), "e".repeat(120)));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(200)), "deep").unwrap();
    fs::write(bundle.join("roles/client/a b"), "blank").unwrap();
    fs::write(bundle.join("roles/client/ü"), vec![b'x'; 300_000]).unwrap();
    fs::write(bundle.join("roles/client/new\nline\\"), "escaped").unwrap();
    fs::write(bundle.join("roles/client").join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "raw").unwrap();
    fs::write(bundle.join("roles/client/empty"), "").unwrap();
    seal(&bundle).unwrap();
    bundle
}

/// Cases 26, 28: archives pass real programs' tests and our own.
#[test]
fn archives_are_read_by_real_programs_and_verify() {
    let state = tempfile::tempdir().unwrap();
    let bundle = with_odd_names(state.path());
    let zip = export_to(&bundle, state.path(), "a.zip");
    let tar = export_to(&bundle, state.path(), "a.tar.zst");
    run(state.path(), &["unzip", "-t", "a.zip"]);
    let listed = run(state.path(), &["tar", "--zstd", "-tf", "a.tar.zst"]);
    assert!(listed.lines().all(|line| line.starts_with("r1/")), "{listed}");

    let expected = verify(&bundle, &VerifyOptions::default()).unwrap();
    assert!(expected.valid, "{expected:?}");
    for archive in [&zip, &tar] {
        assert_eq!(verify(archive, &VerifyOptions::default()).unwrap(), expected, "{}", archive.display());
        let (ours, theirs) = (info(&bundle).unwrap(), info(archive).unwrap());
        assert_eq!(
            (theirs.run_meta, theirs.files, theirs.bytes, theirs.sealed),
            (ours.run_meta, ours.files, ours.bytes, true)
        );
    }

    let unpacked = state.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    run(&unpacked, &["tar", "--zstd", "-xf", "../a.tar.zst"]);
    let found = verify(&unpacked.join("r1"), &VerifyOptions::default()).unwrap();
    assert_eq!(found, expected);
    run(&unpacked.join("r1"), &["sha256sum", "--quiet", "-c", "hashes.txt"]);
}

/// Section 5: order, modes, owner, moment and no extra fields, as real programs show them.
#[test]
fn entries_are_in_order_with_fixed_modes_owners_and_times() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    export_to(&bundle, state.path(), "a.zip");
    export_to(&bundle, state.path(), "a.tar.zst");
    let names = run(state.path(), &["unzip", "-Z1", "a.zip"]);
    let names: Vec<&str> = names.lines().collect();
    assert!(
        names.is_sorted() && names.contains(&"r1/hashes.txt") && !names.contains(&"r1/lock"),
        "{names:?}"
    );
    let verbose = run(state.path(), &["unzip", "-Zv", "a.zip"]);
    assert!(
        verbose.contains("1980 Jan 1 00:00:00") && verbose.contains("Unix file attributes (100644 octal)")
    );
    assert!(verbose.contains("length of extra field:                          0 bytes"), "{verbose}");
    let of_tar =
        run(state.path(), &["tar", "--zstd", "--full-time", "--numeric-owner", "--utc", "-tvf", "a.tar.zst"]);
    for line in of_tar.lines() {
        assert!(line.starts_with("-rw-r--r-- 0/0 ") && line.contains(" 1970-01-01 00:00:00 r1/"), "{line}");
    }
    assert_eq!(of_tar.lines().count(), names.len());
}

/// Section 5: times, modes and the order of creation do not matter.
#[test]
fn the_same_bundle_gives_the_same_bytes() {
    let state = tempfile::tempdir().unwrap();
    let bundle = with_odd_names(state.path());
    let copy = state.path().join("copy/r1");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    run(state.path(), &["cp", "-r", bundle.to_str().unwrap(), copy.to_str().unwrap()]);
    fs::set_permissions(copy.join("plan.json"), fs::Permissions::from_mode(0o600)).unwrap();
    run(&copy, &["touch", "-d", "2001-02-03", "plan.json", "report.json"]);
    for end in ["zip", "tar.zst"] {
        let one = export_to(&bundle, state.path(), &format!("one.{end}"));
        let two = export_to(&copy, state.path(), &format!("two.{end}"));
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap(), "{end}");
        // From one form to the other and back.
        for other in ["zip", "tar.zst"] {
            let there = export_to(&one, state.path(), &format!("there.{end}.{other}"));
            let back = export_to(&there, state.path(), &format!("back.{other}.{end}"));
            assert_eq!(fs::read(&one).unwrap(), fs::read(&back).unwrap(), "{end} {other}");
        }
    }
}

#[test]
fn only_whole_bundles_are_exported_and_nothing_is_overwritten() {
    let state = tempfile::tempdir().unwrap();
    let out = state.path().join("x.zip");
    let exported = |bundle: &Path, force: bool| export(bundle, &out, ArchiveFormat::Zip, force);
    let bundle = sealed(state.path(), "r1");
    exported(&bundle, false).unwrap();
    let error = exported(&bundle, false).unwrap_err();
    assert!(matches!(error, ExportError::Exists { .. }) && error.exit_code() == ExitCode::Invalid, "{error}");
    exported(&bundle, true).unwrap();
    fs::remove_file(&out).unwrap();

    for (damage, says) in [
        ("echo more >>plan.json", "plan.json was changed"),
        ("echo x >extra", "extra is not listed"),
        ("rm report.json", "report.json is listed"),
        ("ln -s plan.json link", "link is neither"),
        ("rm hashes.txt", "has no seal"),
    ] {
        let broken = state.path().join("broken");
        run(state.path(), &["cp", "-r", bundle.to_str().unwrap(), "broken"]);
        run(&broken, &["sh", "-c", damage]);
        let error = exported(&broken, false).unwrap_err();
        assert!(error.to_string().contains(says), "{damage}: {error}");
        assert_eq!(error.exit_code(), ExitCode::Verification, "{damage}");
        fs::remove_dir_all(&broken).unwrap();
    }
    let live = create(state.path(), "live");
    assert_eq!(exported(live.path(), false).unwrap_err().exit_code(), ExitCode::Locked);
    let nothing = state.path().join("nothing");
    assert_eq!(exported(&nothing, false).unwrap_err().exit_code(), ExitCode::Invalid);
    let left: Vec<_> = fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["runs"], "nothing half made stays");
}

/// Case 28: `bundle_format` leaves only the archive, which is found as the run was.
#[test]
fn an_archive_takes_the_place_of_its_directory() {
    for format in ArchiveFormat::ALL {
        let state = tempfile::tempdir().unwrap();
        let run = create(state.path(), "r1");
        for name in ["events.jsonl", "report.json"] {
            fs::write(run.path().join(name), "{}\n").unwrap();
        }
        run.seal(&KnownHashes::default()).unwrap();
        let archive = archive_path(run.path(), format);
        let exported = run.into_archive(format).unwrap();
        assert_eq!(exported.path, archive);
        let runs = state.path().join("runs");
        let left: Vec<_> = fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, std::slice::from_ref(&archive));
        assert!(verify(&archive, &VerifyOptions::default()).unwrap().valid);
        for name in ["r1", "last"] {
            assert_eq!(resolve(name, std::slice::from_ref(&runs)).unwrap(), archive);
        }
        let listed = list(&[runs], None, None).unwrap();
        assert!(listed.problems.is_empty(), "{listed:?}");
        assert_eq!((listed.bundles[0].run_id.as_str(), listed.bundles[0].sealed), ("r1", true));
    }
}

/// What an export left that was killed is gone after the next one; what another is writing stays.
#[test]
fn what_a_killed_export_left_is_removed_by_the_next() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let out = state.path().join("out");
    fs::create_dir(&out).unwrap();
    let write = |name: String| {
        fs::write(out.join(&name), "half").unwrap();
        name
    };
    write(format!(".tmp-{}-0-export", gone.id()));
    let mut expected = vec![
        write(format!(".tmp-{}-900-export", std::process::id())),
        write(format!(".tmp-{}-0-mine", gone.id())),
        write(".tmp-export".to_owned()),
        "a.zip".to_owned(),
    ];
    export_to(&bundle, &out, "a.zip");
    let mut left: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected);
}

#[test]
fn a_directory_that_cannot_be_replaced_stays() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    run.seal(&KnownHashes::default()).unwrap();
    let path = run.path().to_owned();
    // Its journal and report are missing: the archive does not verify.
    let error = run.into_archive(ArchiveFormat::Zip).unwrap_err();
    assert!(matches!(error, ExportError::ArchiveInvalid { .. }), "{error}");
    assert!(path.join("run_meta.json").is_file() && !archive_path(&path, ArchiveFormat::Zip).exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever files a bundle has, both archives hold exactly them.
    #[test]
    fn any_bundle_comes_back_from_its_archives(
        files in prop::collection::btree_map("[a-zü \\\\\n]{1,12}(/[a-z]{1,120}){0,3}", prop::collection::vec(any::<u8>(), 0..3_000), 0..6),
    ) {
        let state = tempfile::tempdir().unwrap();
        let bundle = sealed(state.path(), "r1");
        for (name, content) in &files {
            let path = bundle.join("artifacts/any").join(name);
            // A name may be a directory of another one.
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                fs::write(path, content).unwrap();
            }
        }
        seal(&bundle).unwrap();
        let expected = verify(&bundle, &VerifyOptions::default()).unwrap();
        prop_assert!(expected.valid, "{:?}", expected);
        for name in ["a.zip", "a.tar.zst"] {
            let archive = export_to(&bundle, state.path(), name);
            prop_assert_eq!(&verify(&archive, &VerifyOptions::default()).unwrap(), &expected);
        }
    }
}
