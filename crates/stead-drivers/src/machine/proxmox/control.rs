//! Starting, stopping and removing machines that carry our mark.

use std::time::Duration;

use stead_model::machine::{MachineExit, MachineId};
use stead_runner::clock;
use stead_runner::machine::{Changed, MachineError, Stopped};
use tokio::time::sleep;

use super::Cluster;
use super::api::{ApiError, Change};
use super::find::{At, Found, Known, Place};
use super::form::encode;
use super::lock::hold;
use super::make::{foreign, lock_name};
use super::record::Record;

/// How often a machine that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(500);

impl Cluster {
    /// Returns the machine of `id`, if it is there and ours.
    ///
    /// # Errors
    /// `Foreign` if what is there is not.
    pub(super) async fn ours(&self, known: &Known) -> Result<Option<Found>, MachineError> {
        let at = self.at(known).await;
        match at.map_err(|error| error.while_doing(&format!("looking for machine {}", known.vmid)))? {
            At::Absent => Ok(None),
            At::Foreign(place) => Err(foreign(&place, known.uuid.clone())),
            At::Ours(found) => Ok(Some(*found)),
        }
    }

    /// Starts it.
    pub(super) async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        let known = Known::parse(id)?;
        let _held = hold(&self.settings.lock_dir, &lock_name(&known.uuid)).await?;
        let found = self.ours(&known).await?.filter(|found| found.record.made);
        let mut found = found.ok_or_else(|| MachineError::NotFound(id.clone()))?;
        let place = found.place.clone();
        let doing = format!("starting {} ({place})", found.record.spec.owner);
        let failed = |error: ApiError| error.while_doing(&doing);
        match self.runs(&place).await.map_err(failed)? {
            None => return Err(MachineError::NotFound(id.clone())),
            Some(true) => {
                // Somebody wanted to stop it and did not live to ask.
                if found.record.exit.take().is_some() {
                    self.write(&place, &found.record).await.map_err(failed)?;
                }
                return Ok(Changed::No);
            }
            Some(false) => {}
        }
        // Known before it runs: whoever finds it stopped later knows that it had been started.
        (found.record.started_at, found.record.exit) = (Some(clock::now()), None);
        self.write(&place, &found.record).await.map_err(failed)?;
        let mut tries = self.api.tries();
        loop {
            match self.api.run(&Change::new("POST", place.path("status/start"))).await {
                Ok(warning) => {
                    self.say(warning);
                    return Ok(Changed::Yes);
                }
                // Also if another says that it runs: it does so because of this call, or of one before it that got lost.
                Err(error) if self.runs(&place).await.map_err(failed)? != Some(true) => {
                    tries.again(error).await.map_err(failed)?;
                }
                Err(_) => return Ok(Changed::Yes),
            }
        }
    }

    /// Notes where it takes logins now.
    pub(super) async fn ssh_moved(&self, id: &MachineId, port: u16) -> Result<Changed, MachineError> {
        let known = Known::parse(id)?;
        let _held = hold(&self.settings.lock_dir, &lock_name(&known.uuid)).await?;
        let found = self.ours(&known).await?.filter(|found| found.record.made);
        let mut found = found.ok_or_else(|| MachineError::NotFound(id.clone()))?;
        if found.record.ssh_port() == port {
            return Ok(Changed::No);
        }
        found.record.ssh_port = Some(port);
        let written = self.write(&found.place, &found.record).await;
        let doing = || format!("noting the SSH port of {} ({})", found.record.spec.owner, found.place);
        written.map(|()| Changed::Yes).map_err(|error| error.while_doing(&doing()))
    }

    /// Asks it to stop, and forces it once `grace` is over.
    pub(super) async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        let known = Known::parse(id)?;
        let _held = hold(&self.settings.lock_dir, &lock_name(&known.uuid)).await?;
        let unchanged = Stopped { changed: false, forced: false };
        let found = self.ours(&known).await?.filter(|found| found.record.made);
        let Some(mut found) = found else { return Ok(unchanged) };
        let place = found.place.clone();
        let doing = format!("stopping {} ({place})", found.record.spec.owner);
        let failed = |error: ApiError| error.while_doing(&doing);
        if self.runs(&place).await.map_err(failed)? != Some(true) {
            return Ok(unchanged);
        }
        let end = |reason: &str| {
            let (code, reason) = (Some(0), reason.to_owned());
            Some(MachineExit { code, signal: None, at: Some(clock::now()), reason })
        };
        // Known before it ends: by the log of the cluster a stop in the second of its start is not told from an earlier one.
        found.record.exit = end("it was asked to stop");
        self.write(&place, &found.record).await.map_err(failed)?;
        // A machine that is asked to stop is locked until it has, or has not in time: nothing else is asked meanwhile.
        let seconds = grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0)).max(1);
        let ask = Change::new("POST", place.path("status/shutdown")).with("timeout", seconds.to_string());
        let mut tries = self.api.tries();
        while let Err(error) = self.api.run(&ask).await {
            match error {
                // It did not go by itself.
                ApiError::Task { .. } | ApiError::Refused(_) if !error.may_pass() => break,
                ApiError::Denied(_)
                | ApiError::Refused(_)
                | ApiError::Busy(_)
                | ApiError::Task { .. }
                | ApiError::Lost(_)
                | ApiError::Untrusted(_) => tries.again(error).await.map_err(failed)?,
            }
            if self.runs(&place).await.map_err(failed)? != Some(true) {
                break;
            }
        }
        let forced = self.runs(&place).await.map_err(failed)? == Some(true);
        if forced {
            self.force(&place).await.map_err(failed)?;
            found.record.exit = end("it did not stop in time and was forced to");
            self.write(&place, &found.record).await.map_err(failed)?;
        }
        Ok(Stopped { changed: true, forced })
    }

    /// Stops what runs at once.
    async fn force(&self, place: &Place) -> Result<(), ApiError> {
        let mut tries = self.api.tries();
        while self.runs(place).await? == Some(true) {
            if let Err(error) = self.api.run(&Change::new("POST", place.path("status/stop"))).await {
                if self.runs(place).await? != Some(true) {
                    break;
                }
                tries.again(error).await?;
            }
        }
        Ok(())
    }

    /// Removes it and everything of it.
    pub(super) async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        let known = Known::parse(id)?;
        let held = hold(&self.settings.lock_dir, &lock_name(&known.uuid)).await?;
        self.ours(&known).await?;
        let failed = |error: ApiError| error.while_doing(&format!("looking for machine {}", known.vmid));
        let listed = self.listed().await.map_err(failed)?;
        let found = self.marked(&known.uuid, &listed).await.map_err(failed)?;
        for one in &found {
            self.remove(one).await?;
        }
        if found.is_empty() {
            self.remove_seed(&known.uuid).await.map_err(failed)?;
        }
        held.forget();
        Ok(if found.is_empty() { Changed::No } else { Changed::Yes })
    }

    /// Removes a machine with its disks and its seed.
    pub(super) async fn remove(&self, found: &Found) -> Result<(), MachineError> {
        let place = &found.place;
        let doing = format!("removing {} ({place})", found.record.spec.owner);
        let failed = |error: ApiError| error.while_doing(&doing);
        // From here it is half made: whoever finds it next removes it, or makes it anew.
        if found.record.made {
            let mut record = found.record.clone();
            record.made = false;
            match self.write(place, &record).await {
                Err(error) if error.is_absent() => return Ok(()),
                written => written.map_err(failed)?,
            }
        }
        self.force(place).await.map_err(failed)?;
        self.remove_seed(&found.record.uuid()).await.map_err(failed)?;
        let gone = Change::new("DELETE", place.own_path())
            .with("purge", "1")
            .with("destroy-unreferenced-disks", "1");
        let mut tries = self.api.tries();
        loop {
            match self.api.run(&gone).await {
                Ok(warning) => {
                    self.say(warning);
                    return Ok(());
                }
                Err(error) if error.is_absent() => return Ok(()),
                Err(error) => tries.again(error).await.map_err(failed)?,
            }
            // What has its number now is perhaps another's.
            match self.look(place.clone()).await.map_err(failed)? {
                At::Ours(now) if now.record.uuid() == found.record.uuid() => {}
                At::Ours(_) | At::Absent | At::Foreign(_) => return Ok(()),
            }
        }
    }

    async fn remove_seed(&self, uuid: &str) -> Result<(), ApiError> {
        let (storage, volume) = (&self.settings.iso_storage, self.seed_volume(uuid));
        if !self.has_volume(storage, &volume).await? {
            return Ok(());
        }
        let path = format!(
            "nodes/{}/storage/{}/content/{}",
            encode(&self.settings.node),
            encode(storage),
            encode(&volume)
        );
        match self.api.ensure(&Change::new("DELETE", path)).await {
            Err(error) if !error.is_absent() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Writes what is known of a machine into its notes.
    pub(super) async fn write(&self, place: &Place, record: &Record) -> Result<(), ApiError> {
        let change = Change::new("PUT", place.path("config")).with("description", record.to_description());
        self.api.ensure(&change).await.map(drop)
    }

    /// Waits until it does not run and returns how its run ended.
    pub(super) async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError> {
        let known = Known::parse(id)?;
        loop {
            let found = self.ours(&known).await?.ok_or_else(|| MachineError::NotFound(id.clone()))?;
            let looked = self.machine(&found).await;
            let machine =
                looked.map_err(|error| error.while_doing(&format!("waiting for {}", found.place)))?;
            let machine = machine.ok_or_else(|| MachineError::NotFound(id.clone()))?;
            if !machine.state.is_live() {
                let never = || MachineError::Invalid(format!("{} was never started", found.place));
                return machine.exit.ok_or_else(never);
            }
            sleep(LOOK.min(self.api.pace.first_look * 2)).await;
        }
    }
}
