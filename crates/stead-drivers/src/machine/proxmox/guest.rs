//! What a machine is doing, where it is reached, and how its run ended.

use std::net::IpAddr;

use serde_json::Value;
use stead_model::machine::{Machine, MachineExit, MachineKind, MachineState, SshDoor};
use stead_model::site::address::Cidr;
use stead_model::time::Timestamp;

use super::Cluster;
use super::api::ApiError;
use super::find::{Found, Place};
use super::form::encode;

/// Tasks that end a machine's run.
const ENDS: &[&str] = &["qmstop", "qmshutdown", "qmreboot", "vzstop", "vzshutdown", "vzreboot", "stopall"];

impl Cluster {
    /// Whether the machine runs; none if it is not there any more.
    pub(super) async fn runs(&self, place: &Place) -> Result<Option<bool>, ApiError> {
        let status = self.api.find(&place.path("status/current")).await?;
        let is_running = |status: Value| status.get("status").and_then(Value::as_str) == Some("running");
        Ok(status.map(is_running))
    }

    /// Returns the machine as it is now; none if it went meanwhile.
    pub(super) async fn machine(&self, found: &Found) -> Result<Option<Machine>, ApiError> {
        let record = &found.record;
        let mut machine = Machine {
            id: found.id(),
            owner: record.spec.owner.clone(),
            uuid: record.uuid(),
            state: MachineState::Creating,
            spec_hash: record.spec.hash(),
            pid: None,
            vmid: Some(found.place.vmid),
            addresses: Vec::new(),
            ssh: None,
            exit: None,
            created_at: record.created_at,
            started_at: record.started_at,
        };
        if !record.made {
            return Ok(Some(machine));
        }
        let Some(runs) = self.runs(&found.place).await? else { return Ok(None) };
        if runs {
            machine.addresses = self.addresses(found).await?;
            machine.ssh = self.door(found, &machine.addresses).await?;
            let is_up = !machine.addresses.is_empty();
            machine.state = if is_up { MachineState::Running } else { MachineState::Starting };
        } else {
            machine.exit = self.exit(found).await?;
            let is_bad = machine.exit.as_ref().is_some_and(|exit| exit.code != Some(0));
            machine.state = if is_bad { MachineState::Failed } else { MachineState::Stopped };
        }
        Ok(Some(machine))
    }

