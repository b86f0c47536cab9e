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
    pub(super) destination: String,
    read_only: bool,
    /// What else it was mounted with, such as `z`.
    options: Vec<String>,
}

impl Volume {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (source, destination) = (parts.next()?, parts.next()?);
        let read_only = match (parts.next(), parts.next()) {
            (None | Some("rw"), None) => false,
            (Some("ro"), None) => true,
            _ => return None,
        };
        let fits = !source.is_empty() && !source.starts_with('-') && destination.starts_with('/');
        fits.then(|| Self {
            source: plain(source),
            destination: plain(destination),
            read_only,
            options: Vec::new(),
        })
    }

    /// Whether it has no name but a number that the engine gave it, as volumes have that an image asks for.
    pub(super) fn is_anonymous(&self) -> bool {
        self.source.len() == 64 && self.source.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns it as an engine takes it, with what else it was mounted with.
    pub(super) fn in_full(&self) -> String {
        let mode = if self.read_only { "ro" } else { "rw" };
        let words: Vec<&str> = std::iter::once(mode).chain(self.options.iter().map(String::as_str)).collect();
        format!("{}:{}:{}", self.source, self.destination, words.join(","))
    }

    /// Whether it mounts the same, with whatever else.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.source, &self.destination, self.read_only)
            == (&other.source, &other.destination, other.read_only)
    }
}

/// Returns a path without what says nothing, as engines write it.
fn plain(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.fold(String::new(), |path, part| path + "/" + part)
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.source, self.destination, if self.read_only { ":ro" } else { "" })
    }
}

/// An image, as far as containers have it from there. No `Debug`: variables may be secret.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Image {
    pub(super) id: String,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
}

impl Image {
    /// Reads what docker and podman say of an image.
    pub(super) fn read(image: &Value) -> Self {
        let config = &image["Config"];
        Self {
            id: image["Id"].as_str().unwrap_or_default().to_owned(),
            command: texts(&config["Cmd"]),
            env: variables(&config["Env"]),
            labels: map(&config["Labels"]),
        }
    }

    /// Whether this is the image with that id.
    pub(super) fn is(&self, id: &str) -> bool {
        bare(&self.id) == bare(id)
    }
}

