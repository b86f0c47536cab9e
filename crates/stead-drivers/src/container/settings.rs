//! What a container was made with that Stead has no parameter for, as options of `create`. Pure.
//!
//! What an engine shows of a container holds its own defaults and those of the image. They are told from what somebody
//! asked for by a second container of the same image that is made with nothing and never started: what differs was asked for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::inspected::{map, texts};

/// What an engine shows of a container, by name, without what says nothing.
type Settings = BTreeMap<String, Value>;

/// What Stead compares itself, what follows from others, and what is no setting.
const OTHERS: &[&str] = &[
    "Config.Annotations",
    "Config.ArgsEscaped",
    "Config.AttachStderr",
    "Config.AttachStdin",
    "Config.AttachStdout",
    "Config.Cmd",
    "Config.CreateCommand",
    "Config.Entrypoint",
    "Config.Env",
    "Config.ExposedPorts",
    "Config.Image",
    "Config.Labels",
    "Config.OnBuild",
    "Config.StdinOnce",
    "Config.Volumes",
    "HostConfig.Annotations",
    "HostConfig.Binds",
    "HostConfig.ConsoleSize",
    "HostConfig.ContainerIDFile",
    "HostConfig.LogConfig",
    "HostConfig.MaskedPaths",
    "HostConfig.Mounts",
    "HostConfig.PortBindings",
    "HostConfig.ReadonlyPaths",
    "HostConfig.RestartPolicy",
    "HostConfig.VolumesFrom",
];

/// Settings with one value.
const TEXTS: &[(&str, &str)] = &[
    ("Config.Domainname", "--domainname"),
    ("Config.Hostname", "--hostname"),
    ("Config.StopSignal", "--stop-signal"),
    ("Config.StopTimeout", "--stop-timeout"),
    ("Config.Timeout", "--timeout"),
    ("Config.Umask", "--umask"),
    ("Config.User", "--user"),
    ("Config.WorkingDir", "--workdir"),
    ("Config.sdNotifyMode", "--sdnotify"),
    ("HostConfig.BlkioWeight", "--blkio-weight"),
    ("HostConfig.CgroupMode", "--cgroupns"),
    ("HostConfig.CgroupParent", "--cgroup-parent"),
    ("HostConfig.CgroupnsMode", "--cgroupns"),
    ("HostConfig.Cgroups", "--cgroups"),
    ("HostConfig.CpuPeriod", "--cpu-period"),
    ("HostConfig.CpuQuota", "--cpu-quota"),
    ("HostConfig.CpuShares", "--cpu-shares"),
    ("HostConfig.CpusetCpus", "--cpuset-cpus"),
    ("HostConfig.CpusetMems", "--cpuset-mems"),
    ("HostConfig.IpcMode", "--ipc"),
    ("HostConfig.Memory", "--memory"),
    ("HostConfig.MemoryReservation", "--memory-reservation"),
    ("HostConfig.MemorySwap", "--memory-swap"),
    ("HostConfig.MemorySwappiness", "--memory-swappiness"),
    ("HostConfig.OomScoreAdj", "--oom-score-adj"),
    ("HostConfig.PidMode", "--pid"),
    ("HostConfig.PidsLimit", "--pids-limit"),
    ("HostConfig.Runtime", "--runtime"),
    ("HostConfig.ShmSize", "--shm-size"),
    ("HostConfig.UTSMode", "--uts"),
    ("HostConfig.UsernsMode", "--userns"),
];

/// Settings that are on or off.
const FLAGS: &[(&str, &str)] = &[
    ("Config.OpenStdin", "--interactive"),
    ("Config.Tty", "--tty"),
    ("HostConfig.Init", "--init"),
    ("HostConfig.OomKillDisable", "--oom-kill-disable"),
    ("HostConfig.Privileged", "--privileged"),
    ("HostConfig.PublishAllPorts", "--publish-all"),
    ("HostConfig.ReadonlyRootfs", "--read-only"),
];

/// Settings with many values, each in an option of its own.
const LISTS: &[(&str, &str)] = &[
    ("HostConfig.CapAdd", "--cap-add"),
    ("HostConfig.CapDrop", "--cap-drop"),
    ("HostConfig.DeviceCgroupRules", "--device-cgroup-rule"),
    ("HostConfig.Dns", "--dns"),
    ("HostConfig.DnsOptions", "--dns-option"),
    ("HostConfig.DnsSearch", "--dns-search"),
    ("HostConfig.ExtraHosts", "--add-host"),
    ("HostConfig.GroupAdd", "--group-add"),
    ("HostConfig.SecurityOpt", "--security-opt"),
];

