//! One role under its supervisor: started, heard, judged, stopped, and its end told.

mod memory;
mod start;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use serde_json::Value;
use stead_model::role::{
    LEFT_PROCESSES_GRACE_MS, PlainCommand, Probe, ProbeAnswer, RoleEvent, RoleExit, RoleOrder, StopReason,
    StopSignal, SupervisorRequest, signal_name,
};
use stead_model::run_plan::RoleKind;
use stead_model::time::Timestamp;
use stead_runner::clock;
use stead_runner::redact::Redactor;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::roles::probe;

use super::Control;
use super::judge::{Judge, Next, Said, Verdict};
use super::output::Log;
use super::tree;

use memory::Memory;
use start::{command, live_lock};

/// How long processes of a role that ended may take to end by themselves before they are taken for left ones.
const SETTLE: Duration = Duration::from_millis(50);
/// How often the growth of the logs is told.
const TELL: Duration = Duration::from_millis(100);
/// How often what was killed is looked at, and killed again if it forked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the kernel may take to end what was killed; longer, and a disk or device hangs.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// How long after the tree's end its output may still come: somebody else may hold the pipe.
const DRAIN: Duration = Duration::from_millis(200);
/// What is read at once of a stream.
const PIECE: usize = 64 << 10;

/// How far the role is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It runs.
    Running,
    /// It has ended; what is below it may do so too.
    Settling { until: Instant },
    /// Its tree was asked to end.
    Stopping { until: Instant },
    /// Its tree is being killed.
    Killing { next: Instant, give_up: Instant },
    /// No process is left; what they wrote may still come.
    Gone { until: Instant },
}

/// What has happened.
enum Input {
    Control(Option<SupervisorRequest>),
    Output(Said, usize),
    Child,
    Asked,
    Looked(ProbeAnswer),
    Time,
}

/// A role and all that is known of it.
pub(super) struct Supervised {
    pub(super) order: RoleOrder,
    pub(super) logs: String,
    pub(super) note: Option<String>,
    /// A plain program instead of a role.
    pub(super) plain: Option<PlainCommand>,
    pub(super) control: Control,
}

/// Why a role was not started, and who is to be told.
struct Refused {
    reason: String,
    control: Control,
}

/// A role that runs, or has run.
struct Live {
    order: RoleOrder,
    control: Control,
    redactor: Redactor,
    /// Whether what it leaves running stays.
    leaves: bool,
    /// Whether the holder is gone.
    is_alone: bool,
    pid: u32,
    started: Instant,
    phase: Phase,
    judge: Option<Judge>,
    streams: [(Option<pipe::Receiver>, Log); 2],
    looks: JoinSet<ProbeAnswer>,
    /// The command that is run to look, until when, and what it is.
    looking: Option<(u32, Instant, Vec<String>)>,
    memory: Memory,
    /// Logs as they were last told, and when that may be again.
    told: ([u64; 2], Instant),
    is_log_failure_told: bool,
    status: Option<(ExitStatus, Timestamp, Instant)>,
    was_asked: bool,
    killed: bool,
    left: usize,
}

impl Supervised {
    /// Starts the role and stays with it to its end.
    pub(super) async fn run(self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        let note = self.note.clone();
        // Held while it lives, so that those who come later know whether there is still something to wait for.
        let _live = note.as_ref().and_then(|note| live_lock(Path::new(note)).ok());
        match self.start().await {
            Ok(live) => {
                let (exit, mut control) = live.supervise(&mut children).await?;
                if let Some(note) = note {
                    // For those who come later; whoever holds the pipe hears it now.
                    let text = serde_json::to_vec(&exit).unwrap_or_default();
                    std::fs::write(note, text).unwrap_or(());
                }
                control.tell(&RoleEvent::Exited(exit));
                control.flush().await;
            }
            Err(refused) => {
                let Refused { reason, mut control } = *refused;
                control.tell(&RoleEvent::NotStarted { reason });
                control.flush().await;
            }
        }
        Ok(())
    }
}

