//! What runs leave behind: hashing, verifying, exporting and analysing it, and the memory that takes.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stead_testkit::captures::write_exchanges;

use crate::Effort;
use crate::interrupt::children_of;
use crate::sample::{median, memory_of, time};
use crate::shell::{binary, is_installed, run, write};
use crate::table::{Table, millis};

const MIB: u64 = 1 << 20;
/// How often the memory of a program is looked at. The figure is its highest so far, so nothing is missed but its end.
const LOOK: Duration = Duration::from_millis(2);
/// The most memory any size may take, and how much more than a small one.
const MOST_MEMORY: f64 = 256.0 * MIB as f64;
const MOST_GROWTH: f64 = 1.2;

/// The lines about what runs leave behind.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    hashing(effort, table);
    verifying(effort, table);
    analysing(effort, table);
    memory(effort, table);
    no_op_roles(table);
    stillborn_role(effort, table);
    role_output(effort, table);
}

/// Returns `full`, or `quick` for a first impression.
fn size(effort: Effort, full: u64, quick: u64) -> u64 {
    match effort {
        Effort::Full => full,
        Effort::Quick => quick,
    }
}

fn hashing(effort: Effort, table: &mut Table) {
    let shapes =
        [(size(effort, 64, 16), size(effort, 64 * MIB, 8 * MIB)), (size(effort, 10_000, 1_000), 100 << 10)];
    for (files, bytes) in shapes {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bundle = make_bundle(directory.path(), files, bytes);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=effort.samples() {
            let one = time(|| stead_bundle::seal(&bundle).expect("a bundle can be sealed"));
            let other = time(|| run(sha256sum(&bundle, files)));
            // The first round warms the cache.
            if round > 0 {
                ours.push(one);
                theirs.push(other);
            }
        }
        let [ours, theirs] = [ours, theirs].map(|taken| median(taken).as_secs_f64());
        let what = format!("hashing {files} files of {} KiB, against `xargs -P sha256sum`", bytes >> 10);
        let shown = rate((files * bytes) as f64 / ours);
        let peer = format!("0.9 × {}", rate((files * bytes) as f64 / theirs));
        table.at_least(&what, shown, theirs / ours, peer, 0.9);
    }
}

/// Returns the peer: as many processes as there are processors, each with a fair share of files at a time.
fn sha256sum(bundle: &Path, files: u64) -> Command {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let share = (files / (4 * processors)).clamp(1, 100);
    let mut command = Command::new("sh");
    let line = format!("find . -type f -print0 | xargs -0 -P {processors} -n {share} sha256sum");
    command.args(["-c", &line]).current_dir(bundle);
    command
}

fn verifying(effort: Effort, table: &mut Table) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = make_bundle(directory.path(), 10_000, 4 << 10);
    stead_bundle::seal(&bundle).expect("a bundle can be sealed");
    let verify = || time(|| run(stead(&["bundle", "verify"], &bundle)));
    verify();
    let taken = median((0..effort.samples()).map(|_| verify()).collect()).as_secs_f64();
    let what = "verify 10,000 files of 4 KiB, program start to end";
    table.at_most(what, millis(taken), taken, "1 s".to_owned(), 1.0);
}

fn analysing(effort: Effort, table: &mut Table) {
    let bytes = size(effort, 1024 * MIB, 64 * MIB);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let capture = make_capture(directory.path(), bytes);
    let report = || time(|| run(stead(&["bundle", "report", "--json", "--jobs", "1"], &capture)));
    report();
    let ours = median((0..effort.samples()).map(|_| report()).collect()).as_secs_f64();
    let what = format!("analysis of a capture of {} MiB, one job", bytes / MIB);
    table.at_least(&what, rate(bytes as f64 / ours), bytes as f64 / ours, "300 MB/s".to_owned(), 300e6);
    against_tshark(bytes as f64 / ours, effort, table);
}

