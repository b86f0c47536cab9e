//! Findings for people: titled tables, as plain text or as Markdown.
//!
//! What is shown may come from a hostile capture: control characters are never passed on.

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For a terminal.
    Text,
    /// For a page.
    Markdown,
}

/// A title and what stands below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    title: String,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    /// Lines shown as they are.
    verbatim: Option<String>,
}

impl Section {
    /// Returns a section with a table whose columns are called `head`.
    pub(crate) fn new(title: impl Into<String>, head: &[&'static str]) -> Self {
        Self { title: title.into(), head: head.to_vec(), ..Self::default() }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Adds a sentence below the table.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds lines that are shown as they are.
    pub(crate) fn verbatim(mut self, lines: impl Into<String>) -> Self {
        self.verbatim = Some(lines.into());
        self
    }

    /// Returns whether there is nothing below the title.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.notes.is_empty() && self.verbatim.is_none()
    }
}

/// Returns `sections`, those without content left out, under `title`.
pub(crate) fn render(title: &str, sections: &[Section], style: Style) -> String {
    let mut text = match style {
        Style::Text => format!("{}\n", plain(title)),
        Style::Markdown => format!("# {}\n", escaped(title)),
    };
    for section in sections.iter().filter(|section| !section.is_empty()) {
        match style {
            Style::Text => section.write_text(&mut text),
            Style::Markdown => section.write_markdown(&mut text),
        }
    }
    text
}

impl Section {
    fn write_text(&self, text: &mut String) {
        text.push_str(&format!("\n{}\n", plain(&self.title)));
        let head = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let shown = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect::<Vec<String>>();
        let rows: Vec<Vec<String>> = if self.rows.is_empty() {
            Vec::new()
        } else {
            std::iter::once(head).chain(self.rows.iter().map(shown)).collect()
        };
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<String>>().join("  ");
            text.push_str(&format!("  {}\n", line.trim_end()));
        }
        for note in &self.notes {
            text.push_str(&format!("  {}\n", plain(note)));
        }
        for line in self.verbatim.iter().flat_map(|lines| lines.lines()) {
            text.push_str(&format!("  {}\n", plain(line)));
        }
    }

    fn write_markdown(&self, text: &mut String) {
        text.push_str(&format!("\n## {}\n", escaped(&self.title)));
        if !self.rows.is_empty() {
            let rule = vec!["---"; self.head.len()].join(" | ");
            text.push_str(&format!("\n| {} |\n| {rule} |\n", self.head.join(" | ")));
            for row in &self.rows {
                let cells: Vec<String> = row.iter().map(|cell| escaped(cell)).collect();
                text.push_str(&format!("| {} |\n", cells.join(" | ")));
            }
        }
        for note in &self.notes {
            text.push_str(&format!("\n{}\n", escaped(note)));
        }
        if let Some(lines) = &self.verbatim {
            // Indented code cannot be left by anything inside.
            text.push('\n');
            for line in lines.lines() {
                text.push_str(&format!("    {}\n", plain(line)));
            }
        }
    }
}

/// Returns `text` on one line, without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns `text` so that Markdown shows it as it is.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in plain(text).chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => {
                escaped.push('\\');
                escaped.push(c);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections() -> Vec<Section> {
        let mut table = Section::new("Names", &["name", "count"]);
        table.row(["a|b\u{1b}[31m".to_owned(), "1".to_owned()]);
        table.row(["longer_name".to_owned(), "22".to_owned()]);
        vec![table, Section::new("Nothing", &["x"]), Section::default().note("a note").verbatim("+x\n-y")]
    }

    #[test]
    fn text_is_aligned_and_free_of_control_characters() {
        let text = render("Title", &sections(), Style::Text);
        assert_eq!(
            text,
            "Title\n\nNames\n  name         count\n  a|b\u{fffd}[31m     1\n  longer_name  22\n\n\n  a note\n  +x\n  -y\n"
        );
    }

    #[test]
    fn markdown_has_tables_that_cells_cannot_break() {
        let text = render("Title", &sections(), Style::Markdown);
        assert!(text.contains("\n| name | count |\n| --- | --- |\n| a\\|b\u{fffd}\\[31m | 1 |\n"), "{text}");
        assert!(text.contains("\n    +x\n    -y\n") && !text.contains("Nothing"), "{text}");
    }
}
