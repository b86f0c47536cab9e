//! The moving display, on an emulated screen and on a real pty.

use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use stead_cli::output::{Handle, Paint};
use stead_cli::render::terminal::{Live, Screen, Size, Terminal};
use stead_cli::render::{Options, Streaming};
use stead_model::event::{RowResult, Stream, TaskResult};
use stead_model::{EventKind, Status};
use stead_runner::Observer;

use crate::events::{Buffer, feed, finished, host, retry, row, run_finished, run_started, started, task};

/// A terminal on an emulated screen, with a clock that a test moves.
struct Stage {
    buffer: Buffer,
    read: usize,
    emulator: vt100::Parser,
    size: Arc<Mutex<Size>>,
    millis: Arc<AtomicU64>,
    terminal: Terminal,
}

impl Stage {
    fn new(rows: u16, columns: u16, options: Options) -> Self {
        let buffer = Buffer::default();
        let size = Arc::new(Mutex::new(Size { rows, columns }));
        let millis = Arc::new(AtomicU64::new(0));
        let (asked, clock) = (Arc::clone(&size), Arc::clone(&millis));
        let screen = Screen {
            size: Box::new(move || *asked.lock().unwrap()),
            clock: Box::new(move || Duration::from_millis(clock.load(Ordering::SeqCst))),
        };
        let terminal = Terminal::new(buffer.handle(), Paint::None, screen, options);
        Self { buffer, read: 0, emulator: vt100::Parser::new(rows, columns, 1000), size, millis, terminal }
    }

    fn feed(&mut self, kinds: impl IntoIterator<Item = EventKind>) {
        feed(&mut self.terminal, kinds);
    }

    fn advance(&mut self, millis: u64) {
        self.millis.fetch_add(millis, Ordering::SeqCst);
        self.terminal.tick();
    }