/// The line about `ours`, bytes a second, against tshark. It takes minutes and gigabytes for what fills this program's
/// second, so it gets a smaller capture of the same kind and the throughputs are compared.
fn against_tshark(ours: f64, effort: Effort, table: &mut Table) {
    let bytes = size(effort, 32 * MIB, 8 * MIB);
    let what = format!("the same, against tshark's throughput with {} MiB", bytes / MIB);
    if !is_installed("tshark") {
        return table.skipped(&what, "tshark is not installed");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let capture = make_capture(directory.path(), bytes);
    let theirs = time(|| {
        let mut tshark = Command::new("tshark");
        tshark.arg("-n").arg("-r").arg(&capture).args(["-Y", "enip||cip", "-T", "fields"]);
        run(tshark.args(["-e", "enip.command", "-e", "cip.service"]));
    });
    let theirs = bytes as f64 / theirs.as_secs_f64();
    table.at_least(&what, rate(ours), ours, format!("10 × {}", rate(theirs)), 10.0 * theirs);
}

fn memory(effort: Effort, table: &mut Table) {
    let large = size(effort, 4096 * MIB, 256 * MIB);
    let peaks = [64 * MIB, large].map(peaks_at);
    for ((what, small), (_, large_peak)) in peaks[0].iter().zip(&peaks[1]) {
        over_sizes(what, *small as f64, *large_peak as f64, large, table);
    }
}

/// The lines about the highest memory `peak` with `large` bytes, against `small` with 64 MiB.
fn over_sizes(what: &str, small: f64, peak: f64, large: u64, table: &mut Table) {
    let what = format!("peak memory, {what}, {} MiB", large / MIB);
    table.at_most(&what, mib(peak), peak, mib(MOST_MEMORY), MOST_MEMORY);
    let what = format!("{what}, over 64 MiB");
    table.at_most(&what, format!("{:.2} ×", peak / small), peak / small, "1.2 ×".to_owned(), MOST_GROWTH);
}

/// Returns the highest memory of each thing that is done with `bytes` bytes.
fn peaks_at(bytes: u64) -> Vec<(&'static str, u64)> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = make_bundle(directory.path(), 1, bytes);
    stead_bundle::seal(&bundle).expect("a bundle can be sealed");
    let mut peaks = vec![("bundle hashed and verified", peak(stead(&["bundle", "verify"], &bundle)))];
    let exports = [
        ("a.zip", "exported to zip", "zip verified"),
        ("a.tar.zst", "exported to tar.zst", "tar.zst verified"),
    ];
    for (name, exported, verified) in exports {
        let archive = directory.path().join(name);
        let mut export = stead(&["bundle", "export"], &bundle);
        peaks.push((exported, peak(export.arg("-o").arg(&archive))));
        peaks.push((verified, peak(&mut stead(&["bundle", "verify"], &archive))));
        fs::remove_file(&archive).expect("our own file");
    }
    fs::remove_dir_all(&bundle).expect("our own directory");
    let capture = make_capture(directory.path(), bytes);
    peaks.push(("capture analysed", peak(stead(&["bundle", "report", "--json"], &capture))));
    peaks
}

fn no_op_roles(table: &mut Table) {
    /// How many runs the contract takes the median of.
    const RUNS: usize = 20;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let roles = "  one: {command: ['true']}\n  two: {command: ['true']}\n";
    let manifest = make_manifest(directory.path(), roles);
    let one = || time(|| run(run_manifest(&manifest)));
    // The first warms the cache.
    one();
    let taken = median((0..RUNS).map(|_| one()).collect()).as_secs_f64();
    let what = "a local run of two roles that do nothing, program start to end";
    table.at_most(what, millis(taken), taken, "50 ms".to_owned(), 0.05);
}

/// A role that ends before it is ready is not waited for: the whole run, from its start to its end.
fn stillborn_role(effort: Effort, table: &mut Table) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let roles =
        "  server: {kind: service, command: [sh, -c, 'exit 3'], ready: {method: structured_stdout}}\n";
    let manifest = make_manifest(directory.path(), roles);
    let once = |_| {
        time(|| {
            let status = run_manifest(&manifest).stderr(Stdio::null()).status();
            assert!(!status.expect("a run").success(), "it fails");
        })
    };
    let taken = median((0..effort.samples()).map(once).collect()).as_secs_f64();
    table.at_most(
        "a run whose role ends before it is ready",
        millis(taken),
        taken,
        "1000 ms".to_owned(),
        1.0,
    );
}

fn role_output(effort: Effort, table: &mut Table) {
    let large = size(effort, 4096 * MIB, 256 * MIB);
    let [small_peaks, large_peaks] = [64 * MIB, large].map(peaks_of_run);
    for (who, small, peak) in [
        ("driver", small_peaks.driver, large_peaks.driver),
        ("supervisor", small_peaks.supervisor, large_peaks.supervisor),
    ] {
        let (small, peak) = (small as f64, peak as f64);
        assert!(small > 0.0, "the {who} was never seen");
        over_sizes(&format!("role output, {who}"), small, peak, large, table);
    }
}

