//! Hands on what happens in an errand: the lines of its run's journal as they are written, then its end.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use stead_model::RunId;
use stead_model::node::{ErrandEnd, ErrandNote};
use stead_runner::journal::Lines;

use super::{ErrandError, Errands, Standing, failed};

/// How often a journal is looked at that is being written.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long nothing is said before that is said: who listens knows that the connection lives, and this process whether
/// anybody listens.
const SILENCE: Duration = Duration::from_secs(5);
/// What of a journal is handed on at once.
const PIECE: usize = 1 << 20;

/// The longest end of an errand for who hears only so much.
const LONGEST_END: usize = 768 << 10;

/// What of an errand is handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the last event that is known.
    pub after: u64,
    /// Stop after so many bytes of events, between two of them; none: at the end.
    pub most: Option<u64>,
}

/// Writes every event of `run` that is wanted to `out`, a line each, until the errand ends, then its end.
///
/// Whole lines only, in order, each once. Fails early if nobody listens.
pub fn follow(
    errands: &Errands,
    run: &RunId,
    wanted: Wanted,
    out: &mut dyn Write,
) -> Result<(), ErrandError> {
    let home = errands.home(run);
    if !home.directory.is_dir() {
        return Err(ErrandError::Unknown(run.clone()));
    }
    let journal = errands.journal(run);
    let mut lines = Lines::new(&journal, wanted.after, 0);
    let mut left = wanted.most.unwrap_or(u64::MAX);
    let mut spoke: Option<Instant> = None;
    loop {
        // Asked before the journal is read: what was written until then is read.
        let end = match errands.standing(run)? {
            Standing::Going => None,
            Standing::Ended(end) => Some(end),
            Standing::Gone => Some(lost()),
        };
        if copy(&mut lines, &journal, &mut left, out)? {
            spoke = Some(Instant::now());
        }
        if left == 0 {
            return Ok(());
        }
        if let Some(end) = end {
            return say(out, &ErrandNote::End(if wanted.most.is_some() { bounded(end) } else { end }));
        }
        // At once if nothing is new: who listens knows that it is heard what there is.
        if spoke.is_none_or(|spoke| spoke.elapsed() >= SILENCE) {
            say(out, &ErrandNote::Waiting {})?;
            spoke = Some(Instant::now());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// How an errand ended that nobody works on any more.
fn lost() -> ErrandEnd {
    ErrandEnd { complaint: "it was killed".to_owned(), ..ErrandEnd::default() }
}

/// Returns an end that is heard whole by who hears only so much.
fn bounded(end: ErrandEnd) -> ErrandEnd {
    let is_long = |end: &ErrandEnd| serde_json::to_vec(end).is_ok_and(|bytes| bytes.len() > LONGEST_END);
    if !is_long(&end) {
        return end;
    }
    let shortened = end.shortened();
    if is_long(&shortened) { ErrandEnd { document: None, ..shortened } } else { shortened }
}

fn say(out: &mut dyn Write, note: &ErrandNote) -> Result<(), ErrandError> {
    let mut line = serde_json::to_vec(note).unwrap_or_default();
    line.push(b'\n');
    out.write_all(&line).and_then(|()| out.flush()).map_err(ErrandError::Unheard)
}

/// Hands on the whole lines that are there now, `left` bytes of them at most but for the last line; returns whether there
/// were any.
fn copy(lines: &mut Lines, journal: &Path, left: &mut u64, out: &mut dyn Write) -> Result<bool, ErrandError> {
    let mut any = false;
    while *left > 0 {
        let piece = match lines.next(usize::try_from(*left).unwrap_or(usize::MAX).min(PIECE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            read => read.map_err(failed("read", journal))?,
        };
        if piece.is_empty() {
            break;
        }
        out.write_all(&piece).map_err(ErrandError::Unheard)?;
        *left = left.saturating_sub(piece.len() as u64);
        any = true;
    }
    if any {
        out.flush().map_err(ErrandError::Unheard)?;
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::errand::Home;

    fn journal(state: &Path, text: &str) {
        let directory = stead_bundle::runs_directory(state).join("r");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(stead_bundle::EVENTS), text).unwrap();
    }

    fn errand(state: &Path, end: Option<&ErrandEnd>) -> (Errands, RunId) {
        let (errands, run) = (Errands::of(state), RunId::parse("r").unwrap());
        let home: Home = errands.home(&run);
        std::fs::create_dir_all(&home.directory).unwrap();
        home.write("manifest.json", b"{}").unwrap();
        if let Some(end) = end {
            home.write("end.json", &serde_json::to_vec(end).unwrap()).unwrap();
        }
        (errands, run)
    }

    fn followed(errands: &Errands, run: &RunId, after: u64) -> Vec<String> {
        let mut out = Vec::new();
        follow(errands, run, Wanted { after, most: None }, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn events_after_a_number_come_once_and_then_the_end() {
        let dir = tempfile::tempdir().unwrap();
        journal(dir.path(), "{\"seq\":1,\"a\":1}\n{\"seq\":2}\n{\"seq\":3}\n{\"seq\":4,\"cut");
        let end = ErrandEnd { code: Some(1), ..ErrandEnd::default() };
        let (errands, run) = errand(dir.path(), Some(&end));
        let note = "{\"end\":{\"code\":1}}";
        assert_eq!(followed(&errands, &run, 0), ["{\"seq\":1,\"a\":1}", "{\"seq\":2}", "{\"seq\":3}", note]);
        assert_eq!(followed(&errands, &run, 2), ["{\"seq\":3}", note]);
        assert_eq!(followed(&errands, &run, 9), [note]);
    }

    #[test]
    fn who_hears_only_so_much_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        journal(dir.path(), "{\"seq\":1}\n{\"seq\":2}\n{\"seq\":3}\n");
        let row =
            |status: &str| serde_json::json!({"name": "a", "status": status, "x": "y".repeat(LONGEST_END)});
        let document = serde_json::json!({"nodes": [row("completed"), {"status": "failed"}]});
        let (errands, run) =
            errand(dir.path(), Some(&ErrandEnd { document: Some(document), ..ErrandEnd::default() }));
        let part = |after, most| {
            let mut out = Vec::new();
            follow(&errands, &run, Wanted { after, most: Some(most) }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(part(0, 11), "{\"seq\":1}\n{\"seq\":2}\n");
        assert_eq!(part(2, 1), "{\"seq\":3}\n");
        assert_eq!(
            part(3, 1),
            "{\"end\":{\"code\":null,\"document\":{\"nodes\":[{\"status\":\"failed\"}]}}}\n"
        );
    }

    #[test]
    fn an_errand_that_nobody_keeps_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let (errands, run) = errand(dir.path(), None);
        assert_eq!(
            followed(&errands, &run, 0),
            ["{\"end\":{\"code\":null,\"complaint\":\"it was killed\"}}"]
        );
        let other = RunId::parse("other").unwrap();
        assert!(matches!(
            follow(&errands, &other, Wanted::default(), &mut Vec::new()),
            Err(ErrandError::Unknown(_))
        ));
    }

    #[test]
    fn what_is_written_meanwhile_is_handed_on() {
        let dir = tempfile::tempdir().unwrap();
        let (errands, run) = errand(dir.path(), None);
        let home = errands.home(&run);
        let manifest = home.open_manifest().unwrap().unwrap();
        rustix::fs::flock(&manifest, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let path = stead_bundle::runs_directory(dir.path()).join("r").join(stead_bundle::EVENTS);
        journal(dir.path(), "");
        let writer = std::thread::spawn(move || {
            let mut file = File::options().append(true).open(path).unwrap();
            for seq in 1..=50 {
                // In two pieces: what is not whole is not handed on.
                write!(file, "{{\"seq\":").unwrap();
                std::thread::sleep(Duration::from_millis(1));
                writeln!(file, "{seq}}}").unwrap();
            }
            let end = ErrandEnd { code: Some(0), ..ErrandEnd::default() };
            home.write("end.json", &serde_json::to_vec(&end).unwrap()).unwrap();
            drop(manifest);
        });
        let mut found = followed(&errands, &run, 0);
        found.retain(|line| line != "{\"waiting\":{}}");
        writer.join().unwrap();
        let expected: Vec<String> = (1..=50).map(|seq| format!("{{\"seq\":{seq}}}")).collect();
        assert_eq!(found[..50], expected);
        assert_eq!(found[50..], ["{\"end\":{\"code\":0}}"]);
    }
}