    /// Returns the lines of the screen, without empty ones at its end.
    fn screen(&mut self) -> Vec<String> {
        let bytes = self.buffer.bytes();
        self.emulator.process(&bytes[self.read..]);
        self.read = bytes.len();
        let contents = self.emulator.screen().contents();
        contents.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    fn count(&self, what: &str) -> usize {
        String::from_utf8(self.buffer.bytes()).unwrap().matches(what).count()
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("task-{i:02}")).collect()
}

#[test]
fn a_line_says_state_hosts_and_time() {
    let mut stage = Stage::new(10, 80, Options::default());
    let batches = vec![1, 3];
    let hosts: Vec<_> = ["a", "b", "c", "d"].map(host).to_vec();
    stage.feed([
        EventKind::TaskStarted { task: task("roll"), hosts, batches },
        started("one", &["local"]),
        started("func", &[]),
        row("roll", "a", Status::Changed, 1, None),
        EventKind::AttemptStarted { task: task("roll"), host: Some(host("b")), attempt: 1, batch: 2 },
        retry("one", Some("local"), 1, 5_000, "exit code 1"),
    ]);
    stage.advance(1_500);
    let screen = stage.screen();
    assert!(screen[0].ends_with(" roll: batch 2/2, 1/4 hosts, 1.5s"), "{screen:?}");
    assert!(screen[1].ends_with(" one: retry in 4s, 1 host, 1.5s"), "{screen:?}");
    assert!(screen[2].ends_with(" func: running, 1.5s"), "{screen:?}");
}

#[test]
fn finished_tasks_scroll_up_and_the_rest_stays_below() {
    let mut stage = Stage::new(10, 60, Options::default());
    stage.feed([started("a", &["local"]), started("b", &["local"])]);
    stage.advance(100);
    stage.feed([finished("a", Status::Changed, 1_200, None)]);
    stage.advance(100);
    let screen = stage.screen();
    assert_eq!(screen.len(), 2, "{screen:?}");
    assert_eq!(screen[0], "  changed a 1.2s");
    assert!(screen[1].contains(" b: running"));
    assert!(stage.emulator.screen().hide_cursor());
    stage.feed([finished("b", Status::Failed, 5, Some("first\n\x1b[2Jsecond")), run_finished()]);
    assert_eq!(stage.screen(), ["  changed a 1.2s", "   failed b 5ms: first", "          second"]);
    assert!(!stage.emulator.screen().hide_cursor());
}

/// Case 27: 50 running tasks never take more than the screen, whatever its size becomes.
#[test]
fn fifty_tasks_fit_any_screen() {
    for (rows, columns) in [(10, 40), (24, 80), (3, 12), (2, 5), (1, 1), (1, 80), (60, 200)] {
        let mut stage = Stage::new(rows, columns, Options::default());
        stage.feed(names(50).iter().map(|name| started(name, &["h1", "h2"])));
        for _ in 0..5 {
            stage.advance(100);
        }
        stage.screen();
        assert_eq!(stage.emulator.screen().scrollback(), 0);
        stage.emulator.screen_mut().set_scrollback(usize::MAX);
        assert_eq!(stage.emulator.screen().scrollback(), 0, "{rows}x{columns} scrolled");
        stage.emulator.screen_mut().set_scrollback(0);
        let screen = stage.screen();
        assert!(screen.len() < usize::from(rows).max(2), "{screen:?}");
        if rows == 10 {
            assert_eq!(screen.len(), 9);
            assert_eq!(screen[8], "… and 42 more");
        }
    }
}

#[test]
fn a_resize_leaves_nothing_behind() {
    let mut stage = Stage::new(10, 60, Options::default());
    stage.feed(names(5).iter().map(|name| started(name, &["local"])));
    stage.advance(100);
    stage.screen();
    *stage.size.lock().unwrap() = Size { rows: 4, columns: 20 };
    stage.emulator.screen_mut().set_size(4, 20);
    stage.advance(100);
    let screen = stage.screen();
    assert_eq!(screen.len(), 3, "{screen:?}");
    assert_eq!(screen[2], "… and 3 more");
    assert!(screen[0].ends_with('…') && screen[0].chars().count() <= 19, "{screen:?}");
}

#[test]
fn at_most_ten_redraws_a_second() {
    let mut stage = Stage::new(10, 60, Options::default());
    for name in names(100) {
        stage.feed([started(&name, &["local"])]);
        for _ in 0..10 {
            stage.advance(1);
        }
    }
    // Every redraw but the first erases the one before.
    let redraws = stage.count("\x1b[J") + 1;
    assert!((8..=11).contains(&redraws), "{redraws} redraws in one second");
}

#[test]
fn ten_thousand_tasks_cost_little() {
    let mut stage = Stage::new(24, 80, Options::default());
    for name in names(10_000) {
        stage.feed([started(&name, &["local"])]);
    }
    stage.advance(100);
    let before = stage.buffer.bytes().len();
    stage.advance(100);
    assert!(stage.buffer.bytes().len() - before < 24 * 80, "a redraw is no larger than the screen");
    for name in names(10_000) {
        stage.feed([finished(&name, Status::Changed, 1, None)]);
    }
    stage.terminal.finish();
    assert_eq!(stage.count("  changed task-"), 10_000);
}

#[test]
fn a_failed_task_shows_the_last_twenty_lines_of_its_stderr() {
    let runs = tempfile::tempdir().unwrap();
    let dir = runs.path().join("r1/logs/t");
    std::fs::create_dir_all(&dir).unwrap();
    let text: String = (1..=30).map(|i| format!("line {i}\n")).collect();
    std::fs::write(dir.join("local.1.stderr"), &text).unwrap();
    let log = EventKind::Log {
        task: task("t"),
        host: Some(host("local")),
        attempt: 1,
        stream: Stream::Stderr,
        file: "logs/t/local.1.stderr".to_owned(),
        offset: 0,
        len: text.len() as u64,
    };
    let options = Options { runs_dir: Some(runs.path().to_owned()), ..Options::default() };
    let mut stage = Stage::new(40, 60, options);
    stage.feed([
        run_started(),
        started("t", &["local"]),
        log,
        row("t", "local", Status::Failed, 5, Some("exit code 1")),
        finished("t", Status::Failed, 5, Some("exit code 1")),
        run_finished(),
    ]);
    let screen = stage.screen();
    assert_eq!(screen[0], "   failed t 5ms: exit code 1");
    assert_eq!(screen[1], "          --- last lines of stderr of t");
    assert_eq!(screen[2], "          line 11");
    assert_eq!(screen.last().unwrap(), "          line 30");
}

#[test]
fn without_a_record_the_tail_comes_from_the_output_or_the_result() {
    let mut stage = Stage::new(20, 60, Options::default());
    stage.feed([started("live", &["h1", "h2"]), started("data", &["local"])]);
    stage.terminal.on_output(&task("live"), Some(&host("h2")), Stream::Stderr, b"from h2\n");
    stage.terminal.on_output(&task("live"), Some(&host("h1")), Stream::Stdout, b"not this\n");
    let mut result = RowResult::new(Status::Failed);
    result.data = Some(serde_json::json!({"stderr": "from data\n"}));
    stage.feed([
        row("live", "h1", Status::Changed, 1, None),
        row("live", "h2", Status::Failed, 1, Some("no")),
        finished("live", Status::Failed, 1, Some("failed on h2")),
        EventKind::HostResult {
            task: task("data"),
            host: host("local"),
            attempt: 1,
            result: Box::new(result),
        },
        finished("data", Status::Failed, 1, Some("exit code 2")),
        run_finished(),
    ]);
    let wanted = [
        "   failed live@h2 1ms: no",
        "   failed live 1ms: failed on h2",
        "          --- last lines of stderr of live@h2",
        "          from h2",
        "   failed data 1ms: exit code 2",
        "          --- last lines of stderr of data",
        "          from data",
    ];
    assert_eq!(stage.screen(), wanted);
}

#[test]
fn verbose_output_is_above_the_running_tasks() {
    let options = Options { streaming: Streaming::Live, ..Options::default() };
    let mut stage = Stage::new(10, 60, options);
    stage.feed([started("t", &["h"])]);
    stage.terminal.on_output(&task("t"), Some(&host("h")), Stream::Stdout, b"hello\x1b[5A\nwor");
    stage.terminal.on_output(&task("t"), Some(&host("h")), Stream::Stderr, b"err\n");
    stage.advance(100);
    let screen = stage.screen();
    assert_eq!(screen[..2], ["t@h | hello", "t@h | err"]);
    assert!(screen[2].contains(" t: running"));
    let result = Box::new(TaskResult::new(Status::Changed));
    stage.feed([EventKind::TaskFinished { task: task("t"), result }, run_finished()]);
    assert_eq!(stage.screen(), ["t@h | hello", "t@h | err", "t@h | wor", "  changed t 0ms"]);
}

/// Section 12: the cursor is restored on every exit, a panic of the renderer itself included; the run goes on.
#[tokio::test]
async fn a_display_that_panics_leaves_the_cursor_and_the_run_alone() {
    for broken_ticker in [false, true] {
        let buffer = Buffer::default();
        let (drawn, broken) = (buffer.clone(), Arc::new(AtomicU64::new(0)));
        let breaks = Arc::clone(&broken);
        let screen = Screen {
            size: Box::new(|| Size { rows: 10, columns: 60 }),
            clock: Box::new(move || {
                // Once the cursor is hidden the clock breaks, on the thread that the round is about.
                let hidden = String::from_utf8(drawn.bytes()).unwrap().contains("\x1b[?25l");
                let is_ticker = std::thread::current().name() == Some("stead-progress");
                if hidden && is_ticker == broken_ticker {
                    breaks.fetch_add(1, Ordering::SeqCst);
                    panic!("the clock is broken");
                }
                Duration::ZERO
            }),
        };
        let live = Live::start(Terminal::new(buffer.handle(), Paint::None, screen, Options::default()));
        let mut plan = stead_runner::author::Plan::builder("shown");
        let waited_for = Arc::clone(&broken);
        let first = plan
            .func("first", move |_| {
                let broken = Arc::clone(&waited_for);
                async move {
                    // The ticker needs its time; the other round breaks with the next event.
                    while broken_ticker && broken.load(Ordering::SeqCst) == 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Ok(stead_runner::Done::unchanged(()))
                }
            })
            .handle();
        plan.func("second", |_| async { Ok(stead_runner::Done::unchanged(())) }).after(first);
        let runner = stead_runner::Runner::new(stead_runner::operation::Registry::new()).observe(live);
        let report = runner.run(plan.build().unwrap()).await;
        assert_eq!(report.summary().lines().next(), Some("2 tasks: 2 unchanged"));
        assert!(broken.load(Ordering::SeqCst) > 0, "nothing panicked");
        let mut emulator = vt100::Parser::new(10, 60, 0);
        emulator.process(&buffer.bytes());
        assert!(
            buffer.text().contains("\x1b[?25l") && !emulator.screen().hide_cursor(),
            "{:?}",
            buffer.text()
        );
        assert_eq!(emulator.screen().contents().lines().filter(|line| line.contains("running")).count(), 0);
        let dropped = report.warnings.iter().any(|warning| warning.code == "run/observer-panicked");
        assert_eq!(dropped, !broken_ticker, "{:?}", report.warnings);
    }
}

/// A pty of the given size: the side a program writes to, and what reads the other.
pub(crate) fn pty(rows: u16, columns: u16) -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(name).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (slave, File::from(master))
}

