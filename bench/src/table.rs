//! The table, printed line by line as figures come in.

use std::process::ExitCode;

use crate::Effort;

/// What is printed.
pub(crate) struct Table {
    missed: usize,
    checked: usize,
}

impl Table {
    /// Prints the head.
    pub(crate) fn begin(effort: Effort) -> Self {
        let how = if effort == Effort::Quick { "quick, " } else { "" };
        say(&format!("{how}medians of {} runs, {} processors\n", effort.samples(), processors()));
        say("| what | measured | limit or peer | ratio | |");
        say("|---|---|---|---|---|");
        Self { missed: 0, checked: 0 }
    }

    /// Prints a figure that is to be at most `limit`.
    pub(crate) fn at_most(&mut self, what: &str, shown: String, value: f64, limit_shown: String, limit: f64) {
        self.line(what, &shown, &format!("≤ {limit_shown}"), value / limit, Some(value <= limit));
    }

    /// Prints a figure that is to be at least `limit`.
    pub(crate) fn at_least(
        &mut self,
        what: &str,
        shown: String,
        value: f64,
        limit_shown: String,
        limit: f64,
    ) {
        self.line(what, &shown, &format!("≥ {limit_shown}"), value / limit, Some(value >= limit));
    }

    /// Prints a figure beside that of a peer, without a limit.
    pub(crate) fn peer(&mut self, what: &str, shown: String, value: f64, peer_shown: String, peer: f64) {
        self.line(what, &shown, &peer_shown, value / peer, None);
    }

    /// Prints a figure that is to be at most `times` that of a peer.
    pub(crate) fn within(&mut self, what: &str, ours: f64, theirs: (&str, f64), times: f64) {
        let peer = format!("{} {}, ≤ {times} ×", theirs.0, millis(theirs.1));
        self.line(what, &millis(ours), &peer, ours / theirs.1, Some(ours <= theirs.1 * times));
    }

    /// Prints a figure that is to be `times` smaller than that of a peer.
    pub(crate) fn times_faster(&mut self, what: &str, ours: f64, theirs: (&str, f64), times: f64) {
        let peer = format!("{} {}, ≥ {times} × faster", theirs.0, millis(theirs.1));
        let faster = theirs.1 / ours;
        self.line(what, &millis(ours), &peer, faster, Some(faster >= times));
    }

    /// Prints a figure of its own.
    pub(crate) fn note(&mut self, what: &str, shown: String) {
        say(&format!("| {what} | {shown} | | | |"));
    }

    /// Prints why something was not measured.
    pub(crate) fn skipped(&mut self, what: &str, why: &str) {
        say(&format!("| {what} | skipped: {why} | | | |"));
    }

    fn line(&mut self, what: &str, shown: &str, limit: &str, ratio: f64, met: Option<bool>) {
        let verdict = match met {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        self.checked += usize::from(met.is_some());
        self.missed += usize::from(met == Some(false));
        say(&format!("| {what} | {shown} | {limit} | {ratio:.2} | {verdict} |"));
    }

    /// Prints the foot. A missed limit is no failure of the program: figures depend on the machine.
    pub(crate) fn end(self) -> ExitCode {
        say(&format!("\n{} of {} limits met", self.checked - self.missed, self.checked));
        ExitCode::SUCCESS
    }
}

#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
fn say(line: &str) {
    println!("{line}");
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Shows seconds as microseconds.
pub(crate) fn micros(seconds: f64) -> String {
    format!("{:.2} µs", seconds * 1e6)
}

/// Shows seconds as milliseconds.
pub(crate) fn millis(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

/// Shows a number of bytes.
pub(crate) fn bytes(count: f64) -> String {
    format!("{count:.0} B")
}

/// Shows how many per second.
pub(crate) fn rate(per_second: f64, what: &str) -> String {
    format!("{:.2} M {what}/s", per_second / 1e6)
}

/// Shows how many per second, every one counted.
pub(crate) fn per_second(count: f64, what: &str) -> String {
    format!("{} {what}/s", thousands(count as u64))
}

/// Shows a number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).expect("digits are ASCII"))
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_whole() {
        assert_eq!(per_second(26_860.4, "requests"), "26,860 requests/s");
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(thousands).each_ref().map(String::as_str)
        );
    }
}