/// Settings by name, and what stands between name and value.
const MAPS: &[(&str, &str, char)] = &[
    ("Annotations", "--annotation", '='),
    ("HostConfig.Sysctls", "--sysctl", '='),
    ("HostConfig.Tmpfs", "--tmpfs", ':'),
];

/// Options whose effect podman shows nowhere but in the command that made the container.
const UNSEEN: &[&str] = &[
    "--gidmap",
    "--ip",
    "--ip6",
    "--mac-address",
    "--personality",
    "--requires",
    "--secret",
    "--subgidname",
    "--subuidname",
    "--sysctl",
    "--uidmap",
];

/// Returns the options that make of a container like `bare` one like `container`, as far as there are any.
pub(super) fn options(container: &Value, bare: &Value, is_podman: bool) -> Vec<String> {
    let (asked, plain) = (read(container), read(bare));
    let differs = |key: &str| asked.get(key) != plain.get(key);
    let value = |key: &str| asked.get(key).filter(|_| differs(key));
    let mut options = Vec::new();
    for (key, option) in TEXTS {
        options.extend(value(key).map(|value| format!("{option}={}", text(value))));
    }
    for (key, option) in FLAGS {
        options.extend(value(key).map(|_| (*option).to_owned()));
    }
    for (key, option) in LISTS {
        options
            .extend(value(key).map(texts).unwrap_or_default().iter().map(|item| format!("{option}={item}")));
    }
    for (key, option, between) in MAPS {
        let items = value(key).map(map).unwrap_or_default();
        options.extend(items.iter().map(|(name, value)| format!("{option}={name}{between}{value}")));
    }
    let held = texts(asked.get("HostConfig.CapDrop").unwrap_or(&Value::Null));
    let dropped = texts(plain.get("HostConfig.CapDrop").unwrap_or(&Value::Null));
    options
        .extend(dropped.iter().filter(|name| !held.contains(name)).map(|name| format!("--cap-add={name}")));
    if value("HostConfig.Privileged").is_some() {
        options.retain(|option| !option.starts_with("--cap-"));
    }
    if let Some(cpus) = value("HostConfig.NanoCpus").filter(|_| !differs("HostConfig.CpuQuota")) {
        options.push(format!("--cpus={}", cpus.as_f64().unwrap_or_default() / 1e9));
    }
    for limit in value("HostConfig.Ulimits").and_then(Value::as_array).into_iter().flatten() {
        let name = limit["Name"].as_str().unwrap_or_default().trim_start_matches("RLIMIT_").to_lowercase();
        options.push(format!("--ulimit={name}={}:{}", limit["Soft"], limit["Hard"]));
    }
    for device in value("HostConfig.Devices").and_then(Value::as_array).into_iter().flatten() {
        let part = |name: &str| device[name].as_str().unwrap_or_default();
        let words = ["PathOnHost", "PathInContainer", "CgroupPermissions"].map(part);
        options.push(format!("--device={}", words.join(":").trim_end_matches(':')));
    }
    if let Some(log) = value("LogConfig") {
        options.push(format!("--log-driver={}", text(&log["Type"])));
        options.extend(map(&log["Config"]).iter().map(|(name, value)| format!("--log-opt={name}={value}")));
    }
    if differs("HostConfig.NetworkMode") || differs("Networks") {
        let mode = asked.get("HostConfig.NetworkMode").map(text).unwrap_or_default();
        let networks = asked.get("Networks").and_then(Value::as_object).into_iter().flatten();
        let aliases: BTreeSet<String> =
            networks.clone().flat_map(|(_, network)| texts(&network["Aliases"])).collect();
        match mode.as_str() {
            "bridge" if is_podman => options.extend(networks.map(|(name, _)| format!("--network={name}"))),
            mode => options.push(format!("--network={mode}")),
        }
        options.extend(aliases.iter().map(|name| format!("--network-alias={name}")));
    }
    if differs("Entrypoint") {
        let words = asked.get("Entrypoint").map(texts).unwrap_or_default();
        match words.as_slice() {
            [] => options.push("--entrypoint=".to_owned()),
            words if is_podman => options.push(format!("--entrypoint={}", json!(words))),
            [word] => options.push(format!("--entrypoint={word}")),
            _ => {}
        }
    }
    options
}

/// Returns the names of the settings of `container` that `made` does not have.
pub(super) fn lost(container: &Value, made: &Value) -> Vec<String> {
    let (asked, there) = (read(container), read(made));
    let names: BTreeSet<&String> = asked.keys().chain(there.keys()).collect();
    let names = names.into_iter().filter(|name| asked.get(*name) != there.get(*name));
    let unseen = unseen(container).difference(&unseen(made)).cloned().collect::<Vec<_>>();
    names.cloned().chain(unseen).collect()
}

