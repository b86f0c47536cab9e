//! A capture's summary for people.

use serde::Serialize;

use super::samples::rounded;
use super::summary::{Capture, Comparison, ServiceCount, Summary};
use crate::sections::{Section, Style, render};

/// How many flows are shown; the summary itself has all.
const SHOWN_FLOWS: usize = 20;
/// Below this share drops are minor.
const MINOR_DROPS: f64 = 0.01;

/// Returns what `capture` holds, for people.
pub fn render_capture(capture: &Capture, style: Style) -> String {
    render(&format!("Capture {}", capture.path), &sections(capture), style)
}

/// Returns what the captures of all roles hold, for people.
pub fn render_summary(summary: &Summary, style: Style) -> String {
    render("Analysis", &summary_sections(summary), style)
}

/// Returns the sections of a summary: captures, latencies, and a client against a server.
pub(crate) fn summary_sections(summary: &Summary) -> Vec<Section> {
    let mut overview =
        Section::new("Captures", &["role", "capture", "packets", "ENIP frames", "CIP requests"]);
    let mut latency =
        Section::new("Latency in ms", &["role", "capture", "count", "p50", "p95", "p99", "unanswered"]);
    for (role, captures) in &summary.roles {
        for capture in &captures.captures {
            let counts = [capture.packets, capture.enip.frames, capture.cip.requests];
            let [packets, frames, requests] = counts.map(|count| count.to_string());
            overview.row([role.clone(), capture.path.clone(), packets, frames, requests]);
            let times = &capture.latency_ms;
            let [p50, p95, p99] = [times.p50, times.p95, times.p99].map(optional);
            let (count, unanswered) = (times.count.to_string(), times.unanswered.to_string());
            latency.row([role.clone(), capture.path.clone(), count, p50, p95, p99, unanswered]);
        }
    }
    let compare = summary.compare.as_ref().map(comparison);
    [overview, latency].into_iter().chain(compare.into_iter().flatten()).collect()
}

/// How many packets of a client did not reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drops {
    /// None.
    None,
    /// Less than one in a hundred.
    Minor,
    /// More.
    Significant,
}

impl Comparison {
    /// Returns the verdict; none if the client has no packets.
    pub fn drops(&self) -> Option<Drops> {
        self.drop_rate.map(|rate| match rate {
            0.0 => Drops::None,
            rate if rate < MINOR_DROPS => Drops::Minor,
            _ => Drops::Significant,
        })
    }
}

fn comparison(compare: &Comparison) -> [Section; 2] {
    let verdict = match compare.drops() {
        None => "nothing to compare",
        Some(Drops::None) => "none",
        Some(Drops::Minor) => "minor",
        Some(Drops::Significant) => "significant",
    };
    let share = compare.drop_rate.map(|rate| format!(" ({} %)", rounded(rate * 100.0))).unwrap_or_default();
    let mut drops = Section::new("Client against server", &[]).note(format!("Drops: {verdict}{share}."));
    if let Some(ratio) = compare.latency_ratio {
        let much = if compare.latency_flag { ", which is much" } else { "" };
        drops = drops.note(format!("Latency at the server is {ratio} times that at the client{much}."));
    }
    [drops, services("Services missing at the server", &compare.services_missing_at_server)]
}

