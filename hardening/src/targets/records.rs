//! What is read of a record: its journal, hashes, signers and archives.

use std::cell::RefCell;
use std::io::{Seek as _, Write as _};
use std::path::Component;

use stead_bundle::{AllowedSigners, HashLine, VerifyOptions, info, verify};
use stead_model::event;
use stead_runner::journal;
use tempfile::NamedTempFile;

use super::{Target, chosen, text};

pub(super) const JOURNAL: Target = Target {
    name: "journal",
    about: "an event log: `s` and lines that get their checksums, else the bytes themselves",
    run: journal,
    words: &[
        "{\"seq\":1,\"t\":\"2026-01-02T03:04:05.678901Z\",",
        "\"ev\":\"task_ready\"",
        "\"ev\":\"run_started\"",
        "\"ev\":\"host_result\"",
        "\"ev\":\"log\"",
        "\"ev\":\"warning\"",
        "\"ev\":\"node\"",
        "\"ev\":\"delegated\"",
        "\"task\":\"a\"",
        "\"host\":\"local\"",
        "\"attempt\":1",
        "\"result\":{\"status\":\"ok\"}",
        ",\"crc\":\"015ca1b4\"}",
        "\n",
    ],
};

pub(super) const HASHES: Target = Target {
    name: "hashes",
    about: "hashes.txt of a bundle",
    run: hashes,
    words: &[
        "sha256:",
        "  ",
        " *",
        "\\\\",
        "\\n",
        "../",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ],
};

pub(super) const SIGNERS: Target = Target {
    name: "signers",
    about: "a file of allowed signers",
    run: signers,
    words: &[
        "namespaces=\"",
        "valid-before=\"",
        "valid-after=\"",
        "cert-authority",
        "ssh-ed25519 ",
        "ann@desk",
        "20260101",
    ],
};

pub(super) const ARCHIVE: Target = Target {
    name: "archive",
    about: "an archive to verify: ZIP and Zstandard as they are, everything else as a TAR that is packed first",
    run: archive,
    words: &[
        "PK\u{3}\u{4}",
        "PK\u{1}\u{2}",
        "PK\u{5}\u{6}",
        "ustar",
        "r1/",
        "r1/run_meta.json",
        "r1/hashes.txt",
        "../",
    ],
};

/// Lends a file that holds `bytes`.
fn with_file(bytes: &[u8], with: impl FnOnce(&std::path::Path)) {
    thread_local!(static FILE: RefCell<Option<NamedTempFile>> = const { RefCell::new(None) });
    FILE.with_borrow_mut(|kept| {
        let file = kept.get_or_insert_with(|| NamedTempFile::new().expect("a temporary file"));
        file.as_file().set_len(0).expect("an empty file");
        file.rewind().expect("a file has a beginning");
        file.write_all(bytes).expect("a file takes bytes");
        with(file.path());
    });
}

fn journal(bytes: &[u8]) {
    let Some((choice, rest)) = chosen(bytes) else { return };
    if choice != b's' {
        with_file(bytes, check_journal);
        return;
    }
    let mut lines = Vec::new();
    for body in rest.split(|byte| *byte == b'\n') {
        let start = lines.len();
        lines.extend_from_slice(body);
        let crc = crc(&lines[start..]);
        lines.extend_from_slice(format!(",\"crc\":\"{crc:08x}\"}}\n").as_bytes());
    }
    with_file(&lines, check_journal);
}

fn check_journal(path: &std::path::Path) {
    let Ok(read) = journal::read(path) else { return };
    let bytes = std::fs::metadata(path).map_or(0, |found| found.len());
    assert_eq!(read.good_len + read.dropped_bytes, bytes, "bytes are lost");
    assert_eq!(read.next_seq, read.events.len() as u64 + 1);
    for found in &read.events {
        let mut written = Vec::new();
        event::encode(found.seq, found.t, &found.kind, &mut written);
        written.pop();
        let again = event::decode(&written).unwrap_or_else(|why| panic!("{why}: {found:?}"));
        assert_eq!(&again, found, "an event does not survive");
    }
    journal::repair(path, read.good_len).expect("a journal can be cut");
    let again = journal::read(path).expect("a repaired journal is read");
    assert_eq!((again.events, again.dropped_bytes), (read.events, 0));
}

/// CRC-32C, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

fn hashes(bytes: &[u8]) {
    for raw in bytes.split(|byte| *byte == b'\n') {
        let Ok(line) = HashLine::parse(raw) else { continue };
        assert!(line.path.components().all(|part| matches!(part, Component::Normal(_))), "{line:?}");
        let mut written = Vec::new();
        line.write(&mut written);
        assert_eq!(written.pop(), Some(b'\n'));
        assert!(!written.contains(&b'\n'), "a line is one line");
        assert_eq!(HashLine::parse(&written).ok(), Some(line), "a line does not survive");
    }
}

fn signers(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Err(problems) = AllowedSigners::parse(text) {
        let lines = text.lines().count();
        assert!(!problems.is_empty());
        assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.line)));
    }
}

fn archive(bytes: &[u8]) {
    let is_packed = bytes.starts_with(b"PK") || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let packed = if is_packed { None } else { zstd::encode_all(bytes, 1).ok() };
    with_file(packed.as_deref().unwrap_or(bytes), |path| {
        if let Ok(found) = verify(path, &VerifyOptions::default()) {
            assert_eq!(found.valid, found.errors.is_empty());
            assert!(found.hashes_verified <= found.files_checked);
            if found.valid {
                assert!(info(path).is_ok(), "a valid bundle has nothing to tell");
            }
        }
        drop(info(path));
    });
}