/// Case 27: on a pty of 10 rows 50 running tasks never exceed it and the cursor is restored.
#[test]
fn a_pty_of_ten_rows_holds_fifty_tasks() {
    let (slave, mut master) = pty(10, 40);
    let reader = std::thread::spawn(move || {
        let mut emulator = vt100::Parser::new(10, 40, 1000);
        let (mut buffer, mut fullest, mut redraws) = ([0; 4096], 0, 0);
        // Reading fails once every slave is closed.
        while let Ok(count) = master.read(&mut buffer) {
            if count == 0 {
                break;
            }
            emulator.process(&buffer[..count]);
            redraws += 1;
            fullest = fullest.max(emulator.screen().contents().trim_end().lines().count());
        }
        (emulator, fullest, redraws)
    });
    let sized = slave.try_clone().unwrap();
    let begin = std::time::Instant::now();
    let screen = Screen {
        size: Box::new(move || {
            let told = tcgetwinsize(&sized).unwrap();
            Size { rows: told.ws_row, columns: told.ws_col }
        }),
        clock: Box::new(move || begin.elapsed()),
    };
    let mut live = Live::start(Terminal::new(Handle::new(slave), Paint::Ansi, screen, Options::default()));
    feed(&mut live, names(50).iter().map(|name| started(name, &["local"])));
    let pauser = live.pauser();
    assert_eq!(pauser.during(|| 7), 7);
    feed(&mut live, names(50).iter().map(|name| finished(name, Status::Changed, 1, None)));
    drop(live);
    drop(pauser);
    let (mut emulator, fullest, _) = reader.join().unwrap();
    assert!(fullest <= 10);
    assert!(!emulator.screen().hide_cursor());
    assert!(emulator.screen().contents().contains("task-49 1ms"));
    emulator.screen_mut().set_scrollback(usize::MAX);
    // 50 finished lines and the cursor's empty one, nothing left of the live lines.
    assert_eq!(emulator.screen().scrollback(), 41);
}
