//! Where a run is recorded: in a state directory, or right below a directory of the user's.

use std::path::Path;
use std::sync::Arc;

use stead_bundle::CreateError;
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, ExitCode, RunId};

use crate::author::CheckedPlan;
use crate::record::{Beginning, Place, Recording, Taken, chain};

use super::{BundleDir, Refusal, Runner};

impl Runner {
    /// Makes the run's directory, if it is recorded.
    pub(super) fn create_directory(
        &self,
        plan: &CheckedPlan,
        run_id: &RunId,
        started_at: Timestamp,
    ) -> Result<Option<Arc<Recording>>, Refusal> {
        let (created, taken) = match (&self.bundle_dir, &self.state_dir) {
            (Some(BundleDir { path, taken }), _) => {
                (self.create_below(path, *taken, plan, run_id, started_at), ExitCode::Invalid)
            }
            (None, Some(state)) => {
                (self.create_at(&Place::State(state), plan, run_id, started_at), ExitCode::Usage)
            }
            (None, None) => return Ok(None),
        };
        let recording = created.map_err(|error| Refusal {
            exit_code: match error {
                CreateError::Exists { .. } => taken,
                CreateError::Held { .. } if self.bundle_dir.is_some() => ExitCode::Locked,
                CreateError::Held { .. } => taken,
                CreateError::Record(_) => ExitCode::Failed,
            },
            class: Some(ErrorClass::Journal),
            message: chain(&error),
        })?;
        Ok(Some(Arc::new(recording.knowing(self.known_hashes.clone()))))
    }

    /// Makes the run's directory right below `runs`, under another id if that is taken and may be.
    fn create_below(
        &self,
        runs: &Path,
        taken: Taken,
        plan: &CheckedPlan,
        run_id: &RunId,
        started_at: Timestamp,
    ) -> Result<Recording, CreateError> {
        if taken == Taken::MoveAway {
            stead_bundle::RunDirectory::move_away(runs, run_id)?;
        }
        let mut id = run_id.clone();
        for number in 2_u32.. {
            match self.create_at(&Place::Below(runs), plan, &id, started_at) {
                Err(CreateError::Exists { .. } | CreateError::Held { .. }) if taken == Taken::CountOn => {
                    id = RunId::parse(&format!("{run_id}-{number}")).unwrap_or(id);
                }
                other => return other,
            }
        }
        self.create_at(&Place::Below(runs), plan, &id, started_at)
    }

    fn create_at(
        &self,
        place: &Place<'_>,
        plan: &CheckedPlan,
        run_id: &RunId,
        started_at: Timestamp,
    ) -> Result<Recording, CreateError> {
        let of_run = self.sources_of.as_ref().map(|sources_of| sources_of(run_id)).unwrap_or_default();
        let sources: Vec<(&str, &[u8])> = self
            .provenance
            .sources
            .iter()
            .chain(&of_run)
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect();
        let mut meta = self.provenance.meta.clone();
        meta.plan = plan.plan().name.to_string();
        meta.limit = self.limit.iter().map(ToString::to_string).collect();
        meta.segments = 1;
        let beginning = Beginning {
            run_id: run_id.clone(),
            kind: self.kind,
            started_at,
            plan_hash: plan.compiled.hash,
            plan: plan.plan(),
            sources: &sources,
            meta,
            steps: self.provenance.steps.clone(),
        };
        Recording::create(place, beginning)
    }
}