fn read(container: &Value) -> Settings {
    let mut settings = Settings::new();
    for section in ["Config", "HostConfig"] {
        for (name, value) in container[section].as_object().into_iter().flatten() {
            settings.insert(format!("{section}.{name}"), value.clone());
        }
    }
    settings.retain(|name, _| !OTHERS.contains(&name.as_str()));
    if !has_hostname(container) {
        settings.remove("Config.Hostname");
    }
    // -1 is what engines write for "as the system has it".
    settings.retain(|name, value| name != "HostConfig.MemorySwappiness" || *value != -1);
    let log = &container["HostConfig"]["LogConfig"];
    settings.insert("LogConfig".to_owned(), json!({"Type": log["Type"], "Config": useful(&log["Config"])}));
    settings.insert("Entrypoint".to_owned(), json!(entrypoint(container)));
    settings.insert("Annotations".to_owned(), json!(annotations(container)));
    settings.insert("Networks".to_owned(), networks(container));
    settings.insert("Mounts".to_owned(), json!(other_mounts(container)));
    settings.insert("Pod".to_owned(), container["Pod"].clone());
    for value in settings.values_mut() {
        *value = useful(value);
    }
    settings.retain(|_, value| !value.is_null());
    settings
}

/// Returns a value, or null for one that says nothing: engines write that in many ways.
fn useful(value: &Value) -> Value {
    let says_nothing = match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
    };
    if says_nothing { Value::Null } else { value.clone() }
}

/// Whether its host name was asked for: else it is the beginning of its id, or that of who shares its network.
fn has_hostname(container: &Value) -> bool {
    let host = &container["HostConfig"];
    let name = container["Config"]["Hostname"].as_str().unwrap_or_default();
    let shares =
        |key: &str| host[key].as_str().is_some_and(|mode| mode == "host" || mode.starts_with("container:"));
    !container["Id"].as_str().unwrap_or_default().starts_with(name)
        && !shares("NetworkMode")
        && !shares("UTSMode")
}

/// Returns its entry point: podman may show it as one text, but the whole command line is shown in words.
fn entrypoint(container: &Value) -> Vec<String> {
    let mut words: Vec<String> = container["Path"].as_str().into_iter().map(str::to_owned).collect();
    words.extend(texts(&container["Args"]));
    let command = texts(&container["Config"]["Cmd"]);
    words.truncate(words.len().saturating_sub(command.len()));
    words
}

/// Returns its annotations, without those of engines.
fn annotations(container: &Value) -> BTreeMap<String, String> {
    let mut found = map(&container["Config"]["Annotations"]);
    found.extend(map(&container["HostConfig"]["Annotations"]));
    found.retain(|name, _| !name.starts_with("io.") && !name.starts_with("org.opencontainers."));
    found
}

/// Returns the networks it is in, with what was asked for there.
fn networks(container: &Value) -> Value {
    let id = container["Id"].as_str().unwrap_or_default();
    let networks = container["NetworkSettings"]["Networks"].as_object().into_iter().flatten();
    let asked = networks.map(|(name, network)| {
        let mut names = texts(&network["Aliases"]);
        names.retain(|name| !id.starts_with(name.as_str()));
        let keys = ["IPAMConfig", "Links", "DriverOpts"];
        let mut values: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), useful(&network[*key]))).collect();
        values.insert("Aliases".to_owned(), useful(&json!(names)));
        (name.clone(), Value::Object(values))
    });
    Value::Object(asked.collect())
}

/// Returns where something else than directories, volumes and what `Tmpfs` tells is mounted.
fn other_mounts(container: &Value) -> Vec<&str> {
    let mounts = container["Mounts"].as_array().into_iter().flatten();
    let others = mounts.filter(|mount| !matches!(mount["Type"].as_str(), Some("bind" | "volume")));
    let places = others.filter_map(|mount| mount["Destination"].as_str());
    places.filter(|place| container["HostConfig"]["Tmpfs"].get(*place).is_none()).collect()
}

