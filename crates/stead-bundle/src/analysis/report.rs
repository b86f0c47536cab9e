//! A capture's summary for people.

use super::summary::{Capture, ServiceCount};
use crate::sections::{Section, Style, render};

/// How many flows are shown; the summary itself has all.
const SHOWN_FLOWS: usize = 20;

/// Returns what `capture` holds, for people.
pub fn render_capture(capture: &Capture, style: Style) -> String {
    render(&format!("Capture {}", capture.path), &sections(capture), style)
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
    let shown = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let latency = &capture.latency_ms;
    if latency.count > 0 || latency.unanswered > 0 {
        let figures =
            [latency.min, latency.mean, latency.p50, latency.p90, latency.p95, latency.p99, latency.max];
        let [min, mean, p50, p90, p95, p99, max] = figures.map(shown);
        let what = "request to reply".to_owned();
        section.row([what, latency.count.to_string(), min, mean, p50, p90, p95, p99, max, "-".to_owned()]);
        section = section.note(format!("{} requests without a reply.", latency.unanswered));
    }
    let gaps = &capture.io.intervals_ms;
    if gaps.count > 0 {
        let figures = [gaps.min, gaps.mean, gaps.p50, gaps.p90, gaps.p95, gaps.p99, gaps.max, gaps.jitter];
        let [min, mean, p50, p90, p95, p99, max, jitter] = figures.map(shown);
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
    let shown = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for flow in capture.io.flows.iter().take(SHOWN_FLOWS) {
        section.row([
            flow.src.clone(),
            flow.dst.clone(),
            format!("0x{:08X}", flow.connection_id),
            flow.packets.to_string(),
            shown(flow.mean_ms),
            shown(flow.jitter_ms),
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
    use crate::analysis::testing::golden_b;
    use crate::analysis::{AnalysisOptions, analyze};

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
}
