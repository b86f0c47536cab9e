//! Settings that are equal become one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::sync::Arc;

use stead_model::plan::Settings;

/// Keeps one of all settings that are equal.
#[derive(Default)]
pub(super) struct Interner {
    known: HashMap<u64, Vec<Arc<Settings>>>,
    /// The last ones given and what they became: front doors share settings between neighbours.
    last: Option<(Arc<Settings>, Arc<Settings>)>,
}

impl Interner {
    pub(super) fn intern(&mut self, settings: &Arc<Settings>) -> Arc<Settings> {
        if let Some((given, interned)) = &self.last
            && Arc::ptr_eq(given, settings)
        {
            return Arc::clone(interned);
        }
        let candidates = self.known.entry(fingerprint(settings)).or_default();
        let interned = match candidates.iter().find(|known| known == &settings) {
            Some(known) => Arc::clone(known),
            None => {
                candidates.push(Arc::clone(settings));
                Arc::clone(settings)
            }
        };
        self.last = Some((Arc::clone(settings), Arc::clone(&interned)));
        interned
    }
}

fn fingerprint(settings: &Settings) -> u64 {
    struct Fingerprint(DefaultHasher);

    impl Write for Fingerprint {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            bytes.hash(&mut self.0);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut fingerprint = Fingerprint(DefaultHasher::new());
    serde_json::to_writer(&mut fingerprint, settings)
        .expect("settings are always JSON, and a hash takes all of it");
    fingerprint.0.finish()
}
