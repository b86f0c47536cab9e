//! What happened to instances, in the log once: whenever the agent is killed, nothing is missing there and nothing twice.
//!
//! What is to be written down is in the instance's record first, together with what the act did, and with the number from
//! which on the log has it. The next agent writes what it does not find there.

use std::io;
use std::sync::Arc;

use stead_model::WorkerName;
use stead_model::fleet::InstanceKey;

use super::act::Hands;
use super::files::{Cause, Record, Told};
use crate::events::{Ev, Events, Fields, Line};

/// Where a worker's events go.
#[derive(Clone, Debug)]
pub(super) struct Logbook {
    pub(super) worker: WorkerName,
    pub(super) events: Option<Arc<Events>>,
}

impl Logbook {
    /// Writes an event down. A log that cannot be written is no reason to stop.
    pub(super) fn write(&self, ev: Ev, key: &InstanceKey, generation: Option<u64>, reason: &str) {
        let Some(events) = &self.events else { return };
        let fields = Fields {
            generation,
            instance: Some(key.clone()),
            worker: Some(self.worker.clone()),
            reason: reason.to_owned(),
            ..Fields::default()
        };
        events.write(ev, fields).ok();
    }
}

impl Hands {
    /// Keeps a record, and writes down what happened to its instance.
    pub(super) fn tell(&self, mut record: Record, cause: Cause) -> io::Result<()> {
        let after = self.logbook.events.as_ref().map(|events| events.next_seq()).transpose()?;
        let ev = cause.ev;
        record.told = Some(Told { cause, after });
        self.files.set_record(&record)?;
        self.step(&format!("{ev:?}: in its record"));
        self.write_told(&record);
        self.step(&format!("{ev:?}: in the log"));
        Ok(())
    }

    fn write_told(&self, record: &Record) {
        if let Some(Told { cause, .. }) = &record.told {
            let generation = Some(record.generation).filter(|generation| *generation > 0);
            self.logbook.write(cause.ev, &record.instance, generation, &cause.reason);
        }
    }

    /// Writes down what an agent that was killed had not.
    pub(super) fn recall(&self) -> io::Result<()> {
        let Some(events) = &self.logbook.events else { return Ok(()) };
        let records = self.files.records()?;
        let after = |record: &Record| record.told.as_ref().and_then(|told| told.after);
        let Some(first) = records.iter().filter_map(after).min() else { return Ok(()) };
        let lines = events.since(first)?;
        for mut record in records {
            let Some(told) = record.told.as_mut() else { continue };
            let Some(after) = told.after.take() else { continue };
            let is_it = |line: &Line| {
                let is_of_it = line.fields.instance.as_ref() == Some(&record.instance);
                line.seq >= after && is_of_it && line.ev == told.cause.ev
            };
            if !lines.iter().any(is_it) {
                self.write_told(&record);
            }
            self.files.set_record(&record)?;
        }
        Ok(())
    }
}