impl Live {
    async fn supervise(
        mut self,
        children: &mut tokio::signal::unix::Signal,
    ) -> io::Result<(RoleExit, Control)> {
        let mut asked = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
            .map(signal)
            .into_iter()
            .collect::<io::Result<Vec<_>>>()?;
        let mut buffers = [vec![0; PIECE], vec![0; PIECE]];
        self.on_time(Instant::now());
        // It may have ended before anybody listened for that.
        self.reap();
        while !self.is_over() {
            let input = self.next_input(children, &mut asked, &mut buffers).await;
            match input {
                Input::Control(message) => self.on_control(message),
                Input::Output(said, n) => {
                    let bytes = buffers[said as usize].get(..n).unwrap_or_default();
                    self.on_output(said, bytes);
                }
                Input::Child => self.reap(),
                Input::Asked => self.stop(StopReason::DriverLost, false),
                Input::Looked(answer) => self.on_look(answer),
                Input::Time => {}
            }
            self.on_time(Instant::now());
        }
        self.finish_logs();
        Ok((self.exit(), self.control))
    }

    async fn next_input(
        &mut self,
        children: &mut tokio::signal::unix::Signal,
        asked: &mut [tokio::signal::unix::Signal],
        buffers: &mut [Vec<u8>; 2],
    ) -> Input {
        let wakes_at = self.wakes_at();
        let [(stdout, _), (stderr, _)] = &mut self.streams;
        let [out, err] = buffers;
        let [terminated, interrupted, hung_up] = asked else { return Input::Asked };
        let is_told = self.control.is_quiet();
        let is_alone = self.is_alone;
        // One of them borrows the control at a time: there is nothing to hear while there is something to tell,
        // and that is a few bytes into a pipe.
        let talk = async {
            match (is_told, is_alone) {
                (false, _) => {
                    self.control.write_some().await;
                    None
                }
                (true, false) => Some(self.control.next().await.unwrap_or(None)),
                (true, true) => std::future::pending().await,
            }
        };
        tokio::select! {
            message = talk => message.map_or(Input::Time, Input::Control),
            n = read(stdout, out) => Input::Output(Said::Stdout, n),
            n = read(stderr, err) => Input::Output(Said::Stderr, n),
            _ = children.recv() => Input::Child,
            _ = terminated.recv() => Input::Asked,
            _ = interrupted.recv() => Input::Asked,
            _ = hung_up.recv() => Input::Asked,
            Some(looked) = self.looks.join_next(), if !self.looks.is_empty() => {
                Input::Looked(looked.unwrap_or(ProbeAnswer { ok: false, seen: "the look failed".to_owned() }))
            }
            () = tokio::time::sleep_until(wakes_at) => Input::Time,
        }
    }

    /// Returns when something is due at the latest.
    fn wakes_at(&self) -> Instant {
        let phase = match self.phase {
            Phase::Running => None,
            Phase::Settling { until } | Phase::Stopping { until } | Phase::Gone { until } => Some(until),
            Phase::Killing { next, .. } => Some(next),
        };
        let judge = self.judge.as_ref().and_then(Judge::wakes_at);
        let looking = self.looking.as_ref().map(|(_, until, _)| *until);
        let can_tell = self.control.is_quiet() && self.sizes() != self.told.0;
        let tell = can_tell.then_some(self.told.1);
        let far = self.started + Duration::from_secs(86_400 * 365);
        let memory = self.status.is_none().then(|| self.memory.looks_at());
        [phase, judge, looking, tell, memory].into_iter().flatten().min().unwrap_or(far)
    }

    fn sizes(&self) -> [u64; 2] {
        [self.streams[0].1.bytes(), self.streams[1].1.bytes()]
    }

    fn on_control(&mut self, message: Option<SupervisorRequest>) {
        match message {
            Some(SupervisorRequest::Stop { reason, kill }) => self.stop(reason, kill),
            // Said already.
            Some(SupervisorRequest::Start { .. }) => {}
            None => {
                self.is_alone = true;
                self.stop(StopReason::DriverLost, false);
            }
        }
    }

    fn on_output(&mut self, said: Said, bytes: &[u8]) {
        let (pipe, log) = &mut self.streams[said as usize];
        if bytes.is_empty() {
            *pipe = None;
            log.finish();
        } else {
            log.push(bytes);
        }
        let Some(judge) = &mut self.judge else { return };
        let verdict = if bytes.is_empty() { judge.hear_end(said) } else { judge.hear(said, bytes) };
        self.on_verdict(verdict);
    }

