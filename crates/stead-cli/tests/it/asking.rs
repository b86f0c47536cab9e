//! Questions on a real pty.

use std::fs::File;
use std::io::{Read as _, Write as _};

use stead_cli::confirm::{Asker, Question};

use crate::events::task;
use crate::terminal::pty;

/// Waits until the terminal has shown `wanted`, and returns all it showed.
fn read_until(master: &mut File, wanted: &str) -> String {
    let mut shown = String::new();
    let mut buffer = [0; 256];
    while !shown.contains(wanted) {
        let count = master.read(&mut buffer).unwrap();
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    shown
}

fn answer_to(typed: &[&str]) -> Option<bool> {
    let (slave, mut master) = pty(24, 80);
    let asked = std::thread::spawn(move || {
        let question = Question { task: task("drop-db"), text: "Really?".to_owned() };
        Asker::on(slave, None).ask(&question, &|| false).unwrap()
    });
    for line in typed {
        let shown = read_until(&mut master, "[y/N] ");
        assert!(shown.contains("drop-db: Really? [y/N] "), "{shown:?}");
        master.write_all(line.as_bytes()).unwrap();
    }
    asked.join().unwrap()
}

#[test]
fn only_yes_is_yes() {
    assert_eq!(answer_to(&["y\n"]), Some(true));
    assert_eq!(answer_to(&["YES\n"]), Some(true));
    assert_eq!(answer_to(&["n\n"]), Some(false));
    assert_eq!(answer_to(&["\n"]), Some(false));
    assert_eq!(answer_to(&["\x04"]), Some(false));
    assert_eq!(answer_to(&["what?\n", "y\n"]), Some(true));
}

#[test]
fn a_cancelled_run_asks_no_longer() {
    let (slave, _master) = pty(24, 80);
    let question = Question { task: task("t"), text: "Sure?".to_owned() };
    assert_eq!(Asker::on(slave, None).ask(&question, &|| true).unwrap(), None);
}
