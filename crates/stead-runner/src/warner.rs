//! Warnings from outside the run's own tasks, such as from connections.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::report::Warning;
use tokio::sync::mpsc;

use crate::executor::Message;

/// Adds warnings to a run. Each is said once, however often it is given.
#[derive(Clone, Debug, Default)]
pub struct Warner(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    texts: BTreeSet<(&'static str, String)>,
    to: Option<mpsc::Sender<Message>>,
}

impl Warner {
    /// Adds a warning.
    pub fn warn(&self, code: &'static str, text: impl Into<String>) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = text.into();
        if !said.texts.insert((code, text.clone())) {
            return;
        }
        if let Some(to) = &said.to {
            // A dispatcher that is too busy for it has worse things to say.
            drop(to.try_send(Message::Warning(Warning::new(code, text))));
        }
    }

    /// Sends what was said so far, and all to come, to the run.
    pub(crate) fn connect(&self, to: &mpsc::Sender<Message>) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (code, text) in &said.texts {
            drop(to.try_send(Message::Warning(Warning::new(*code, text))));
        }
        said.to = Some(to.clone());
    }
}