    /// Returns where a machine that runs is reached, as far as it is known yet.
    async fn addresses(&self, found: &Found) -> Result<Vec<String>, ApiError> {
        let nics = &found.record.spec.nics;
        let fixed = nics.iter().filter_map(|nic| Cidr::parse(nic.address.as_deref()?).ok());
        let fixed: Vec<String> = fixed.map(|cidr| cidr.address.to_string()).collect();
        if !fixed.is_empty() {
            return Ok(fixed);
        }
        let path = match found.place.kind {
            MachineKind::Vm => found.place.path("agent/network-get-interfaces"),
            MachineKind::Ct => found.place.path("interfaces"),
        };
        match self.api.get(&path).await {
            Ok(data) => {
                let own = found.record.spec.owner.mac(0);
                let own = nics.first().and_then(|nic| nic.mac.as_deref()).unwrap_or(&own);
                Ok(fitting(&data, own))
            }
            // The agent is not up yet, or the guest is on its way down.
            Err(ApiError::Refused(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns how the machine is logged in to.
    async fn door(&self, found: &Found, addresses: &[String]) -> Result<Option<SshDoor>, ApiError> {
        let Some(host) = addresses.first() else { return Ok(None) };
        let host_key = match &found.record.host_key {
            Some(key) => Some(key.clone()),
            None => self.first_key(found, host).await?,
        };
        let port = found.record.ssh_port();
        Ok(host_key.map(|host_key| SshDoor { host: host.clone(), port, host_key }))
    }

    /// Returns how the machine's last run ended; none if there was none.
    async fn exit(&self, found: &Found) -> Result<Option<MachineExit>, ApiError> {
        let record = &found.record;
        if record.exit.is_some() {
            return Ok(record.exit.clone());
        }
        let Some(started_at) = record.started_at else { return Ok(None) };
        let since = started_at.as_micros().div_euclid(1_000_000);
        let (node, vmid) = (encode(&found.place.node), found.place.vmid);
        let tasks = self.api.get(&format!("nodes/{node}/tasks?vmid={vmid}&since={since}&limit=100")).await?;
        Ok(Some(ended_by(&tasks, since).unwrap_or_else(|| MachineExit {
            code: None,
            signal: None,
            at: None,
            reason: "it ended without being asked to: it powered off, crashed, or never came up".to_owned(),
        })))
    }
}

/// Returns the end that a task made after `since`, the second the machine was started in.
///
/// A task of that very second may have ended the run before.
fn ended_by(tasks: &Value, since: i64) -> Option<MachineExit> {
    let time = |task: &Value, key: &str| task.get(key).and_then(Value::as_i64);
    let text = |task: &Value, key: &str| task.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let ends = tasks.as_array()?.iter().filter(|task| {
        ENDS.contains(&text(task, "type").as_str())
            && text(task, "status") == "OK"
            && time(task, "starttime").is_some_and(|at| at > since)
    });
    let last = ends.max_by_key(|task| time(task, "starttime"))?;
    Some(MachineExit {
        code: Some(0),
        signal: None,
        at: time(last, "endtime").map(|seconds| Timestamp::from_micros(seconds * 1_000_000)),
        reason: format!("{} stopped it ({})", text(last, "user"), text(last, "type")),
    })
}

/// Returns the addresses of a guest that others reach it by: those of its first card before others.
fn fitting(data: &Value, mac: &str) -> Vec<String> {
    // Virtual machines tell it through their agent, containers without.
    let cards = data.get("result").unwrap_or(data).as_array();
    let mut own = Vec::new();
    let mut others = Vec::new();
    for card in cards.into_iter().flatten() {
        let hardware = card.get("hardware-address").or_else(|| card.get("hwaddr")).and_then(Value::as_str);
        let is_own = hardware.is_some_and(|hardware| hardware.eq_ignore_ascii_case(mac));
        let by_agent = card.get("ip-addresses").and_then(Value::as_array).into_iter().flatten();
        let by_agent = by_agent.filter_map(|address| address.get("ip-address")?.as_str());
        let plain = ["inet", "inet6"].into_iter().filter_map(|key| card.get(key)?.as_str());
        for text in by_agent.chain(plain) {
            let address = text.split('/').next().and_then(|text| text.parse::<IpAddr>().ok());
            if let Some(address) = address.filter(is_reachable) {
                if is_own { own.push(address.to_string()) } else { others.push(address.to_string()) }
            }
        }
    }
    own.extend(others);
    own
}

fn is_reachable(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !is_link_local && !address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_address_is_that_of_the_own_card_and_one_that_others_reach() {
        let guest = json!({"result": [
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}, {"ip-address": "::1"}]},
            {"name": "docker0", "hardware-address": "02:42:00:00:00:01", "ip-addresses": [{"ip-address": "172.17.0.1"}]},
            {"name": "eth0", "hardware-address": "52:54:00:83:99:24",
             "ip-addresses": [{"ip-address": "fe80::1"}, {"ip-address": "10.0.0.7"}, {"ip-address": "fd00::7"}]},
            {"name": "down"},
        ]});
        assert_eq!(fitting(&guest, "52:54:00:83:99:24"), ["10.0.0.7", "fd00::7", "172.17.0.1"]);
        let container = json!([
            {"name": "lo", "hwaddr": "00:00:00:00:00:00", "inet": "127.0.0.1/8", "inet6": "::1/128"},
            {"name": "eth0", "hwaddr": "52:54:00:83:99:24", "inet": "10.0.0.8/24", "inet6": "fe80::1/64"},
        ]);
        assert_eq!(fitting(&container, "52:54:00:83:99:24"), ["10.0.0.8"]);
        assert!(fitting(&Value::Null, "x").is_empty());
    }

    #[test]
    fn an_end_is_that_of_a_task_since_the_start() {
        let task = |kind: &str, at: i64, status: &str| json!({"type": kind, "starttime": at, "endtime": at + 1, "status": status, "user": "ann@pam"});
        let tasks =
            json!([task("qmstop", 99, "OK"), task("qmshutdown", 103, "OK"), task("qmstart", 104, "OK")]);
        assert_eq!(ended_by(&tasks, 100).unwrap().reason, "ann@pam stopped it (qmshutdown)");
        assert_eq!(ended_by(&tasks, 103), None);
        assert_eq!(ended_by(&json!([task("qmshutdown", 103, "got timeout")]), 100), None);
    }
}
