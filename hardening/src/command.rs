//! What the program does, by its first argument.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal and for CI")]

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::corpus::{Mutations, kept};
use crate::targets::{ALL, Target, named};
use crate::{secrets, soak};

const USAGE: &str = "\
usage: stead-hardening targets                         what is fuzzed
       stead-hardening words TARGET                    its dictionary, for libFuzzer
       stead-hardening replay TARGET FILE…             try inputs
       stead-hardening mutate SECONDS SEED [TARGET…]   try the corpus and inputs made from it, SECONDS for each target
       stead-hardening secrets DIR…                    look for secrets of tests in files
       stead-hardening secrets --watch DIR             the same in every file written below DIR, until DIR/.enough is
       stead-hardening secrets --self-check            whether they would be found
       stead-hardening soak STEAD MINUTES              disturb STEAD, and compare before with after";

/// How long one input may take: far longer than any should, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does what the arguments say.
pub fn run(arguments: &[String]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["targets"] => {
            for target in ALL {
                println!("{:<14} {}", target.name, target.about);
            }
            ExitCode::SUCCESS
        }
        ["words", target] => with(target, |target| {
            print!("{}", dictionary(target));
            true
        }),
        ["replay", target, files @ ..] => with(target, |target| {
            files.iter().all(|file| {
                println!("{file}");
                fs::read(file).map(|bytes| (target.run)(&bytes)).is_ok()
            })
        }),
        ["mutate", seconds, seed, names @ ..] => {
            let (Ok(seconds), Ok(seed)) = (seconds.parse(), seed.parse()) else { return usage() };
            let chosen: Option<Vec<_>> = names.iter().map(|name| named(name)).collect();
            match chosen {
                Some(chosen) if chosen.is_empty() => mutate(&ALL.iter().collect::<Vec<_>>(), seconds, seed),
                Some(chosen) => mutate(&chosen, seconds, seed),
                None => usage(),
            }
        }
        ["secrets", "--self-check"] => secrets::command::self_check(),
        ["secrets", "--watch", directory] => secrets::command::watch(Path::new(directory)),
        ["secrets", directories @ ..] if !directories.is_empty() => {
            secrets::command::scan(&directories.iter().map(PathBuf::from).collect::<Vec<_>>())
        }
        ["soak", stead, minutes] => match minutes.parse() {
            Ok(minutes) => soak::command(Path::new(stead), minutes),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn with(name: &str, act: impl FnOnce(&'static Target) -> bool) -> ExitCode {
    match named(name) {
        Some(target) if act(target) => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None => {
            eprintln!("there is no target `{name}`; `targets` lists them");
            ExitCode::from(2)
        }
    }
}

/// Returns the words of a target as libFuzzer reads them.
fn dictionary(target: &Target) -> String {
    let quoted = |word: &str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    target.words.iter().map(|word| format!("\"{}\"\n", quoted(word))).collect()
}

/// Tries targets two at a time, and says what became of each.
fn mutate(targets: &[&'static Target], seconds: u64, seed: u64) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let work = || {
        let mut is_good = true;
        loop {
            let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap_or(usize::MAX);
            let Some(target) = targets.get(at) else { return is_good };
            is_good &= mutate_one(target, seconds, seed);
        }
    };
    let all_good = thread::scope(|scope| {
        let other = scope.spawn(work);
        let here = work();
        other.join().is_ok_and(|there| there) && here
    });
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries one target, and says what became of it.
fn mutate_one(target: &'static Target, seconds: u64, seed: u64) -> bool {
    let inputs = match kept(target) {
        Ok(inputs) if !inputs.is_empty() => inputs,
        Ok(_) | Err(_) => {
            println!("{:<14} FAILED: it has no corpus", target.name);
            return false;
        }
    };
    let tried = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let (watch_tried, watch_done) = (&tried, &done);
        scope.spawn(move || watch(target, watch_tried, watch_done));
        let began = Instant::now();
        let seeds: Vec<Vec<u8>> = inputs.iter().map(|(_, bytes)| bytes.clone()).collect();
        let made = Mutations::new(seeds.clone(), target.words, seed);
        let made = made.take_while(|_| began.elapsed() < Duration::from_secs(seconds));
        let mut found = None;
        for input in seeds.into_iter().chain(made) {
            tried.fetch_add(1, Ordering::Relaxed);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
                found = Some((input, panic));
                break;
            }
        }
        done.store(1, Ordering::Relaxed);
        let tried = tried.load(Ordering::Relaxed);
        let Some((input, panic)) = found else {
            println!("{:<14} {tried} inputs in {:.1}s", target.name, began.elapsed().as_secs_f64());
            return true;
        };
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        println!("{:<14} FAILED at input {tried}: {said}\n{}", target.name, keep(target, &input));
        false
    })
}

/// Ends the process if one input takes too long.
fn watch(target: &Target, tried: &AtomicU64, done: &AtomicU64) {
    let (mut last, mut since) = (0, Instant::now());
    while done.load(Ordering::Relaxed) == 0 {
        thread::sleep(Duration::from_millis(100));
        let now = tried.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            println!("{:<14} FAILED: input {now} takes longer than {PATIENCE:?}", target.name);
            std::io::stdout().flush().ok();
            std::process::abort();
        }
    }
}

/// Keeps an input that failed, and returns how to try it again.
fn keep(target: &Target, input: &[u8]) -> String {
    let digest = stead_model::plan::Digest::of(input).to_string();
    let path = std::env::temp_dir().join(format!("crash-{}-{}", target.name, &digest[..12]));
    match fs::write(&path, input) {
        Ok(()) => format!("    cargo run -p stead-hardening -- replay {} {}", target.name, path.display()),
        Err(error) => format!("    {}: {error}", path.display()),
    }
}
