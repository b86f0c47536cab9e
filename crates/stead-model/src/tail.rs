//! The end of what a program said, as much of it as people read.

/// How many lines that are.
pub const LAST_LINES: usize = 20;

/// Returns the last lines of `text`, in their order.
pub fn last_lines(text: &str) -> Vec<&str> {
    last_of(text.lines().collect())
}

/// Returns the last lines of `text` that are not blank, in their order.
pub fn last_words(text: &str) -> Vec<&str> {
    last_of(text.lines().filter(|line| !line.trim().is_empty()).collect())
}

fn last_of(mut lines: Vec<&str>) -> Vec<&str> {
    lines.split_off(lines.len().saturating_sub(LAST_LINES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_in_order() {
        let text: String = (1..=25).map(|number| format!("{number}\n\n")).collect();
        assert_eq!(last_lines(&text)[..3], ["16", "", "17"]);
        assert_eq!(last_lines(&text).len(), LAST_LINES);
        assert_eq!((last_words(&text).len(), last_words(&text)[0]), (LAST_LINES, "6"));
        assert_eq!(last_lines("one\ntwo"), ["one", "two"]);
        assert_eq!(last_words(""), [""; 0]);
    }
}
