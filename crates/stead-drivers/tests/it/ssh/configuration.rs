//! Case 4: ssh_config, measured by `ssh -G`, and jumps that really lead there.

use super::*;
use std::path::{Path, PathBuf};
use std::process::Command as Program;

use stead_model::transport::Jump;
use stead_runner::transport::TransportErrorKind;
use stead_testkit::sshd::KeyKind;

/// The values a configuration gives by OpenSSH.
fn openssh(config: &Path, host: &str) -> Result<Vec<(String, String)>, String> {
    let output = Program::new("ssh").arg("-G").arg("-F").arg(config).arg(host).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    Ok(text
        .lines()
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .map(|(k, v)| (k.into(), v.into()))
        .collect())
}

/// The account `ssh` takes itself for: it asks passwd, not the environment.
fn own_account() -> (PathBuf, String) {
    let say = |program: &str, arguments: &[&str]| {
        String::from_utf8(Program::new(program).args(arguments).output().unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    let name = say("id", &["-un"]);
    let home = say("getent", &["passwd", &name]).split(':').nth(5).unwrap().to_owned();
    (home.into(), name)
}

async fn ours(config: &Path, host: &str) -> Result<Vec<(String, String)>, TransportError> {
    let (home, user) = own_account();
    let transports =
        Transports::new(Surroundings { home, user, environment: BTreeMap::new() }, Notices::ignored());
    let spec = SshSpec {
        host: host.to_owned(),
        ssh_config: Some(config.display().to_string()),
        ..SshSpec::default()
    };
    Ok(transports.effective(&spec).await?.0)
}

/// Compares every keyword that the text sets, and those whose defaults are OpenSSH's.
async fn same_as_openssh(config: &Path, host: &str) {
    let text = std::fs::read_to_string(config).unwrap();
    let theirs = openssh(config, host);
    let found = ours(config, host).await;
    let (theirs, found) = match (theirs, found) {
        (Ok(theirs), Ok(found)) => (theirs, found),
        (Err(_), Err(_)) => return,
        (theirs, found) => panic!("{host}: OpenSSH says {theirs:?}, we say {found:?} of\n{text}"),
    };
    let values = |list: &[(String, String)], keyword: &str| {
        list.iter().filter(|(name, _)| name == keyword).map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    for keyword in [
        "hostname",
        "user",
        "port",
        "userknownhostsfile",
        "globalknownhostsfile",
        "hostkeyalias",
        "proxyjump",
        "proxycommand",
        "serveralivecountmax",
        "addressfamily",
        "bindaddress",
        "identitiesonly",
        "hashknownhosts",
        "identityagent",
        "certificatefile",
    ] {
        assert_eq!(values(&found, keyword), values(&theirs, keyword), "{keyword} for {host} in\n{text}");
    }
    // Defaults of these are our own: compared where OpenSSH's value is not its default.
    for (keyword, default) in
        [("connecttimeout", "none"), ("serveraliveinterval", "0"), ("stricthostkeychecking", "ask")]
    {
        let theirs = values(&theirs, keyword);
        // `no` is read as accept-new.
        let expected = if keyword == "stricthostkeychecking" && theirs == ["false"] {
            vec!["accept-new".to_owned()]
        } else {
            theirs
        };
        if expected != [default] {
            assert_eq!(values(&found, keyword), expected, "{keyword} for {host} in\n{text}");
        }
    }
    let identities = values(&theirs, "identityfile");
    if !identities.contains(&"~/.ssh/id_dsa".to_owned()) {
        assert_eq!(values(&found, "identityfile"), identities, "identities for {host} in\n{text}");
    }
    for keyword in ["hostkeyalgorithms", "kexalgorithms", "ciphers", "macs", "pubkeyacceptedalgorithms"] {
        let own = values(&found, keyword);
        if own.first().is_some_and(|list| !list.starts_with(['+', '-', '^'])) {
            assert_eq!(own, values(&theirs, keyword), "{keyword} for {host} in\n{text}");
        }
    }
}

const TABLE: &[&str] = &[
    "Host web*\n HostName %h.example\n User ops\n Port 2222\nHost *\n User other\n Port 23\n",
    "Host * !web1\n User everybody\nHost web1\n User one\n",
    "Host !web1\n User nobody\nHost web?\n Port 4\n",
    "HostName=1.2.3.4\nPort = 99\nUser \"a b\"\nHostKeyAlias Alias\n",
    "IdentityFile ~/.ssh/one\nIdentityFile ~/.ssh/two\nIdentityFile ~/.ssh/one\nIdentitiesOnly yes\nCertificateFile ~/c\n",
    "UserKnownHostsFile ~/one /two/%h\nGlobalKnownHostsFile /three /four\nHashKnownHosts yes\n",
    "Match host web1\n User m\nMatch originalhost web2\n User n\nMatch all\n User rest\n",
    "Host web1\n HostName real.example\nMatch host real.example\n Port 77\nMatch originalhost real.example\n Port 78\n",
    "Match exec \"test %h = web1\"\n User yes\nMatch exec \"false\"\n User no\n",
    "Match !host web1\n User notone\nMatch host web1 user nobody-at-all\n Port 1\n",
    "User abc\nMatch user abc\n Port 5\nMatch user def\n Port 6\n",
    "Match final host web1\n User late\nUser early\n",
    "Match final all\n User late\nMatch all\n User early\n",
    "ProxyJump a@b:22,c\nProxyCommand none\n",
    "ProxyCommand nc -X 5 %h %p # not a comment\nProxyJump b\n",
    "ProxyJump none\n",
    "ConnectTimeout 1m30s\nServerAliveInterval 20\nServerAliveCountMax 7\nAddressFamily inet6\nBindAddress ::1\n",
    "StrictHostKeyChecking accept-new\nIdentityAgent ~/agent\n",
    "StrictHostKeyChecking no\nIdentityAgent none\n",
    "StrictHostKeyChecking yes # a comment\nUser u#v\n",
    "Ciphers aes128-ctr,aes256-ctr\nMACs hmac-sha2-256\nKexAlgorithms curve25519-sha256\nHostKeyAlgorithms ssh-ed25519\nPubkeyAcceptedAlgorithms ssh-ed25519\n",
    "ForwardAgent yes\nCompression yes\nControlPath ~/x-%C\nUser z\n",
    "Host\n User x\n",
    "Port abc\n",
    "User a b\n",
    "Match host\n",
    "Match nonsense x\n User y\n",
    "Host web1 # comment\n User c\n",
    "\tHost\tweb1\n\t\tUser\ttab\n",
    "Host web1\n User 'single quoted'\nHost \"web2\"\n User double\n",
];

/// Case 4.
#[tokio::test]
async fn the_effective_values_equal_those_of_openssh() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    for text in TABLE {
        std::fs::write(&config, text).unwrap();
        for host in ["web1", "web2", "Other"] {
            same_as_openssh(&config, host).await;
        }
    }
}

/// Case 4.
#[tokio::test]
async fn includes_are_followed_as_openssh_does() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    for (name, text) in [
        ("d/10-a", "User first\nHost web1\n Port 10\n"),
        ("d/20-b", "User second\nHost *\n HostKeyAlias b\n"),
        ("d/.hidden", "Port 1\n"),
        ("nested", &format!("Include {place}/d/20*\n")),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let config = directory.path().join("config");
    for text in [
        format!("Include {place}/d/*\nPort 30\n"),
        format!("Host web2\n Include {place}/d/*\n Port 31\nHost *\n User last\n"),
        format!("Include {place}/nested {place}/none\nUser x\n"),
        format!("Match host web1\n Include {place}/d/10-?\nPort 5\n"),
        format!("Include \"{place}/d/10-a\" {place}/d/20-b\n"),
    ] {
        std::fs::write(&config, text).unwrap();
        for host in ["web1", "web2", "other"] {
            same_as_openssh(&config, host).await;
        }
    }
}

/// Case 4: whatever lines come together.
#[tokio::test]
async fn random_configurations_mean_what_openssh_takes_them_for() {
    let lines = [
        "Host web1",
        "Host web* !web2",
        "Host *",
        "Host other web?",
        "Match host web1",
        "Match all",
        "Match originalhost web2,other",
        "Match user ann",
        "Match !host web*",
        "Match exec \"test %n = web2\"",
        "Match host *.example localuser root,nobody",
        "Match final host web1",
        "User ann",
        "User ben",
        "Port 22",
        "Port 4711",
        "HostName %h.example",
        "HostName 10.0.0.1",
        "IdentityFile ~/.ssh/a",
        "IdentityFile /b",
        "IdentitiesOnly yes",
        "UserKnownHostsFile ~/k1 ~/k2",
        "UserKnownHostsFile /%r/%n",
        "ProxyJump hop",
        "ProxyJump a@b:3,c",
        "ProxyCommand nc %h %p",
        "ProxyJump none",
        "ConnectTimeout 7",
        "ServerAliveInterval 8",
        "ServerAliveCountMax 9",
        "HostKeyAlias q",
        "StrictHostKeyChecking accept-new",
        "HashKnownHosts yes",
        "AddressFamily inet",
        "# comment",
        "",
        "  ForwardX11 no",
    ];
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..120 {
        let mut text = String::new();
        for _ in 0..14 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text.push_str(lines[(state % lines.len() as u64) as usize]);
            text.push('\n');
        }
        std::fs::write(&config, text).unwrap();
        for host in ["web1", "web2"] {
            same_as_openssh(&config, host).await;
        }
    }
}

#[tokio::test]
async fn what_has_no_effect_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    std::fs::write(&config, "ForwardAgent yes\nHost no\n Compression yes\n").unwrap();
    let spec = SshSpec {
        host: "h".to_owned(),
        ssh_config: Some(config.display().to_string()),
        ..SshSpec::default()
    };
    let (_, ignored) = Account::new().transports().effective(&spec).await.unwrap();
    assert_eq!(ignored, ["forwardagent"]);
}