/// Returns the names of those of the options it was made with whose effect is not shown.
fn unseen(container: &Value) -> BTreeSet<String> {
    let mut words = texts(&container["Config"]["CreateCommand"]);
    let command = texts(&container["Config"]["Cmd"]);
    if words.ends_with(&command) {
        words.truncate(words.len() - command.len());
    }
    let names = words.iter().map(|word| word.split('=').next().unwrap_or_default());
    names.filter(|name| UNSEEN.contains(name)).map(str::to_owned).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As docker 20.10 and podman 4.3 show a container that was made with nothing.
    fn bare(id: &str) -> Value {
        json!({"Id": id, "Path": "run", "Args": [], "Config": {"Hostname": &id[..4], "Cmd": ["run"], "StopTimeout": 10},
            "HostConfig": {"NetworkMode": "bridge", "CapAdd": [], "CapDrop": ["CAP_MKNOD", "CAP_NET_RAW"], "Memory": 0,
                "LogConfig": {"Type": "k8s-file", "Config": null, "Path": id}, "ShmSize": 65536000},
            "NetworkSettings": {"Networks": {"podman": {"Aliases": [&id[..4]]}}}})
    }

    #[test]
    fn what_was_not_asked_for_makes_no_option() {
        let (one, other) = (bare("abcdef"), bare("123456"));
        assert!(options(&one, &other, true).is_empty() && lost(&one, &other).is_empty());
        let mut ours = one.clone();
        ours["Config"]["Cmd"] = json!(["other"]);
        ours["Path"] = json!("other");
        ours["Config"]["Env"] = json!(["A=1"]);
        ours["HostConfig"]["MemorySwappiness"] = json!(-1);
        ours["HostConfig"]["Dns"] = json!([]);
        assert!(lost(&ours, &other).is_empty(), "{:?}", lost(&ours, &other));
    }

    #[test]
    fn what_was_asked_for_is_asked_for_again() {
        let mut asked = bare("abcdef");
        asked["Path"] = json!("/init");
        asked["Args"] = json!(["-v", "run"]);
        asked["Config"]["Hostname"] = json!("web");
        asked["Config"]["Tty"] = json!(true);
        asked["HostConfig"]["Memory"] = json!(4096);
        asked["HostConfig"]["NanoCpus"] = json!(500_000_000);
        asked["HostConfig"]["CapDrop"] = json!(["CAP_CHOWN", "CAP_MKNOD"]);
        asked["HostConfig"]["Tmpfs"] = json!({"/t": "size=1m"});
        asked["HostConfig"]["Ulimits"] = json!([{"Name": "RLIMIT_NOFILE", "Soft": 1, "Hard": 2}]);
        asked["HostConfig"]["Devices"] =
            json!([{"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": ""}]);
        asked["HostConfig"]["LogConfig"] = json!({"Type": "syslog", "Config": {"tag": "x"}});
        asked["NetworkSettings"]["Networks"] = json!({"one": {"Aliases": ["abcd", "db"]}, "two": {}});
        let mut said = options(&asked, &bare("123456"), true);
        said.sort();
        assert_eq!(
            said,
            [
                "--cap-add=CAP_NET_RAW",
                "--cap-drop=CAP_CHOWN",
                "--cap-drop=CAP_MKNOD",
                "--cpus=0.5",
                "--device=/dev/a:/dev/b",
                "--entrypoint=[\"/init\",\"-v\"]",
                "--hostname=web",
                "--log-driver=syslog",
                "--log-opt=tag=x",
                "--memory=4096",
                "--network-alias=db",
                "--network=one",
                "--network=two",
                "--tmpfs=/t:size=1m",
                "--tty",
                "--ulimit=nofile=1:2",
            ]
        );
        let docker = options(&asked, &bare("123456"), false);
        assert!(docker.contains(&"--network=bridge".to_owned()), "{docker:?}");
        assert!(!docker.iter().any(|option| option.starts_with("--entrypoint")), "it takes one word");
    }

    #[test]
    fn what_has_no_option_is_named() {
        let mut odd = bare("abcdef");
        odd["Pod"] = json!("p");
        odd["HostConfig"]["DeviceRequests"] = json!([{"Count": -1}]);
        odd["Mounts"] =
            json!([{"Type": "image", "Destination": "/i"}, {"Type": "bind", "Destination": "/b"}]);
        odd["Config"]["CreateCommand"] =
            json!(["podman", "run", "--sysctl=a=b", "--ip", "::1", "web", "run"]);
        assert_eq!(
            lost(&odd, &bare("123456")),
            ["HostConfig.DeviceRequests", "Mounts", "Pod", "--ip", "--sysctl"]
        );
        odd["Config"]["CreateCommand"] = json!(["podman", "run", "web", "run", "--ip"]);
        odd["Config"]["Cmd"] = json!(["run", "--ip"]);
        odd["Args"] = json!(["--ip"]);
        assert!(!lost(&odd, &bare("123456")).contains(&"--ip".to_owned()), "that is its own");
    }
}
