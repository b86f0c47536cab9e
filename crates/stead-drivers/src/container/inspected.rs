//! What an engine says of a container, as far as it can be asked for. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A published port: `[ADDRESS:]HOST:CONTAINER[/PROTOCOL]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Port {
    address: String,
    host: String,
    /// With its protocol.
    container: String,
}

impl Port {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (rest, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let (rest, container) = rest.rsplit_once(':')?;
        let (address, host) = rest.rsplit_once(':').unwrap_or(("", rest));
        let is_number = |text: &str| text.parse::<u16>().is_ok();
        let fits = is_number(host) && is_number(container) && matches!(protocol, "tcp" | "udp" | "sctp");
        fits.then(|| Self {
            address: any(address.trim_matches(['[', ']'])).to_owned(),
            host: host.to_owned(),
            container: format!("{container}/{protocol}"),
        })
    }
}

/// Returns an address, empty if it means every one.
fn any(address: &str) -> &str {
    if matches!(address, "0.0.0.0" | "::") { "" } else { address }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address.as_str() {
            "" => {}
            address if address.contains(':') => write!(f, "[{address}]:")?,
            address => write!(f, "{address}:")?,
        }
        write!(f, "{}:{}", self.host, self.container)
    }
}

/// A mounted directory or volume: `SOURCE:DESTINATION[:ro]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Volume {
    source: String,
    destination: String,
    read_only: bool,
}

impl Volume {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (source, destination) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let read_only = match (parts.next(), parts.next()) {
            (None | Some("rw"), None) => false,
            (Some("ro"), None) => true,
            _ => return None,
        };
        let fits = !source.is_empty() && !source.starts_with('-') && destination.starts_with('/');
        fits.then_some(Self { source, destination, read_only })
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.source, self.destination, if self.read_only { ":ro" } else { "" })
    }
}

/// A container, without what its image gives it. No `Debug`: variables may be secret.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Inspected {
    /// The image as it was asked for.
    pub(super) image: String,
    /// The image's id.
    pub(super) image_id: String,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: BTreeSet<Port>,
    pub(super) volumes: BTreeSet<Volume>,
    pub(super) restart: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) running: bool,
}

impl Inspected {
    /// Reads what docker and podman say of a container and of its image.
    pub(super) fn read(container: &Value, image: &Value) -> Option<Self> {
        let config = container.get("Config")?;
        let host = container.get("HostConfig")?;
        let given = &image["Config"];
        let command = texts(&config["Cmd"]);
        let from_image: BTreeSet<String> = texts(&given["Env"]).into_iter().collect();
        let env = texts(&config["Env"]).into_iter().filter(|line| !from_image.contains(line));
        let labels =
            map(&config["Labels"]).into_iter().filter(|(key, value)| given["Labels"][key] != **value);
        let policy = &host["RestartPolicy"];
        let retries = policy["MaximumRetryCount"].as_u64().unwrap_or(0);
        let restart = match (policy["Name"].as_str().unwrap_or_default(), retries) {
            ("" | "no", _) => "no".to_owned(),
            ("on-failure", 1..) => format!("on-failure:{retries}"),
            (name, _) => name.to_owned(),
        };
        Some(Self {
            image: config["Image"].as_str().or(container["ImageName"].as_str())?.to_owned(),
            image_id: container["Image"].as_str().unwrap_or_default().to_owned(),
            command: if command == texts(&given["Cmd"]) { Vec::new() } else { command },
            env: env
                .filter_map(|line| {
                    Some((line.split_once('=')?.0.to_owned(), line.split_once('=')?.1.to_owned()))
                })
                .collect(),
            ports: ports(&host["PortBindings"]),
            volumes: container["Mounts"].as_array().into_iter().flatten().filter_map(volume).collect(),
            restart,
            labels: labels.collect(),
            running: container["State"]["Running"].as_bool().unwrap_or(false),
        })
    }

    /// Whether it runs the image called `image`, which engines write out in full.
    pub(super) fn has_image(&self, image: &str) -> bool {
        full(&self.image) == full(image)
    }
}