/// Case 4.
#[tokio::test]
async fn a_command_runs_over_two_jumps_of_ssh_config() {
    let (one, two, last) = (Sshd::start(), Sshd::start(), Sshd::start());
    let account = Account::new();
    let place = account.home.path();
    let known: String = [&one, &two].iter().map(|server| server.known_host(KeyKind::Ed25519)).collect();
    let alias =
        last.known_host(KeyKind::Ed25519).replace(&format!("[127.0.0.1]:{}", last.port()), "the-last");
    std::fs::write(place.join(".ssh/known_hosts"), known + &alias).unwrap();
    std::fs::create_dir(place.join("more")).unwrap();
    let block = |name: &str, server: &Sshd, more: &str| {
        format!(
            "Host {name}\n HostName 127.0.0.1\n Port {}\n User {}\n IdentityFile {}\n{more}\n",
            server.port(),
            server.user(),
            server.file("id").display()
        )
    };
    std::fs::write(place.join("more/hops"), block("one", &one, "") + &block("two", &two, "")).unwrap();
    let main = format!(
        "Include {}/more/*\nHost * !one !two\n IdentitiesOnly yes\nMatch exec \"test %n = last\"\n ProxyJump one,two\n{}",
        place.display(),
        block("last", &last, " HostKeyAlias the-last")
    );
    std::fs::write(place.join(".ssh/config"), main).unwrap();
    let spec = SshSpec { host: "last".to_owned(), ..SshSpec::default() };
    let host = account.connect(spec).await.unwrap();
    let port = output(&*host, &["sh", "-c", "echo $SSH_CONNECTION"]).await;
    assert!(port.trim().ends_with(&last.port().to_string()), "{port}");
    assert_eq!((one.logins(), two.logins(), last.logins()), (1, 1, 1), "each hop is logged in to");
    // A hop is checked like any host.
    std::fs::write(place.join(".ssh/known_hosts"), one.known_host(KeyKind::Ed25519) + &alias).unwrap();
    let error =
        account.connect(SshSpec { host: "last".to_owned(), ..SshSpec::default() }).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::HostKey, "{error}");
    assert!(error.message.starts_with("jump host: 127.0.0.1"), "{error}");
}

