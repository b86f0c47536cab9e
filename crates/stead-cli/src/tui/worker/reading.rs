//! Reads the files of a run: output as it comes, and pages of full logs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use stead_bundle::{open_inside, open_regular};

use super::Wish;
use crate::tui::pager::{PageRead, Place, REACH_BYTES, Window, rows};
use crate::tui::state::Message;
use crate::tui::watched::{Piece, Read};

/// Returns the answer to a wish; what cannot be read is left out, or said where a person asked for it.
pub(super) fn answer(key: u64, wish: Wish) -> Message {
    match wish {
        Wish::Output(Read { reader, directory, pieces }) => {
            let parts = pieces.into_iter().filter_map(|piece| {
                let bytes = output(&directory, &piece).ok()?;
                Some((piece, bytes))
            });
            Message::Output { key, reader, parts: parts.collect() }
        }
        Wish::Page(read) => {
            let window = page(&read).unwrap_or_else(|error| Window {
                problem: Some(format!("cannot read {}: {error}", read.file.display())),
                ..Window::default()
            });
            Message::Page { key, serial: read.serial, window }
        }
    }
}

fn output(directory: &Path, piece: &Piece) -> io::Result<Vec<u8>> {
    range(&open_inside(directory, Path::new(&*piece.file))?, piece.offset, piece.len)
}

fn page(read: &PageRead) -> io::Result<Window> {
    let file = open_regular(&read.file)?;
    let size = file.metadata()?.len();
    let at = match read.around {
        Place::Byte(at) => at.min(size),
        Place::End => size,
    };
    let (start, end) = (at.saturating_sub(REACH_BYTES), at.saturating_add(REACH_BYTES).min(size));
    let bytes = range(&file, start, end - start)?;
    // A page begins with a whole line, if one begins before the place that is wanted.
    let before = usize::try_from(at - start).unwrap_or(0).min(bytes.len());
    let skipped = match bytes[..before].iter().position(|byte| *byte == b'\n') {
        Some(newline) if start > 0 => newline + 1,
        Some(_) | None => 0,
    };
    Ok(Window {
        rows: rows(&bytes[skipped..], start + skipped as u64, read.width),
        from_start: start == 0,
        to_end: end == size,
        size,
        problem: None,
    })
}

/// Returns the bytes of a range, fewer if the file is shorter.
fn range(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(4 << 20)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_begin_with_whole_lines_and_reach_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let text: String = (0..40_000).map(|i| format!("line {i}\n")).collect();
        std::fs::write(&file, &text).unwrap();
        let read = |around| page(&PageRead { file: file.clone(), around, width: 80, serial: 1 }).unwrap();
        let end = read(Place::End);
        assert!(end.to_end && !end.from_start);
        assert_eq!(end.rows.last().unwrap().text, "line 39999");
        assert!(end.rows[0].text.starts_with("line "));
        let start = read(Place::Byte(0));
        assert!(start.from_start && !start.to_end);
        assert_eq!(start.rows[0].text, "line 0");
        let middle = read(Place::Byte(text.find("line 20000\n").unwrap() as u64));
        assert!(middle.rows.iter().any(|row| row.text == "line 20000"));
        let missing = PageRead { file: dir.path().join("none"), around: Place::End, width: 80, serial: 2 };
        let told = answer(7, Wish::Page(missing));
        let Message::Page { key: 7, serial: 2, window } = told else { panic!("{told:?}") };
        assert!(window.problem.unwrap().contains("none"));
    }
}
