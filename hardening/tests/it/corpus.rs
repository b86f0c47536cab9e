//! What is kept of inputs, tried as in every other test run. `ci/fuzz` looks for new ones.

use std::collections::BTreeSet;
use std::fs;

use stead_hardening::corpus::{Mutations, directory, kept};
use stead_hardening::targets::{ALL, named};

/// Inputs made from those of a target: enough to notice that a target is broken.
const MADE: usize = 40;
/// The most bytes that the corpus may have: it is in every clone.
const LARGEST: usize = 1 << 20;

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let names: BTreeSet<&str> = ALL.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), ALL.len(), "two targets of one name");
    let mut size = 0;
    for entry in fs::read_dir(directory()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let target = named(&name).unwrap_or_else(|| panic!("no target takes corpus/{name}"));
        size += kept(target).unwrap().iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    for target in ALL {
        assert!(kept(target).is_ok_and(|inputs| !inputs.is_empty()), "{}: no corpus", target.name);
    }
    assert!(size < LARGEST, "the corpus has {size} bytes");
}

/// Whatever was found once stays found: a crash goes into the corpus with its fix.
#[test]
fn every_kept_input_is_read_without_harm() {
    for target in ALL {
        for (path, bytes) in kept(target).unwrap() {
            let tried = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(tried.is_ok(), "{}", path.display());
        }
    }
}

#[test]
fn inputs_made_from_them_are_read_without_harm() {
    for target in ALL {
        let seeds: Vec<Vec<u8>> = kept(target).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
        for bytes in Mutations::new(seeds, target.words, 1).take(MADE) {
            let tried = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(tried.is_ok(), "{}: {:?}", target.name, String::from_utf8_lossy(&bytes));
        }
    }
}
