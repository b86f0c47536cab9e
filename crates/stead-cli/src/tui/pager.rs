//! A log in full: any place of files of any size, a window at a time.

use std::path::PathBuf;
use std::sync::Arc;

use super::key::Key;
use super::scroll::wrap;
use crate::render::visible;

/// How many bytes before and after a place are in the window.
pub(crate) const REACH_BYTES: u64 = 64 * 1024;
/// A line longer than this is shown in pieces.
const LONGEST: usize = 4 * 1024;

/// Something that can be read in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paged {
    /// What it is called.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) body: Body,
}

/// Where the text of a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In memory.
    Lines(Arc<[String]>),
    /// In a file.
    File(PathBuf),
}

/// One row of the screen, with the place in the file where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Where it begins.
    pub(crate) offset: u64,
    /// Its text.
    pub(crate) text: String,
}

/// Part of a log, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its rows.
    pub(crate) rows: Vec<Row>,
    /// Whether the log begins with it.
    pub(crate) from_start: bool,
    /// Whether the log ends with it.
    pub(crate) to_end: bool,
    /// How long the log is.
    pub(crate) size: u64,
    /// Why it could not be read.
    pub(crate) problem: Option<String>,
}

/// A place in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this byte.
    Byte(u64),
    /// Its end.
    End,
}

/// A wish for part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRead {
    /// Which file.
    pub(crate) file: PathBuf,
    /// What must be in it.
    pub(crate) around: Place,
    /// How wide a row is.
    pub(crate) width: usize,
    /// Tells it from other wishes.
    pub(crate) serial: u64,
}

/// Logs that are read in full.
#[derive(Clone, Debug)]
pub(crate) struct Pager {
    logs: Vec<Paged>,
    chosen: usize,
    window: Window,
    top: usize,
    width: usize,
    height: usize,
    serial: u64,
    /// What the next window is wanted for.
    wanted: Option<Place>,
}

impl Pager {
    /// Opens `logs`, the one at `chosen` first, at its end; `size` is columns and rows of the text.
    pub(crate) fn open(logs: Vec<Paged>, chosen: usize, size: (usize, usize)) -> (Self, Option<PageRead>) {
        let mut pager = Self {
            chosen: chosen.min(logs.len().saturating_sub(1)),
            logs,
            window: Window::default(),
            top: 0,
            width: size.0,
            height: size.1.max(1),
            serial: 0,
            wanted: None,
        };
        let read = pager.go(Place::End);
        (pager, read)
    }

    /// Returns the names of the logs and which is shown.
    pub(crate) fn names(&self) -> (Vec<&str>, usize) {
        (self.logs.iter().map(|log| log.name.as_str()).collect(), self.chosen)
    }

    /// Returns the rows on the screen.
    pub(crate) fn rows(&self) -> &[Row] {
        let end = (self.top + self.height).min(self.window.rows.len());
        &self.window.rows[self.top.min(end)..end]
    }

    /// Returns why nothing can be shown.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.window.problem.as_deref()
    }

    /// Returns how far the screen is, in percent.
    pub(crate) fn percent(&self) -> u64 {
        let at_end = self.window.to_end && self.top + self.height >= self.window.rows.len();
        match self.window.rows.get(self.top) {
            Some(_) if at_end => 100,
            Some(row) if self.window.size > 0 => row.offset.saturating_mul(100) / self.window.size,
            Some(_) | None => 100,
        }
    }

    /// Fits a screen of another size.
    pub(crate) fn resize(&mut self, size: (usize, usize)) -> Option<PageRead> {
        (self.width, self.height) = (size.0, size.1.max(1));
        let here = self.window.rows.get(self.top).map_or(Place::End, |row| Place::Byte(row.offset));
        self.go(here)
    }

    /// Takes a key; returns what has to be read for it.
    pub(crate) fn press(&mut self, key: Key) -> Option<PageRead> {
        let page = isize::try_from(self.height.saturating_sub(1).max(1)).unwrap_or(1);
        match key {
            Key::Up | Key::Char('k') => self.by(-1),
            Key::Down | Key::Char('j') => self.by(1),
            Key::PageUp => self.by(-page),
            Key::PageDown | Key::Char(' ') => self.by(page),
            Key::Home | Key::Char('g') => self.go(Place::Byte(0)),
            Key::End | Key::Char('G') => self.go(Place::End),
            Key::Left => self.choose(self.logs.len().saturating_sub(1)),
            Key::Right => self.choose(1),
            Key::Char(_)
            | Key::Enter
            | Key::Esc
            | Key::Tab
            | Key::BackTab
            | Key::Backspace
            | Key::Delete
            | Key::DeleteLine
            | Key::Interrupt
            | Key::Redraw => None,
        }
    }

    /// Takes what was read, if it is still wanted.
    pub(crate) fn take(&mut self, serial: u64, window: Window) {
        if serial != self.serial {
            return;
        }
        let Some(place) = self.wanted.take() else { return };
        self.window = window;
        self.top = match place {
            Place::Byte(offset) => self.window.rows.partition_point(|row| row.offset < offset),
            Place::End => self.window.rows.len(),
        };
        self.top = self.top.min(self.last_top());
    }

    fn choose(&mut self, by: usize) -> Option<PageRead> {
        self.chosen = (self.chosen + by) % self.logs.len().max(1);
        self.window = Window::default();
        self.go(Place::End)
    }

    fn last_top(&self) -> usize {
        self.window.rows.len().saturating_sub(self.height)
    }

    fn by(&mut self, rows: isize) -> Option<PageRead> {
        let top = self.top.saturating_add_signed(rows);
        let beyond = (rows > 0 && top > self.last_top() && !self.window.to_end)
            || (rows < 0 && rows.unsigned_abs() > self.top && !self.window.from_start);
        self.top = top.min(self.last_top());
        if !beyond {
            return None;
        }
        let here = self.window.rows.get(self.top)?.offset;
        self.go(Place::Byte(here))
    }

    fn go(&mut self, place: Place) -> Option<PageRead> {
        self.serial += 1;
        self.wanted = Some(place);
        match &self.logs.get(self.chosen)?.body {
            Body::File(file) => {
                Some(PageRead { file: file.clone(), around: place, width: self.width, serial: self.serial })
            }
            Body::Lines(lines) => {
                let window = of_lines(lines, self.width);
                self.take(self.serial, window);
                None
            }
        }
    }
}

