//! Why something is not converged: one code, and one sentence that says what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($(#[doc = $title:literal] $name:ident $word:literal $advice:literal,)*) => {
        /// Why something is not converged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns its word.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// Returns what it is, in a few words.
            pub fn title(self) -> &'static str {
                let title = match self { $(Self::$name => $title,)* };
                title.trim().trim_end_matches('.')
            }

            /// Returns what it means and what to do, in one sentence.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

codes! {
    /// Its worker has not heard of it.
    WaitingForAssignment "waiting-for-assignment" "its worker has not taken the assignment yet; wait, or look at the worker's log if it stays",
    /// Others come first.
    WaitingForRollout "waiting-for-rollout" "others are replaced first; wait, or raise `rollout.maxUnavailable`",
    /// Its bits are on their way.
    Fetching "fetching" "its artifacts are on their way; wait",
    /// Its bits cannot be had.
    FetchFailed "fetch-failed" "its artifacts could not be fetched, which is tried again; check that the worker reaches the cache",
    /// Its bits are signed by a stranger.
    SignatureRejected "signature-rejected" "its artifacts are signed by a key this worker does not trust; add the key to `nix.public_keys` of worker.yaml, or sign them with a known one",
    /// Its bits are not those that were published.
    NarMismatch "nar-mismatch" "the cache has other bits than were published; remove the path from the cache and publish again",
    /// Something its bits refer to is not there.
    MissingDependency "missing-dependency" "the cache lacks a path its artifacts refer to; copy the whole closure to the cache",
    /// No worker takes it.
    NoFit "no-fit" "no worker takes it; add a worker that fits, or ask for less",
    /// It is on its way up.
    Starting "starting" "it is on its way up; wait",
    /// It runs and is not ready.
    NotReady "not-ready" "it runs and is not ready yet; wait, and if it stays so look at its console and at `ready` of its spec",
    /// It ends again and again.
    CrashLoop "crash-loop" "it ends soon after every start; look at its console, fix it or revert the commit",
    /// Its process was killed.
    ProcessGone "process-gone" "its process was killed and is started again; find out who did it",
    /// It ended by itself.
    Exited "exited" "it ended by itself and its policy leaves it so; set `restart.policy: always` if it should run on",
    /// Its driver cannot make it.
    DriverError "driver-error" "its driver refused it; read the message and change the spec",
    /// The worker's disk is full.
    DiskPressure "disk-pressure" "the worker has too little free disk, nothing is added; free some, or lower `min_free_disk` of worker.yaml",
    /// Its worker has been silent.
    WorkerUnknown "worker-unknown" "its worker is silent; check the worker and its network",
    /// Its worker has been silent for long.
    WorkerLost "worker-lost" "its worker is lost; bring it back, or wait until its instances are placed elsewhere",
    /// It has no other place than a draining worker.
    DrainBlocked "drain-blocked" "no other worker takes it, so it stays on the draining one; add room elsewhere",
    /// Its volume is elsewhere.
    VolumeLocal "volume-local" "its volume lies on a worker that cannot run it; bring that worker back, or make the volume `movable`",
    /// Its worker stopped it because nobody heard from it.
    Fenced "fenced" "its worker stopped it because it heard of no master in time; restore the connection",
    /// Its generation waits for approval.
    HeldGeneration "held-generation" "its generation waits for approval; put the specsHash into `approve` of fleet.yaml, or publish another commit",
    /// It is to stay as it is.
    Suspended "suspended" "it is suspended; end the suspension in fleet.yaml or wait for the hold to end",
    /// Its worker does not know a field of its spec.
    SpecUnsupported "spec-unsupported" "its worker does not know a field of its spec; upgrade the worker",
    /// Nobody wants it.
    Orphan "orphan" "nobody wants it any more and it is being removed; wait",
    /// It is not ours.
    Foreign "foreign" "a machine that is not of this fleet is on the worker; it is left alone",
    /// What is known of it is old.
    Stale "stale" "what is shown is old because the store is away; restore the store",
    /// It was built on its worker.
    BuiltLocally "built-locally" "no cache had it, so its worker built it; nothing to do",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 23: every code has its word and its own sentence.
    #[test]
    fn every_code_has_its_own_sentence() {
        let mut said = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(said.insert(code.advice()), "{code}");
            assert_eq!(serde_json::to_value(code).unwrap(), code.word());
            let advice = code.advice();
            assert!(advice.len() > 20 && !advice.ends_with('.') && !advice.contains('\n'), "{code}");
        }
    }
}