    fn on_verdict(&mut self, verdict: Option<Verdict>) {
        match verdict {
            Some(Verdict::Ready { by, values }) => {
                let mut values = Value::Object(values);
                self.redactor.redact_value(&mut values);
                let Value::Object(values) = values else { return };
                let after_ms = millis(self.started.elapsed());
                self.control.tell(&RoleEvent::Ready { by: by.to_owned(), after_ms, values });
            }
            Some(Verdict::NotReady { reason }) => self.tell_not_ready(&reason),
            None => {}
        }
    }

    fn tell_not_ready(&mut self, reason: &str) {
        let reason = self.redactor.redact_text(reason).into_owned();
        let last_stderr = self.streams[1].1.last_lines();
        self.control.tell(&RoleEvent::NotReady { reason, last_stderr });
    }

    fn on_look(&mut self, answer: ProbeAnswer) {
        // What has ended is not ready, whoever answers there.
        if self.has_ended() {
            return;
        }
        let verdict = self.judge.as_mut().and_then(|judge| judge.looked(answer, Instant::now()));
        self.on_verdict(verdict);
    }

    /// Collects every child that has ended.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.on_child(pid, status),
                Ok(None) => {
                    self.end_lonely_look();
                    return;
                }
                Err(rustix::io::Errno::INTR) => {}
                // No child is left, and so no process of the tree: orphans become children.
                Err(_) => {
                    if !matches!(self.phase, Phase::Gone { .. }) {
                        self.on_tree_end();
                    }
                    return;
                }
            }
        }
    }

    fn on_tree_end(&mut self) {
        let now = Instant::now();
        if let (RoleKind::Service, Some((_, at, ended))) = (self.order.kind, &mut self.status) {
            (*at, *ended) = (clock::now(), now);
        }
        self.phase = Phase::Gone { until: now + DRAIN };
    }

    /// Whether the role has ended: a task with its first process, a service that runs with its last.
    fn has_ended(&self) -> bool {
        self.status.is_some() && !self.is_daemon()
    }

    /// Whether this is a service that goes on without its first process.
    fn is_daemon(&self) -> bool {
        self.order.kind == RoleKind::Service && self.status.is_some() && self.phase == Phase::Running
    }

    /// Whether the end of its first process is not the role's: a service that went into the background. One that failed
    /// has ended, whatever it left.
    fn goes_on_after(&self, status: ExitStatus) -> bool {
        self.order.kind == RoleKind::Service && status.success()
    }

    /// Ends a look at a service of which no process is left: the look is none of it.
    fn end_lonely_look(&mut self) {
        if let Some((look, _, _)) = self.looking.as_ref().filter(|_| self.is_daemon())
            && !tree::has_others_below(std::process::id(), *look)
        {
            self.end_look();
        }
    }

    fn on_child(&mut self, pid: Pid, status: WaitStatus) {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        let status = ExitStatus::from_raw(status.as_raw());
        if pid == self.pid && self.status.is_none() {
            self.status = Some((status, clock::now(), Instant::now()));
            if self.leaves && !self.was_asked {
                self.phase = Phase::Gone { until: Instant::now() + DRAIN };
            } else if self.phase == Phase::Running && !self.goes_on_after(status) {
                self.phase = Phase::Settling { until: Instant::now() + SETTLE };
            }
            if self.has_ended() {
                self.end_look();
            }
        } else if let Some((_, _, command)) = self.looking.take_if(|(looking, _, _)| *looking == pid) {
            self.on_look(probe::exited(status.code(), &command));
        }
    }

    /// Kills the command that looks, if there is one.
    fn end_look(&mut self) -> Option<Vec<String>> {
        let (pid, _, command) = self.looking.take()?;
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It leads a group of its own.
            rustix::process::kill_process_group(pid, Signal::KILL).unwrap_or(());
        }
        Some(command)
    }

    /// Does what is due.
    fn on_time(&mut self, now: Instant) {
        if self.looking.as_ref().is_some_and(|(_, until, _)| *until <= now)
            && let Some(command) = self.end_look()
        {
            self.on_look(ProbeAnswer { ok: false, seen: probe::overdue(&command) });
        }
        if !self.has_ended() {
            match self.judge.as_mut().and_then(|judge| judge.due(now)) {
                Some(Next::Look(wanted)) => self.look(wanted, now),
                Some(Next::Decided(verdict)) => self.on_verdict(Some(verdict)),
                None => {}
            }
        }
        self.tell_growth(now);
        if self.status.is_none() {
            self.memory.look(now);
        }
        match self.phase {
            Phase::Running => {}
            Phase::Settling { until } => {
                if now >= until {
                    self.tell_early_end();
                    self.stop_left(now);
                }
            }
            Phase::Stopping { until } => {
                if now >= until {
                    let seconds = self.order.stop.grace_seconds;
                    self.begin_kill(now, &format!("it did not stop within {seconds} s"));
                }
            }
            Phase::Killing { next, give_up } => {
                if now >= give_up {
                    let left = tree::count_below(std::process::id());
                    let role = self.order.role.clone();
                    self.warn("run/left-processes", format!("{role}: {left} processes cannot be killed"));
                    self.phase = Phase::Gone { until: now + DRAIN };
                } else if now >= next {
                    tree::signal_below(std::process::id(), Signal::KILL);
                    self.phase = Phase::Killing { next: now + LOOK_AGAIN, give_up };
                }
            }
            Phase::Gone { until } => {
                if now >= until {
                    self.drain();
                }
                self.tell_early_end();
            }
        }
    }

    /// Tells at once that a role ended before it was ready: what is below it may take longer to end.
    fn tell_early_end(&mut self) {
        if self.was_asked || self.judge.as_ref().is_none_or(Judge::is_settled) {
            return;
        }
        let Some((status, _, _)) = self.status.filter(|_| self.has_ended()) else { return };
        // What it said last is told with it: its pipe has ended, or nothing more came for a while.
        if matches!(self.phase, Phase::Gone { until } if Instant::now() < until)
            && self.streams[1].0.is_some()
        {
            return;
        }
        if let Some(judge) = &mut self.judge {
            judge.settle();
        }
        let ended = RoleExit {
            exit_code: status.code(),
            signal: status.signal().map(signal_name),
            ..RoleExit::default()
        };
        self.tell_not_ready(&format!("it ended before it was ready: {}", ended.in_words()));
    }

    fn look(&mut self, wanted: Probe, now: Instant) {
        let Probe::Command { command: words, .. } = &wanted else {
            self.looks.spawn(async move { probe::look(&wanted).await });
            return;
        };
        let Some((program, arguments)) = words.split_first() else { return };
        let mut look = command(&self.order, program);
        match look.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => self.looking = Some((child.id(), now + probe::LONGEST_LOOK, words.clone())),
            Err(error) => {
                let seen = format!("`{}` cannot be started: {error}", stead_model::argv::quote_text(words));
                self.on_look(ProbeAnswer { ok: false, seen });
            }
        }
    }

    /// Ends what a role that has ended left behind.
    fn stop_left(&mut self, now: Instant) {
        self.left = tree::signal_below(std::process::id(), to_signal(self.order.stop.signal));
        if self.left > 0 {
            let role = &self.order.role;
            let text = format!("{role} left {} processes behind; they were ended", self.left);
            self.warn("run/left-processes", text);
        }
        self.phase = Phase::Stopping { until: now + Duration::from_millis(LEFT_PROCESSES_GRACE_MS) };
    }

    fn stop(&mut self, reason: StopReason, kill: bool) {
        let now = Instant::now();
        match self.phase {
            Phase::Running => {
                self.was_asked = true;
                let name = if kill { "KILL" } else { self.order.stop.signal.as_str() };
                self.control.tell(&RoleEvent::Stopping { signal: name.to_owned(), reason });
                if kill {
                    self.begin_kill(now, "it had no grace period left");
                } else {
                    tree::signal_below(std::process::id(), to_signal(self.order.stop.signal));
                    let grace = Duration::from_secs(self.order.stop.grace_seconds.into());
                    self.phase = Phase::Stopping { until: now + grace };
                }
            }
            Phase::Settling { .. } | Phase::Stopping { .. } if kill => {
                self.begin_kill(now, "its grace period was cut short");
            }
            Phase::Settling { .. } | Phase::Stopping { .. } | Phase::Killing { .. } | Phase::Gone { .. } => {}
        }
    }

    fn begin_kill(&mut self, now: Instant, why: &str) {
        if self.was_asked {
            self.killed = true;
            let text = format!("{} had to be killed: {why}", self.order.role);
            self.warn("run/role-killed", text);
        }
        tree::signal_below(std::process::id(), Signal::KILL);
        self.phase = Phase::Killing { next: now + LOOK_AGAIN, give_up: now + KILL_WAIT };
    }

    fn warn(&mut self, code: &str, text: String) {
        self.control.tell(&RoleEvent::Warning { code: code.to_owned(), text });
    }

    /// Tells how far the logs are, not too often, and never so that somebody who does not listen costs memory.
    fn tell_growth(&mut self, now: Instant) {
        let sizes = self.sizes();
        // Once the control is quiet it is looked at again.
        if sizes == self.told.0 || now < self.told.1 || !self.control.is_quiet() {
            return;
        }
        self.told = (sizes, now + TELL);
        self.control.tell(&RoleEvent::Logged { stdout_bytes: sizes[0], stderr_bytes: sizes[1] });
    }

    fn is_over(&mut self) -> bool {
        let is_heard = self.streams.iter().all(|(pipe, _)| pipe.is_none());
        match self.phase {
            Phase::Gone { until } => is_heard || Instant::now() >= until,
            Phase::Running | Phase::Settling { .. } | Phase::Stopping { .. } | Phase::Killing { .. } => false,
        }
    }

    /// Reads what the pipes hold by now, however slowly it was written away until here. Whoever still holds the other
    /// end cannot make it more.
    fn drain(&mut self) {
        let mut buffer = vec![0; PIECE];
        for (pipe, log) in &mut self.streams {
            let Some(pipe) = pipe else { continue };
            let mut held = rustix::io::ioctl_fionread(&*pipe).unwrap_or(0);
            while held > 0 {
                let wanted = usize::try_from(held).unwrap_or(PIECE).min(PIECE);
                match rustix::io::read(&*pipe, buffer.get_mut(..wanted).unwrap_or_default()) {
                    Ok(0) => break,
                    Ok(n) => {
                        log.push(buffer.get(..n).unwrap_or_default());
                        held = held.saturating_sub(n as u64);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn finish_logs(&mut self) {
        self.drain();
        for (pipe, log) in &mut self.streams {
            if pipe.take().is_some() {
                log.finish();
            }
        }
        self.tell_early_end();
        let failures: Vec<String> =
            self.streams.iter_mut().filter_map(|(_, log)| log.take_failure()).collect();
        if let Some(failure) = failures.first().filter(|_| !self.is_log_failure_told) {
            let text = format!("the log of {} is not whole: {failure}", self.order.role);
            self.is_log_failure_told = true;
            self.warn("run/log-incomplete", text);
        }
    }

    fn exit(&self) -> RoleExit {
        let (status, at, ended) = match self.status {
            Some((status, at, ended)) => (Some(status), at, ended),
            None => (None, clock::now(), Instant::now()),
        };
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let cpu = usage.map_or(0, |usage| {
            let time = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000 + time.tv_usec() / 1_000;
            u64::try_from(time(usage.user_time()) + time(usage.system_time())).unwrap_or(0)
        });
        RoleExit {
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()).map(signal_name),
            at,
            killed: self.killed,
            left_processes: u32::try_from(self.left).unwrap_or(u32::MAX),
            duration_ms: millis(ended.duration_since(self.started)),
            max_rss_bytes: self.memory.peak(),
            cpu_ms: cpu,
            stdout_bytes: self.streams[0].1.bytes(),
            stderr_bytes: self.streams[1].1.bytes(),
            last_stderr: self.streams[1].1.last_lines(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn to_signal(signal: StopSignal) -> Signal {
    match signal {
        StopSignal::Term => Signal::TERM,
        StopSignal::Int => Signal::INT,
        StopSignal::Hup => Signal::HUP,
        StopSignal::Quit => Signal::QUIT,
        StopSignal::Usr1 => Signal::USR1,
        StopSignal::Usr2 => Signal::USR2,
    }
}

async fn read(pipe: &mut Option<pipe::Receiver>, buffer: &mut [u8]) -> usize {
    match pipe {
        Some(pipe) => pipe.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