fn optional(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn sections(capture: &Capture) -> Vec<Section> {
    vec![
        overview(capture),
        services("Services", &capture.cip.services),
        services("Embedded services", &capture.cip.embedded),
        status(capture),
        paths(capture),
        latency(capture),
        flows(capture),
        streams(capture),
    ]
}

fn overview(capture: &Capture) -> Section {
    let mut section = Section::new("Overview", &["what", "value"]);
    let mut row = |what: &str, value: String| section.row([what.to_owned(), value]);
    row("bytes", capture.bytes.to_string());
    row("packets", capture.packets.to_string());
    row("packets cut short", capture.truncated_packets.to_string());
    row("first packet", capture.first.map_or_else(|| "-".to_owned(), |time| time.to_string()));
    row("last packet", capture.last.map_or_else(|| "-".to_owned(), |time| time.to_string()));
    let enip = &capture.enip;
    row("ENIP frames", enip.frames.to_string());
    row("ENIP requests", enip.requests.to_string());
    row("ENIP responses", enip.responses.to_string());
    for (command, count) in &enip.commands {
        row(&format!("ENIP {command}"), count.to_string());
    }
    row("bytes outside frames", enip.resync_bytes.to_string());
    row("CIP requests", capture.cip.requests.to_string());
    row("CIP responses", capture.cip.responses.to_string());
    row("CIP malformed", capture.cip.malformed.to_string());
    row("CIP unknown services", capture.cip.unknown_services.to_string());
    row("I/O packets", capture.io.packets.to_string());
    if let Some(identity) = &capture.identity {
        row("product", identity.product_name.clone());
        row("vendor", identity.vendor_id.to_string());
    }
    if capture.truncated { section.note("The file ends in the middle of a packet.") } else { section }
}

fn services(title: &str, services: &[ServiceCount]) -> Section {
    let mut section = Section::new(title, &["service", "name", "class", "direction", "count"]);
    for service in services {
        section.row([
            format!("0x{:02X}", service.service),
            service.name.clone(),
            format!("0x{:02X}", service.class),
            if service.response { "reply" } else { "request" }.to_owned(),
            service.count.to_string(),
        ]);
    }
    section
}

fn status(capture: &Capture) -> Section {
    let mut section = Section::new("Replies by status", &["status", "count"]);
    for (status, count) in &capture.cip.status {
        section.row([status.clone(), count.to_string()]);
    }
    section
}

fn paths(capture: &Capture) -> Section {
    let mut section = Section::new("Paths asked for most", &["path", "count"]);
    for path in &capture.cip.paths_top {
        section.row([path.path.clone(), path.count.to_string()]);
    }
    section
}

fn latency(capture: &Capture) -> Section {
    let mut section = Section::new(
        "Times in ms",
        &["what", "count", "min", "mean", "p50", "p90", "p95", "p99", "max", "jitter"],
    );
    let latency = &capture.latency_ms;
    if latency.count > 0 || latency.unanswered > 0 {
        let figures =
            [latency.min, latency.mean, latency.p50, latency.p90, latency.p95, latency.p99, latency.max];
        let [min, mean, p50, p90, p95, p99, max] = figures.map(optional);
        let what = "request to reply".to_owned();
        section.row([what, latency.count.to_string(), min, mean, p50, p90, p95, p99, max, "-".to_owned()]);
        section = section.note(format!("{} requests without a reply.", latency.unanswered));
    }
    let gaps = &capture.io.intervals_ms;
    if gaps.count > 0 {
        let figures = [gaps.min, gaps.mean, gaps.p50, gaps.p90, gaps.p95, gaps.p99, gaps.max, gaps.jitter];
        let [min, mean, p50, p90, p95, p99, max, jitter] = figures.map(optional);
        let what = "between I/O packets".to_owned();
        section.row([what, gaps.count.to_string(), min, mean, p50, p90, p95, p99, max, jitter]);
        section = section.note(format!(
            "{} of {} intervals are too far from {} ms.",
            gaps.violations, gaps.count, gaps.expected
        ));
    }
    section
}

fn flows(capture: &Capture) -> Section {
    let mut section =
        Section::new("I/O flows", &["from", "to", "connection", "packets", "mean ms", "jitter ms"]);
    for flow in capture.io.flows.iter().take(SHOWN_FLOWS) {
        section.row([
            flow.src.clone(),
            flow.dst.clone(),
            format!("0x{:08X}", flow.connection_id),
            flow.packets.to_string(),
            optional(flow.mean_ms),
            optional(flow.jitter_ms),
        ]);
    }
    match capture.io.flows.len().checked_sub(SHOWN_FLOWS) {
        None | Some(0) => section,
        Some(more) => section.note(format!("and {more} more")),
    }
}

fn streams(capture: &Capture) -> Section {
    let tcp = &capture.tcp;
    let mut section =
        Section::new("TCP", &["connections", "retransmits", "out of order", "lost segments", "resets"]);
    let counts = [tcp.flows, tcp.retransmits, tcp.out_of_order, tcp.lost_segments, tcp.resets];
    section.row(counts.map(|count| count.to_string()));
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{golden_a, golden_b};
    use crate::analysis::{AnalysisOptions, RoleKind, analyze, summarize};

    #[test]
    fn a_capture_can_be_read_by_people() {
        let capture = analyze(golden_b().as_slice(), "b.pcap", &AnalysisOptions::default()).unwrap();
        let text = render_capture(&capture, Style::Text);
        for part in ["Capture b.pcap", "packets", "215", "Forward_Open", "0x04/1", "0x00    102", "190"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let page = render_capture(&capture, Style::Markdown);
        assert!(page.contains("| 0x54 | Forward\\_Open | 0x06 | request | 1 |"), "{page}");
    }

    #[test]
    fn a_client_and_a_server_get_a_verdict() {
        let options = AnalysisOptions::default();
        let of = |bytes: Vec<u8>, name| vec![analyze(bytes.as_slice(), name, &options).unwrap()];
        let verdict = |client: Vec<u8>, server: Vec<u8>| {
            let roles = [
                ("client".to_owned(), (RoleKind::Task, of(client, "c.pcap"))),
                ("server".to_owned(), (RoleKind::Service, of(server, "s.pcap"))),
            ];
            render_summary(&summarize(roles.into(), &options), Style::Text)
        };
        let text = verdict(golden_b(), golden_a());
        assert!(text.contains("Drops: significant (1.8605 %)."), "{text}");
        assert!(text.contains("Services missing at the server") && text.contains("Forward_Open"), "{text}");
        assert!(verdict(golden_a(), golden_b()).contains("Drops: none (0 %)."));
    }
}