/// Returns the full name of an image, as docker.io would have it.
fn full(image: &str) -> String {
    let image = match image.rsplit_once('/').map_or(image, |(_, last)| last) {
        last if last.contains([':', '@']) => image.to_owned(),
        _ => format!("{image}:latest"),
    };
    let first = image.split('/').next().unwrap_or_default();
    if !image.contains('/') {
        format!("docker.io/library/{image}")
    } else if first.contains(['.', ':']) || first == "localhost" {
        image
    } else {
        format!("docker.io/{image}")
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn map(value: &Value) -> BTreeMap<String, String> {
    let items = value.as_object().into_iter().flatten();
    items.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn ports(bindings: &Value) -> BTreeSet<Port> {
    let mut found = BTreeSet::new();
    for (container, hosts) in bindings.as_object().into_iter().flatten() {
        for host in hosts.as_array().into_iter().flatten() {
            found.insert(Port {
                address: any(host["HostIp"].as_str().unwrap_or_default()).to_owned(),
                host: host["HostPort"].as_str().unwrap_or_default().to_owned(),
                container: container.clone(),
            });
        }
    }
    found
}

fn volume(mount: &Value) -> Option<Volume> {
    let source = match mount["Type"].as_str()? {
        "bind" => mount["Source"].as_str()?,
        "volume" => mount["Name"].as_str()?,
        _ => return None,
    };
    Some(Volume {
        source: source.to_owned(),
        destination: mount["Destination"].as_str()?.to_owned(),
        read_only: mount["RW"].as_bool() == Some(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_engines_are_read_alike() {
        let image =
            json!({"Config": {"Env": ["PATH=/bin"], "Cmd": ["nginx"], "Labels": {"maintainer": "x"}}});
        let docker = json!({"Image": "sha256:1", "Config": {"Image": "nginx:1", "Cmd": ["nginx"],
            "Env": ["PATH=/bin", "A=b=c"], "Labels": {"maintainer": "x", "dev.stead": "true"}},
            "HostConfig": {"PortBindings": {"80/tcp": [{"HostIp": "", "HostPort": "8080"}]},
                "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}},
            "State": {"Running": true},
            "Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/data", "RW": false}]});
        let mut podman = docker.clone();
        podman["Config"]["Image"] = json!("docker.io/library/nginx:1");
        podman["HostConfig"]["PortBindings"]["80/tcp"][0]["HostIp"] = json!("0.0.0.0");
        let (docker, podman) =
            (Inspected::read(&docker, &image).unwrap(), Inspected::read(&podman, &image).unwrap());
        assert!(docker.has_image("nginx:1") && podman.has_image("nginx:1") && !docker.has_image("nginx"));
        for seen in [&docker, &podman] {
            assert!(seen.command.is_empty(), "the image's own");
            assert_eq!(seen.env, BTreeMap::from([("A".to_owned(), "b=c".to_owned())]));
            assert_eq!(seen.ports.iter().map(Port::to_string).collect::<Vec<_>>(), ["8080:80/tcp"]);
            assert_eq!(seen.volumes.iter().map(Volume::to_string).collect::<Vec<_>>(), ["/srv:/data:ro"]);
            assert_eq!(seen.restart, "on-failure:3");
            assert_eq!(seen.labels.keys().collect::<Vec<_>>(), ["dev.stead"]);
        }
    }

    #[test]
    fn ports_and_volumes_are_parsed() {
        for (text, shown) in [
            ("8080:80", "8080:80/tcp"),
            ("127.0.0.1:53:53/udp", "127.0.0.1:53:53/udp"),
            ("[::1]:1:2", "[::1]:1:2/tcp"),
        ] {
            assert_eq!(Port::parse(text).unwrap().to_string(), shown);
        }
        assert!(["80", "a:80", "1:99999", "1:2/x"].iter().all(|text| Port::parse(text).is_none()));
        assert!(["/a", "/a:b", "-v:/b", "/a:/b:z", ":/b"].iter().all(|text| Volume::parse(text).is_none()));
        assert_eq!(Volume::parse("data:/b:rw").unwrap().to_string(), "data:/b");
    }

    #[test]
    fn images_are_compared_by_their_full_name() {
        assert_eq!(full("nginx"), "docker.io/library/nginx:latest");
        assert_eq!(full("me/app:2"), "docker.io/me/app:2");
        assert_eq!(full("localhost:5000/app"), "localhost:5000/app:latest");
        assert_eq!(full("quay.io/a/b@sha256:1"), "quay.io/a/b@sha256:1");
    }
}
