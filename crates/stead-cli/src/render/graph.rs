//! A plan as a graph, for Graphviz or Mermaid; coloured by how a run of it ended. Deterministic.

use std::collections::HashMap;

use stead_model::plan::Section;
use stead_model::{Plan, Report, Status, TaskName};

/// How tasks ended, by name.
type Ends<'a> = HashMap<&'a TaskName, Status>;

fn ends_of(run: Option<&Report>) -> Ends<'_> {
    run.map(|report| report.tasks().iter().map(|row| (&row.name, row.status)).collect()).unwrap_or_default()
}

/// Colours that tell the ends apart with any colour vision, dark text readable on each.
const fn color(status: Status) -> &'static str {
    match status {
        Status::Changed => "#8fd19e",
        Status::Unchanged => "#d4edda",
        Status::Skipped => "#e2e3e5",
        Status::Failed => "#f28b82",
        Status::Cancelled => "#fdd663",
        Status::NotRun => "#ffffff",
        Status::Unknown => "#d7c4f2",
    }
}

/// Returns the edges, from dependency to dependent, in plan order; the name of a `for_each` means all its instances.
fn edges(plan: &Plan) -> Vec<(usize, usize)> {
    let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, task) in plan.tasks.iter().enumerate() {
        let name = task.name.as_str();
        named.entry(name).or_default().push(index);
        if let Some((base, _)) = name.split_once('[') {
            named.entry(base).or_default().push(index);
        }
    }
    let mut edges = Vec::new();
    for (to, task) in plan.tasks.iter().enumerate() {
        let from = task.depends_on.iter().filter_map(|name| named.get(name.as_str())).flatten();
        edges.extend(from.map(|from| (*from, to)));
    }
    edges
}

/// Returns the graph for Graphviz: one node line per task, then the edges, in plan order.
pub fn to_dot(plan: &Plan, run: Option<&Report>) -> String {
    let ends = ends_of(run);
    let mut out = format!("digraph {} {{\n", quoted(plan.name.as_str()));
    for task in &plan.tasks {
        let mut attributes = Vec::new();
        let mut styles = Vec::new();
        if let Some(status) = ends.get(&task.name) {
            styles.push("filled");
            attributes.push(format!("fillcolor=\"{}\", tooltip=\"{status}\"", color(*status)));
        }
        if task.section == Section::Finally {
            styles.push("dashed");
        }
        if !styles.is_empty() {
            attributes.insert(0, format!("style=\"{}\"", styles.join(",")));
        }
        let attributes =
            if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
        out.push_str(&format!("  {}{attributes};\n", quoted(task.name.as_str())));
    }
    for (from, to) in edges(plan) {
        let name = |index: usize| quoted(plan.tasks[index].name.as_str());
        out.push_str(&format!("  {} -> {};\n", name(from), name(to)));
    }
    out.push_str("}\n");
    out
}

/// Returns `text` as a DOT string: only quotes and backslashes mean something there.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => quoted.push('\u{fffd}'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the graph for Mermaid, ids `t0`, `t1`, … in plan order.
pub fn to_mermaid(plan: &Plan, run: Option<&Report>) -> String {
    let ends = ends_of(run);
    let mut out = String::from("flowchart LR\n");
    for (i, task) in plan.tasks.iter().enumerate() {
        let class = ends.get(&task.name).map(|status| format!(":::{status}")).unwrap_or_default();
        out.push_str(&format!("  t{i}[\"{}\"]{class}\n", mermaid_text(task.name.as_str())));
    }
    for (from, to) in edges(plan) {
        out.push_str(&format!("  t{from} --> t{to}\n"));
    }
    for status in Status::ALL.iter().filter(|status| ends.values().any(|end| end == *status)) {
        out.push_str(&format!("  classDef {status} fill:{},stroke:#333,color:#000\n", color(*status)));
    }
    out
}

/// Returns `text` for a quoted Mermaid label, where `#` begins an entity.
fn mermaid_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("#quot;"),
            '#' => escaped.push_str("#35;"),
            '<' => escaped.push_str("#lt;"),
            '>' => escaped.push_str("#gt;"),
            '&' => escaped.push_str("#amp;"),
            '`' => escaped.push_str("#96;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 28: whatever a text holds, to Graphviz it is one node of its own and nothing else.
    #[test]
    fn graphviz_reads_every_text_as_one_node() {
        let nasty = [
            "plain",
            "a\"b",
            "a\\b",
            "a\\",
            "\\\"",
            "a\\\\\"b",
            "<b>html</b>",
            "a -> b; evil",
            "}",
            "[x=y]",
            "a,b",
            "/* c */",
            "// c",
            "# c",
            "\u{1}\u{1b}[31m\u{7f}\n\r\t",
            "node",
            "digraph",
            "é\u{202e}☃",
            "&amp;&#0;",
            "\\N\\n\\l",
            "",
        ];
        let mut graph = String::from("digraph \"g\" {\n");
        nasty.iter().for_each(|text| graph.push_str(&format!("  {};\n", quoted(text))));
        graph.push_str("}\n");
        assert!(graph.chars().all(|c| c == '\n' || !c.is_control()), "{graph:?}");
        let Ok(mut dot) = std::process::Command::new("dot")
            .arg("-Tdot_json")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
        else {
            return;
        };
        std::io::Write::write_all(&mut dot.stdin.take().unwrap(), graph.as_bytes()).unwrap();
        let read = dot.wait_with_output().unwrap();
        assert!(read.status.success() && read.stderr.is_empty(), "{}", String::from_utf8_lossy(&read.stderr));
        let read: serde_json::Value = serde_json::from_slice(&read.stdout).unwrap();
        let names: std::collections::BTreeSet<&str> =
            read["objects"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), nasty.len(), "{names:?}");
        assert!(read.get("edges").is_none(), "{read}");
    }

    #[test]
    fn any_text_is_safe_in_both_languages() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\u{fffd}\"");
        assert_eq!(mermaid_text("a\"<#>"), "a#quot;#lt;#35;#gt;");
    }
}