/// The highest memory of the two processes that a role's output passes.
struct RunPeaks {
    driver: u64,
    supervisor: u64,
}

/// Runs one role that writes `bytes` bytes.
fn peaks_of_run(bytes: u64) -> RunPeaks {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let roles = format!("  one: {{command: [sh, -c, 'yes what a role says | head -c {bytes}']}}\n");
    let manifest = make_manifest(directory.path(), &roles);
    let mut peaks = RunPeaks { driver: 0, supervisor: 0 };
    watch(run_manifest(&manifest).args(["--timeout", "0"]), |driver| {
        peaks.driver = peaks.driver.max(peak_so_far(driver));
        for child in supervisors_of(driver) {
            peaks.supervisor = peaks.supervisor.max(peak_so_far(child));
        }
    });
    peaks
}

/// Returns the children of `driver` that watch over roles.
fn supervisors_of(driver: u32) -> Vec<u32> {
    let is_supervisor = |child: &u32| {
        let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"supervise")
    };
    children_of(driver).into_iter().filter(is_supervisor).collect()
}

fn make_manifest(directory: &Path, roles: &str) -> PathBuf {
    let manifest = directory.join("run.yaml");
    write(&manifest, &format!("api_version: v1\nroles:\n{roles}"));
    manifest
}

/// Returns the command that runs `manifest`; what it leaves is beside it.
fn run_manifest(manifest: &Path) -> Command {
    let mut command = stead(&["run", "manifest"], manifest);
    let directory = manifest.parent().expect("a file in a directory");
    command.current_dir(directory).env("XDG_CACHE_HOME", directory.join("cache"));
    command
}

fn stead(words: &[&str], path: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(words).arg(path);
    command
}

/// Runs a program that has to succeed; returns the highest memory it had.
fn peak(mut command: impl std::borrow::BorrowMut<Command>) -> u64 {
    let mut highest = 0;
    watch(command.borrow_mut(), |process| highest = highest.max(peak_so_far(process)));
    highest
}

/// Runs a program that has to succeed and looks at it again and again while it runs.
fn watch(command: &mut Command, mut look: impl FnMut(u32)) {
    let mut child = command.stdout(Stdio::null()).spawn().expect("the program beside this one");
    loop {
        match child.try_wait().expect("our own child") {
            Some(status) => {
                assert!(status.success(), "{command:?} failed");
                return;
            }
            // A program that just ended has no figures any more.
            None => look(child.id()),
        }
        std::thread::sleep(LOOK);
    }
}

fn peak_so_far(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    if status.contains("VmHWM:") { memory_of(process, "VmHWM:") } else { 0 }
}

/// Writes a bundle with `files` files of `bytes` bytes of output.
fn make_bundle(directory: &Path, files: u64, bytes: u64) -> PathBuf {
    let bundle = directory.join("r1");
    fs::create_dir(&bundle).expect("the temporary directory can be written to");
    let meta = r#"{"schema": 1, "kind": "plan", "run_id": "r1", "status": "success"}"#;
    write(&bundle.join("run_meta.json"), meta);
    for name in ["versions.json", "plan.json", "report.json", "events.jsonl"] {
        write(&bundle.join(name), "{}\n");
    }
    let lines: String =
        (0..10_000).map(|n| format!("line {n} of what a role said, {}\n", n * 7_919 % 10_007)).collect();
    for file in 0..files {
        let place = bundle.join(format!("logs/{}", file / 100));
        fs::create_dir_all(&place).expect("the temporary directory can be written to");
        let mut out = BufWriter::new(File::create(place.join(format!("{file}.log"))).expect("a new file"));
        let mut left = usize::try_from(bytes).expect("sizes fit");
        while left > 0 {
            let piece = &lines.as_bytes()[..left.min(lines.len())];
            out.write_all(piece).expect("the temporary directory can be written to");
            left -= piece.len();
        }
        out.flush().expect("the temporary directory can be written to");
    }
    bundle
}

fn make_capture(directory: &Path, bytes: u64) -> PathBuf {
    let path = directory.join("capture.pcap");
    let mut out = BufWriter::new(File::create(&path).expect("a new file"));
    write_exchanges(&mut out, bytes)
        .and_then(|()| out.flush())
        .expect("the temporary directory can be written to");
    path
}

fn rate(bytes_per_second: f64) -> String {
    let decimals = usize::from(bytes_per_second < 10e6);
    format!("{:.decimals$} MB/s", bytes_per_second / 1e6)
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / MIB as f64)
}
