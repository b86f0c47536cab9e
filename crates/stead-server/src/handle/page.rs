//! `GET /ui`: what operators see in a browser. One page without programs, written anew for each look; nothing can be
//! changed here.

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use stead_model::base64;
use stead_model::node::wire::{AgentState, Job, NodeStatus, WireCode, WireError};
use stead_model::plan::{Digest, PlanRun};
use stead_model::time::Timestamp;
use stead_model::token::{Endpoint, bearer};

use super::{Asked, Refused};
use crate::answer::{self, Answer, with};

/// The most rows of a table: newer ones are the ones that matter.
const MOST_ROWS: usize = 500;

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --line: #e0e1e6; --ground: #fcfcfd; --good: #18794e; --bad: #ce2c31 }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --line: #363a3f; --ground: #111113; --good: #3dd68c; --bad: #ff9592 } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.25rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem } p { color: var(--soft) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 500 } td:first-child { font-family: ui-monospace, monospace; font-size: .9em }
.good { color: var(--good) } .bad { color: var(--bad) }
";

impl Asked<'_> {
    /// The page. A browser asks for a password if it is told that one is wanted: that is the operator's token.
    pub(super) fn page(&mut self) -> Result<Answer, Refused> {
        if !self.is_local() {
            let token = match self.basic_token() {
                Some(token) => Ok(token),
                None => {
                    let header = self.one_header(&header::AUTHORIZATION);
                    bearer(header.as_deref()).map(str::to_owned).map_err(WireError::from)
                }
            };
            self.authorize_token(token, Endpoint::Operator, None).map_err(|refused| {
                let wants_basic = refused.error.code != WireCode::E105;
                Refused { wants_basic, ..refused }
            })?;
        }
        let site = self.snapshot.site.settings.value.name.to_string();
        let nodes = self.server.store.statuses(None).items;
        let jobs = self.server.store.jobs(None).items;
        let text = document(&site, &nodes, &jobs, &self.server.plans.runs());
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            base64::encode(&Digest::of(STYLE.as_bytes()).0)
        );
        let mut answer = answer::bytes(StatusCode::OK, "text/html; charset=utf-8", text.into());
        for (name, value) in [
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                answer = with(answer, name, value);
            }
        }
        Ok(answer)
    }
}

/// A cell: its class, and its text.
type Cell = (&'static str, String);

fn document(site: &str, nodes: &[NodeStatus], jobs: &[Job], runs: &[PlanRun]) -> String {
    let nodes = nodes.iter().map(|node| {
        let class = match node.agent {
            AgentState::Connected => "good",
            AgentState::Stale => "bad",
            AgentState::None => "",
        };
        let short = |digest: &Option<String>| -> String {
            digest.iter().flat_map(|digest| digest.trim_start_matches("sha256:").chars()).take(12).collect()
        };
        vec![
            ("", node.node.to_string()),
            (class, word(&node.agent)),
            ("", when(node.last_seen)),
            ("", short(&node.spec_digest)),
            ("", short(&node.state_digest)),
        ]
    });
    let jobs = jobs.iter().rev().map(|job| {
        let class = if job.error.is_some() || job.rc.is_some_and(|rc| rc != 0) { "bad" } else { "" };
        vec![
            ("", job.id.to_string()),
            ("", job.node.to_string()),
            (class, word(&job.state)),
            // Only the program: arguments may hold secrets.
            ("", job.argv.first().cloned().unwrap_or_default()),
            ("", job.rc.map(|rc| rc.to_string()).unwrap_or_default()),
            ("", job.by.clone()),
            ("", when(Some(job.created_at))),
        ]
    });
    let runs = runs.iter().rev().map(|run| {
        let class = match run.exit_code {
            Some(0) => "good",
            Some(_) => "bad",
            None => "",
        };
        vec![
            ("", run.run_id.to_string()),
            ("", run.plan.to_string()),
            (class, word(&run.state)),
            ("", run.exit_code.map(|code| code.to_string()).unwrap_or_default()),
            ("", run.by.clone()),
            ("", when(Some(run.created_at))),
            ("bad", run.error.clone().unwrap_or_default()),
        ]
    });
    let tables = [
        table("Nodes", &["node", "agent", "last seen", "spec", "state"], nodes.collect()),
        table("Jobs", &["job", "node", "state", "program", "exit code", "by", "when"], jobs.collect()),
        table("Runs", &["run", "plan", "state", "exit code", "by", "when", "error"], runs.collect()),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"5\"><title>{site}: Stead</title><style>{STYLE}</style></head>\n\
         <body><h1>{site}</h1><p>Nodes, jobs and runs of this server. Nothing can be changed here.</p>\n{}</body></html>\n",
        tables.concat(),
        site = escaped(site),
    )
}

fn table(title: &str, heads: &[&str], rows: Vec<Vec<Cell>>) -> String {
    let mut text = format!("<h2>{title} ({})</h2><div class=\"wide\"><table><tr>", rows.len());
    text.extend(heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")));
    text.push_str("</tr>\n");
    for row in rows.iter().take(MOST_ROWS) {
        text.push_str("<tr>");
        text.extend(row.iter().map(|(class, cell)| match *class {
            "" => format!("<td>{}</td>", escaped(cell)),
            class => format!("<td class=\"{class}\">{}</td>", escaped(cell)),
        }));
        text.push_str("</tr>\n");
    }
    let note = match rows.len() {
        0 => "none".to_owned(),
        more if more > MOST_ROWS => format!("and {} more", more - MOST_ROWS),
        _ => String::new(),
    };
    if !note.is_empty() {
        text.push_str(&format!("<tr><td colspan=\"{}\">{note}</td></tr>\n", heads.len()));
    }
    text.push_str("</table></div>\n");
    text
}

/// Returns the word that documents have for a state.
fn word(state: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(state).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn when(at: Option<Timestamp>) -> String {
    at.map(|at| at.to_string().chars().take(19).collect::<String>().replace('T', " ")).unwrap_or_default()
}

/// Returns text as it is written between elements.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_stays_text() {
        let rows =
            vec![vec![("", "<script>alert('x')</script>&\"\u{1b}".to_owned()), ("bad", "no".to_owned())]];
        let text = table("T", &["a", "b"], rows);
        assert!(
            text.contains("<td>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot; </td>"),
            "{text}"
        );
        assert!(text.contains("<td class=\"bad\">no</td>"));
    }

    #[test]
    fn tables_say_what_they_leave_out() {
        let rows = |count: usize| vec![vec![("", "x".to_owned())]; count];
        assert!(table("T", &["a"], rows(0)).contains("none"));
        let long = table("T", &["a"], rows(MOST_ROWS + 2));
        assert!(long.contains("and 2 more") && long.matches("<td>x</td>").count() == MOST_ROWS);
        let page = document("<lab>", &[], &[], &[]);
        assert!(page.contains("&lt;lab&gt;") && !page.contains("<lab>") && page.contains("Runs (0)"));
    }
}