fn of_lines(lines: &[String], width: usize) -> Window {
    let (mut rows, mut offset) = (Vec::new(), 0);
    for line in lines {
        for piece in wrap(line, width) {
            rows.push(Row { offset, text: piece.to_owned() });
            offset += piece.len() as u64;
        }
        offset += 1;
    }
    Window { rows, from_start: true, to_end: true, size: offset, problem: None }
}

/// Returns the rows of `bytes`, which begin at `offset` of a file with a whole line.
pub(crate) fn rows(bytes: &[u8], offset: u64, width: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at = offset;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        for part in line.chunks(LONGEST) {
            let text = String::from_utf8_lossy(part);
            let text = visible(text.trim_end_matches(['\n', '\r']));
            // Rows of one part begin at its place: finer is of no use, since what is shown is not what was written.
            rows.extend(
                wrap(&text, width).into_iter().map(|piece| Row { offset: at, text: piece.to_owned() }),
            );
            at += part.len() as u64;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in memory that is read as the worker reads files.
    fn answer(pager: &mut Pager, file: &[u8], read: Option<PageRead>) {
        let Some(read) = read else { return };
        let size = file.len() as u64;
        let at = match read.around {
            Place::Byte(at) => at,
            Place::End => size,
        };
        let start = at.saturating_sub(200);
        let end = (at + 200).min(size);
        let skipped =
            if start == 0 { 0 } else { file[start as usize..].iter().position(|b| *b == b'\n').unwrap() + 1 };
        let start = start + skipped as u64;
        let rows = rows(&file[start as usize..end as usize], start, read.width);
        let window = Window { rows, from_start: start == 0, to_end: end == size, size, problem: None };
        pager.take(read.serial, window);
    }

    fn texts(pager: &Pager) -> Vec<&str> {
        pager.rows().iter().map(|row| row.text.as_str()).collect()
    }

    #[test]
    fn every_line_of_a_long_file_can_be_reached() {
        let file: Vec<u8> = (0..500).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        let logs = vec![Paged { name: "stdout".to_owned(), body: Body::File("x".into()) }];
        let (mut pager, read) = Pager::open(logs, 0, (20, 5));
        answer(&mut pager, &file, read);
        assert_eq!(texts(&pager), ["line 495", "line 496", "line 497", "line 498", "line 499"]);
        assert_eq!(pager.percent(), 100);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..600 {
            seen.extend(texts(&pager).into_iter().map(str::to_owned));
            let read = pager.press(Key::Up);
            answer(&mut pager, &file, read);
        }
        assert_eq!(seen.len(), 500);
        assert_eq!(texts(&pager)[0], "line 0");
        let read = pager.press(Key::PageDown);
        answer(&mut pager, &file, read);
        assert_eq!(texts(&pager)[0], "line 4");
        let read = pager.press(Key::End);
        answer(&mut pager, &file, read);
        assert_eq!(texts(&pager)[4], "line 499");
    }

    #[test]
    fn long_lines_are_wrapped_and_an_old_answer_is_dropped() {
        let logs = vec![
            Paged {
                name: "run".to_owned(),
                body: Body::Lines(Arc::from(["abcdef".to_owned(), "g".to_owned()])),
            },
            Paged { name: "stdout".to_owned(), body: Body::File("x".into()) },
        ];
        let (mut pager, read) = Pager::open(logs, 0, (4, 2));
        assert_eq!(read, None);
        assert_eq!(texts(&pager), ["ef", "g"]);
        assert_eq!(pager.press(Key::Home), None);
        assert_eq!(texts(&pager), ["abcd", "ef"]);
        let read = pager.press(Key::Right);
        assert_eq!(pager.names().1, 1);
        pager.press(Key::Left);
        answer(&mut pager, b"late\n", read);
        assert_eq!(texts(&pager), ["ef", "g"]);
    }
}
