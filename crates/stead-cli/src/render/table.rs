//! Rows of text in columns.

/// Returns how wide the terminal at standard output is; nothing if it is none.
pub(crate) fn width_of_stdout() -> Option<usize> {
    let told = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(told.ws_col)).filter(|columns| *columns > 0)
}

/// Returns `rows` as lines, every column as wide as its widest cell.
pub(crate) fn to_text<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// As [`to_text`] for something that is `width` columns wide; nothing is as wide as it likes. Where that is too narrow, the first
/// cell of each row has a line of its own, and the others one below it.
pub(crate) fn fitting<const COLUMNS: usize>(rows: &[[String; COLUMNS]], width: Option<usize>) -> String {
    let whole = to_text(rows);
    if fits(&whole, width) {
        return whole;
    }
    let below: Vec<[String; COLUMNS]> = rows
        .iter()
        .map(|row| {
            let mut row = row.clone();
            if let Some(first) = row.first_mut() {
                first.clear();
            }
            row
        })
        .collect();
    let names = rows.iter().filter_map(|row| row.first());
    let lines = to_text(&below);
    names.zip(lines.lines()).map(|(name, line)| format!("{name}\n{line}\n")).collect()
}

/// Whether every line of `text` is at most `width` columns wide.
pub(crate) fn fits(text: &str, width: Option<usize>) -> bool {
    text.lines().all(|line| width.is_none_or(|width| line.chars().count() <= width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_has_two_lines_for_each_row() {
        let rows =
            [["RUN", "KIND", "DONE"], ["2026-11-18_10-16", "plan", "2/2"]].map(|row| row.map(str::to_owned));
        let whole = "RUN               KIND  DONE\n2026-11-18_10-16  plan  2/2\n";
        assert_eq!((fitting(&rows, None), fitting(&rows, Some(28))), (whole.to_owned(), whole.to_owned()));
        assert_eq!(fitting(&rows, Some(27)), "RUN\n  KIND  DONE\n2026-11-18_10-16\n  plan  2/2\n");
    }
}