#[tokio::test]
async fn jumps_of_the_spec_lead_there_and_a_dead_end_is_named() {
    let (hop, last) = (Sshd::start(), Sshd::start());
    let directory = tempfile::tempdir().unwrap();
    let known = directory.path().join("known_hosts");
    std::fs::write(&known, hop.known_host(KeyKind::Ed25519) + &last.known_host(KeyKind::Ed25519)).unwrap();
    let mut keys = std::fs::read_to_string(hop.file("authorized_keys")).unwrap();
    keys.push_str(&std::fs::read_to_string(last.file("authorized_keys")).unwrap());
    std::fs::write(hop.file("authorized_keys"), keys).unwrap();
    let jump = Jump {
        user: Some(hop.user().to_owned()),
        host: "127.0.0.1".to_owned(),
        port: Some(hop.port()),
        host_key: None,
    };
    let spec = SshSpec { jump: vec![jump], known_hosts: Some(known.display().to_string()), ..last.spec() };
    let host = Account::new().connect(spec.clone()).await.unwrap();
    assert_eq!(output(&*host, &["echo", "there"]).await, "there\n");
    assert_eq!(hop.logins(), 1);
    let dead = SshSpec { port: Some(stead_testkit::sshd::free_port()), ..spec };
    let error = Account::new().connect(dead).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Refused, "{error}");
    assert!(error.message.contains("from the jump host 127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_proxy_command_carries_the_connection_and_ends_with_it() {
    let server = Sshd::start();
    let config = server.file("config");
    let mark = server.file("proxy-pid");
    // OpenSSH's own way of being a pipe.
    let line = format!(
        "ProxyCommand sh -c 'echo $$ >{}; exec ssh -F none -i {} -o UserKnownHostsFile={} -p %p -W 127.0.0.1:%p %r@127.0.0.1'\n",
        mark.display(),
        server.file("id").display(),
        server.file("known_hosts").display()
    );
    std::fs::write(&config, line).unwrap();
    let spec = SshSpec { ssh_config: Some(config.display().to_string()), ..server.spec() };
    let host = Account::new().connect(spec.clone()).await.unwrap();
    assert_eq!(output(&*host, &["echo", "through"]).await, "through\n");
    let pid = std::fs::read_to_string(&mark).unwrap();
    drop(host);
    for _ in 0..6000 {
        if !Path::new(&format!("/proc/{}/exe", pid.trim())).exists() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(
        !Path::new(&format!("/proc/{}/exe", pid.trim())).exists(),
        "the ProxyCommand outlives its connection"
    );
    std::fs::write(&config, "ProxyCommand echo complaint >&2; false\n").unwrap();
    let error = Account::new().connect(spec).await.err().unwrap();
    assert!(error.message.contains("the ProxyCommand said: complaint"), "{error}");
}

#[tokio::test]
async fn algorithms_and_addresses_of_ssh_config_are_used() {
    let server = Sshd::builder().config("Ciphers aes192-ctr").config("MACs hmac-sha2-512").start();
    let config = server.file("config");
    let spec = SshSpec { ssh_config: Some(config.display().to_string()), ..server.spec() };
    std::fs::write(
        &config,
        "Ciphers aes192-ctr\nMACs hmac-sha2-512\nBindAddress 127.0.0.1\nAddressFamily inet\n",
    )
    .unwrap();
    Account::new().connect(spec.clone()).await.unwrap();
    std::fs::write(&config, "Ciphers aes128-ctr\n").unwrap();
    let error = Account::new().connect(spec.clone()).await.err().unwrap();
    assert!(
        error.message.contains("aes128-ctr") && error.message.contains("aes192-ctr") && !error.may_pass(),
        "{error}"
    );
    std::fs::write(&config, "AddressFamily inet6\n").unwrap();
    let error = Account::new().connect(spec.clone()).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::NameNotFound, "{error}");
    std::fs::write(&config, "PubkeyAcceptedAlgorithms rsa-sha2-512\n").unwrap();
    let error = Account::new().connect(spec).await.err().unwrap();
    assert!(error.message.contains("left out by PubkeyAcceptedAlgorithms"), "{error}");
}

/// Section 2: the spec beats ssh_config, and what is printed is what holds; each option with its keyword.
#[tokio::test]
async fn what_the_spec_says_is_printed_and_not_what_it_beat() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    let text = "User conf\nPort 23\nIdentityFile /conf/key\nUserKnownHostsFile /conf/known\nIdentityAgent /conf/agent\n\
        StrictHostKeyChecking yes\nProxyJump conf@jump\nConnectTimeout 7\nServerAliveInterval 9\n";
    std::fs::write(&config, text).unwrap();
    let (home, user) = own_account();
    let transports =
        Transports::new(Surroundings { home, user, environment: BTreeMap::new() }, Notices::ignored());
    let cases = [
        ("", "user", "conf"),
        ("", "identityfile", "/conf/key"),
        ("", "identityagent", "/conf/agent"),
        ("", "proxyjump", "conf@jump"),
        ("", "connecttimeout", "7"),
        ("key=/spec/key", "identityfile", "/spec/key"),
        ("known_hosts=/spec/known", "userknownhostsfile", "/spec/known"),
        ("known_hosts=/spec/known", "globalknownhostsfile", ""),
        ("agent=false", "identityagent", "none"),
        ("agent=true", "identityagent", "/conf/agent"),
        ("host_keys=accept-new", "stricthostkeychecking", "accept-new"),
        ("insecure=true", "stricthostkeychecking", "false"),
        ("jump=spec@other:2222", "proxyjump", "spec@other:2222"),
        ("connect_timeout=500ms", "connecttimeout", "0.5"),
        ("connect_timeout=2s", "connecttimeout", "2"),
        ("keepalive=1500ms", "serveraliveinterval", "1.5"),
    ];
    for (option, keyword, value) in cases {
        let text = format!(
            "ssh://h?{option}{}ssh_config={}",
            if option.is_empty() { "" } else { "&" },
            config.display()
        );
        let TransportSpec::Ssh(spec) = TransportSpec::parse(&text).unwrap() else { panic!("{text}") };
        let found = transports.effective(&spec).await.unwrap().0;
        let values: Vec<&str> =
            found.iter().filter(|(name, _)| name == keyword).map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [value], "{keyword} with {option:?}");
    }
    for (text, keyword, value) in [("ssh://spec@h", "user", "spec"), ("ssh://h:24", "port", "24")] {
        let text = format!("{text}?ssh_config={}", config.display());
        let TransportSpec::Ssh(spec) = TransportSpec::parse(&text).unwrap() else { panic!("{text}") };
        let found = transports.effective(&spec).await.unwrap().0;
        assert!(found.contains(&(keyword.to_owned(), value.to_owned())), "{found:?}");
    }
}