/// Returns an id without the name of its hash, which one engine leaves out.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// A container, with what it has from its image. No `Debug`: variables may be secret.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Inspected {
    /// The image as it was asked for.
    pub(super) image: String,
    /// The image it was made of.
    pub(super) base: Image,
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
        let policy = &host["RestartPolicy"];
        let retries = policy["MaximumRetryCount"].as_u64().unwrap_or(0);
        let restart = match (policy["Name"].as_str().unwrap_or_default(), retries) {
            ("" | "no", _) => "no".to_owned(),
            ("on-failure", 1..) => format!("on-failure:{retries}"),
            (name, _) => name.to_owned(),
        };
        let id = container["Image"].as_str().unwrap_or_default().to_owned();
        Some(Self {
            image: config["Image"].as_str().or(container["ImageName"].as_str())?.to_owned(),
            base: Image { id, ..Image::read(image) },
            command: texts(&config["Cmd"]),
            env: variables(&config["Env"]),
            ports: ports(&host["PortBindings"]),
            volumes: container["Mounts"].as_array().into_iter().flatten().filter_map(volume).collect(),
            restart,
            labels: map(&config["Labels"]),
            running: container["State"]["Running"].as_bool().unwrap_or(false),
        })
    }

    /// Returns its command, nothing if that is the image's.
    pub(super) fn own_command(&self) -> &[String] {
        if self.command == self.base.command { &[] } else { &self.command }
    }

    /// Returns its variables without those that its image or the engine has set.
    pub(super) fn own_env(&self) -> BTreeMap<String, String> {
        let own = self.env.iter().filter(|(name, value)| match self.base.env.get(*name) {
            Some(given) => given != *value,
            None => !self.is_set_by_engine(name),
        });
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Whether the engine sets this variable by itself. What podman makes is known by `container`, which it sets too.
    fn is_set_by_engine(&self, name: &str) -> bool {
        let is_proxy = matches!(
            name.to_ascii_lowercase().as_str(),
            "http_proxy" | "https_proxy" | "ftp_proxy" | "no_proxy" | "all_proxy"
        );
        let is_podman = self.env.contains_key("container");
        is_proxy || is_podman && matches!(name, "container" | "HOME" | "HOSTNAME" | "PATH" | "TERM")
    }

    /// Returns its labels without those of its image.
    pub(super) fn own_labels(&self) -> BTreeMap<String, String> {
        let own = self.labels.iter().filter(|(name, value)| self.base.labels.get(*name) != Some(value));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Whether it runs the image called `image`, which engines write out in full: a name without a registry may have been
    /// found in any of them.
    pub(super) fn has_image(&self, image: &str) -> bool {
        let is_found = || !has_registry(image) && self.image.ends_with(&format!("/{}", tagged(image)));
        full(&self.image) == full(image) || bare(image) == bare(&self.base.id) || is_found()
    }
}

/// Returns the full name of an image, as docker.io would have it.
fn full(image: &str) -> String {
    let image = tagged(image);
    if !image.contains('/') {
        format!("docker.io/library/{image}")
    } else if has_registry(&image) {
        image
    } else {
        format!("docker.io/{image}")
    }
}

fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

fn has_registry(image: &str) -> bool {
    image.split_once('/').is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost")
}

pub(super) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

pub(super) fn map(value: &Value) -> BTreeMap<String, String> {
    let items = value.as_object().into_iter().flatten();
    items.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn variables(lines: &Value) -> BTreeMap<String, String> {
    let pairs = texts(lines).into_iter();
    pairs
        .filter_map(|line| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
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
    let mode = mount["Mode"].as_str().unwrap_or_default().split(',');
    let shared =
        mount["Propagation"].as_str().filter(|way| way.ends_with("shared") || way.ends_with("slave"));
    let options: BTreeSet<&str> =
        mode.filter(|word| !matches!(*word, "" | "ro" | "rw")).chain(shared).collect();
    Some(Volume {
        source: plain(source),
        destination: plain(mount["Destination"].as_str()?),
        read_only: mount["RW"].as_bool() == Some(false),
        options: options.into_iter().map(str::to_owned).collect(),
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
        podman["Config"]["Env"] =
            json!(["container=podman", "TERM=xterm", "HOSTNAME=1", "HOME=/root", "PATH=/bin", "A=b=c"]);
        podman["HostConfig"]["PortBindings"]["80/tcp"][0]["HostIp"] = json!("0.0.0.0");
        let (docker, podman) =
            (Inspected::read(&docker, &image).unwrap(), Inspected::read(&podman, &image).unwrap());
        assert!(docker.has_image("nginx:1") && podman.has_image("nginx:1") && !docker.has_image("nginx"));
        for seen in [&docker, &podman] {
            assert!(seen.own_command().is_empty(), "the image's own");
            assert_eq!(seen.own_env(), BTreeMap::from([("A".to_owned(), "b=c".to_owned())]));
            assert_eq!(seen.ports.iter().map(Port::to_string).collect::<Vec<_>>(), ["8080:80/tcp"]);
            assert_eq!(seen.volumes.iter().map(Volume::to_string).collect::<Vec<_>>(), ["/srv:/data:ro"]);
            assert_eq!(seen.restart, "on-failure:3");
            assert_eq!(seen.own_labels().into_keys().collect::<Vec<_>>(), ["dev.stead"]);
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
        assert_eq!(Volume::parse("/a/./b/:/c//d/:ro").unwrap().to_string(), "/a/b:/c/d:ro");
    }

    #[test]
    fn images_are_compared_by_their_full_name() {
        assert_eq!(full("nginx"), "docker.io/library/nginx:latest");
        assert_eq!(full("me/app:2"), "docker.io/me/app:2");
        assert_eq!(full("localhost:5000/app"), "localhost:5000/app:latest");
        assert_eq!(full("quay.io/a/b@sha256:1"), "quay.io/a/b@sha256:1");
        let made_of = |image: &str| Inspected {
            image: image.to_owned(),
            base: Image { id: "5e1f".to_owned(), ..Image::default() },
            ..Inspected::default()
        };
        assert!(made_of("localhost/app:latest").has_image("app"), "one that was built here");
        assert!(made_of("quay.io/me/app:2").has_image("me/app:2"));
        assert!(made_of("localhost/app:2").has_image("sha256:5e1f"));
        assert!(!made_of("localhost/app:2").has_image("docker.io/app:2"));
        assert!(!made_of("localhost/snapp:2").has_image("app:2"));
    }
}
