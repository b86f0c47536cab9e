//! A program on a terminal of its own: a pty with an emulator behind it. The terminal is the program's controlling one, so
//! keys, sizes and hanging up mean what they mean to a person.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// How long a state may take to come; generous, for machines that have much to do.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a state is looked for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A program on a terminal.
pub struct Pty {
    child: Child,
    master: Option<File>,
    emulator: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
}

impl Pty {
    /// Starts `program` in `dir` with `env` and nothing else, on a terminal of `size` (columns, rows).
    pub fn start<A: AsRef<OsStr>>(
        program: &str,
        args: &[A],
        dir: &Path,
        env: &[(&str, &str)],
        size: (u16, u16),
    ) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let master = File::from(master);
        tcsetwinsize(&master, winsize(size)).unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(program)
            .args(args)
            .env_clear()
            .envs(env.iter().copied())
            .current_dir(dir)
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave)
            .spawn()
            .unwrap();
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(size.1, size.0, 0)));
        let closing = Arc::new(AtomicBool::new(false));
        let reader = read(master.try_clone().unwrap(), Arc::clone(&emulator), Arc::clone(&closing));
        Self { child, master: Some(master), emulator, reader: Some(reader), closing }
    }

    /// Returns the program's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types `text`.
    pub fn type_text(&mut self, text: &str) {
        self.master.as_mut().expect("the terminal is there").write_all(text.as_bytes()).unwrap();
    }

    /// Makes the terminal another size (columns, rows).
    pub fn resize(&mut self, size: (u16, u16)) {
        self.emulator.lock().unwrap().screen_mut().set_size(size.1, size.0);
        tcsetwinsize(self.master.as_ref().expect("the terminal is there"), winsize(size)).unwrap();
    }

    /// Returns what is on the screen.
    pub fn screen(&self) -> String {
        self.emulator.lock().unwrap().screen().contents()
    }

    /// Calls `look` with the screen and its cells.
    pub fn look<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.emulator.lock().unwrap().screen())
    }

    /// Waits until `text` is on the screen and returns the screen.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until `text` is not on the screen any more and returns the screen.
    pub fn wait_without(&mut self, text: &str) -> String {
        self.wait_until(&format!("no {text}"), |screen| !screen.contains(text))
    }

    /// Waits until the screen is as it should be and returns it.
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the program ended ({ended:?}) before there was `{what}`:\n{screen}");
            assert!(begin.elapsed() < PATIENCE, "waited too long for `{what}`:\n{screen}");
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).expect("a process has a number");
        kill_process(pid, signal).unwrap();
    }

    /// Takes the terminal away, as a window that is closed does.
    pub fn hang_up(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.master = None;
    }

    /// Waits until the program has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "the program does not end:\n{}", self.screen());
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Whether the terminal is as a shell wants it: lines, echo and signals, a cursor, its own screen.
    pub fn is_restored(&self) -> bool {
        // What the program wrote last may still be on its way through the pty.
        let begin = Instant::now();
        let modes = tcgetattr(self.master.as_ref().expect("the terminal is there")).unwrap().local_modes;
        let cooked = modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        loop {
            let drawn = self.look(|screen| {
                !screen.hide_cursor() && !screen.alternate_screen() && !screen.bracketed_paste()
            });
            if (cooked && drawn) || begin.elapsed() > Duration::from_secs(5) {
                return cooked && drawn;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

fn winsize((columns, rows): (u16, u16)) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Feeds the emulator with what the program writes, until the terminal closes.
fn read(mut master: File, emulator: Arc<Mutex<vt100::Parser>>, closing: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        while !closing.load(Ordering::SeqCst) {
            let ready = poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&wait));
            if ready.is_ok_and(|count| count == 0) {
                continue;
            }
            // Reading fails once nobody has the other side open.
            match master.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => emulator.lock().unwrap().process(&buffer[..count]),
            }
        }
    })
}
