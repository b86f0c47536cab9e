//! Hours of pushes, kills and cuts, and a count before and after of everything that could grow.
//!
//! ```text
//!  rounds ─▶ stead ─▶ relay (cuts) ─▶ sshd ─▶ executor      one driver, many ends
//!         └▶ a site that comes and goes                     sandboxes, its server killed now and then
//!  census ◀─ a site that stays: its server, its agents      what must not grow
//! ```
//!
//! The first rounds are not counted: what is made once and kept (a brought program, a certificate) is there after them.

mod census;
mod relay;
mod rounds;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use census::Census;
use rounds::Round;
use world::World;

/// Disturbs `stead` for so many minutes, and says what became of it.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal and for CI")]
pub fn command(stead: &Path, minutes: u64) -> ExitCode {
    if !stead_testkit::sshd::available() {
        eprintln!("error: a soak needs an SSH server (Debian: openssh-server)");
        return ExitCode::FAILURE;
    }
    let world = match World::new(stead) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failures = Vec::new();
    // Twice: a killed run may leave what the next one clears.
    for number in 0..2 {
        for round in Round::ALL {
            failures.extend(round.run(&world, number).err().map(|why| format!("{round}: {why}")));
        }
    }
    let before = Census::calm(&world);
    println!("warmed up: {before}");
    let (began, mut number, mut times) = (Instant::now(), 2, [0_u64; Round::ALL.len()]);
    while began.elapsed() < Duration::from_secs(minutes * 60) {
        for (round, times) in Round::ALL.iter().zip(&mut times) {
            let failed = round.run(&world, number).err();
            if let Some(why) = failed {
                println!("round {number}, {round}: {why}");
                failures.push(format!("round {number}, {round}: {why}"));
            }
            *times += 1;
        }
        number += 1;
        if number % 10 == 0 {
            println!("{} min: {}", began.elapsed().as_secs() / 60, Census::take(&world));
        }
    }
    let after = Census::calm(&world);
    for (round, times) in Round::ALL.iter().zip(times) {
        println!("{times:>6} × {round}");
    }
    let grown = after.compare(&before);
    println!("{} rounds failed", failures.len());
    world.end();
    let left = Census::left(&world);
    for line in &left {
        println!("error: left behind: {line}");
    }
    if grown || !failures.is_empty() || !left.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
