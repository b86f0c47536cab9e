//! Every form, option and vector of the transport text.

use proptest::prelude::*;

use super::*;

fn ssh(text: &str) -> SshSpec {
    match TransportSpec::parse(text) {
        Ok(TransportSpec::Ssh(ssh)) => *ssh,
        other => panic!("{text}: {other:?}"),
    }
}

fn refused(text: &str) -> TransportSpecError {
    TransportSpec::parse(text).expect_err(text)
}

/// Case 1: each row of the table of forms.
#[test]
fn every_form_is_read() {
    for local in ["local", "local://"] {
        assert_eq!(TransportSpec::parse(local), Ok(TransportSpec::Local));
    }
    let parts = |text: &str| {
        let spec = ssh(text);
        (spec.user, spec.host, spec.port)
    };
    let expect =
        |user: Option<&str>, host: &str, port: Option<u16>| (user.map(str::to_owned), host.to_owned(), port);
    for (text, wanted) in [
        ("ssh://ann@h", expect(Some("ann"), "h", None)),
        ("ssh://h", expect(None, "h", None)),
        ("ssh://h:2222", expect(None, "h", Some(2222))),
        ("ssh://ann@h:2222", expect(Some("ann"), "h", Some(2222))),
        ("ssh://ann@[fd00::7]:2222", expect(Some("ann"), "fd00::7", Some(2222))),
        ("ssh://[fe80::1%eth0]", expect(None, "fe80::1%eth0", None)),
        ("ann@h", expect(Some("ann"), "h", None)),
        ("ann@h:2222", expect(Some("ann"), "h", Some(2222))),
        ("ann@fd00::7", expect(Some("ann"), "fd00::7", None)),
        ("ann@[fd00::7]", expect(Some("ann"), "fd00::7", None)),
        ("ann@[fd00::7]:2222", expect(Some("ann"), "fd00::7", Some(2222))),
        ("a@b@h", expect(Some("a@b"), "h", None)),
        ("ssh://a@b@h", expect(Some("a@b"), "h", None)),
        ("ssh://a%40b@h", expect(Some("a@b"), "h", None)),
        ("a%3Ab@h", expect(Some("a:b"), "h", None)),
        ("ann@h:22", expect(Some("ann"), "h", Some(22))),
    ] {
        assert_eq!(parts(text), wanted, "{text}");
    }
    let spec = ssh("ssh://u:p%3F:@h");
    assert_eq!(spec.password, Some(SecretSource::Literal("p?:".into())));
    assert_eq!(spec.user.as_deref(), Some("u"));
}

/// Case 1: the vectors of the canonical form.
#[test]
fn the_canonical_form_is_the_contracts() {
    for (text, canonical) in [
        ("local://", "local"),
        ("ann@h:22", "ssh://ann@h"),
        ("a@b@h", "ssh://a%40b@h"),
        ("ssh://u:p@h?insecure=true&key=/k", "ssh://u:***@h?key=/k&insecure=true"),
        ("u@::1", "ssh://u@[::1]"),
        ("u@h?agent=true&host_keys=strict&insecure=false&connect_timeout=30s&keepalive=15s", "ssh://u@h"),
        ("u@h?elevate=true", "ssh://u@h?become=sudo"),
        ("u@h?elevate=false", "ssh://u@h"),
        ("u@h?become=sudo:root", "ssh://u@h?become=sudo"),
        ("u@h?password=p", "ssh://u:***@h"),
        ("ssh://h?password=p&passphrase=q", "ssh://h?passphrase=***&password=***"),
        ("ssh://h?password=env:P", "ssh://h?password=env:P"),
        ("u@h?connect_timeout=90s&keepalive=500ms", "ssh://u@h?connect_timeout=1m30s&keepalive=500ms"),
        ("u@h?jump=a@b:22,c,d@fd00::1", "ssh://u@h?jump=a@b,c,d@[fd00::1]"),
        ("u@h?key=~/my%20key&os=linux&ssh_config=none", "ssh://u@h?key=~/my%20key&os=linux&ssh_config=none"),
    ] {
        assert_eq!(TransportSpec::parse(text).unwrap().to_string(), canonical, "{text}");
    }
}

/// Case 1: every option sets its field, and the canonical form has them in the table's order.
#[test]
fn every_option_is_read_and_written_in_order() {
    let fingerprint = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
    let options = format!(
        "key=/k&passphrase=env:P&password=file:/p&known_hosts=/kh&host_key={fingerprint}&agent=false\
         &host_keys=accept-new&insecure=true&jump=a@b:2022&connect_timeout=5s&keepalive=2s&become=doas:web\
         &become_password=env:B&os=darwin&ssh_config=/c"
    );
    let reversed: Vec<&str> = options.split('&').rev().collect();
    let text = format!("ssh://ann@h:2222?{options}");
    for written in [text.clone(), format!("ann@h:2222?{}", reversed.join("&"))] {
        assert_eq!(TransportSpec::parse(&written).unwrap().to_string(), text);
    }
    let spec = ssh(&text);
    assert_eq!(spec.key.as_deref(), Some("/k"));
    assert_eq!(spec.passphrase, Some(SecretSource::Env("P".into())));
    assert_eq!(spec.password, Some(SecretSource::File("/p".into())));
    assert_eq!(spec.known_hosts.as_deref(), Some("/kh"));
    assert_eq!(spec.host_key.as_deref(), Some(fingerprint));
    assert_eq!(spec.agent, Some(false));
    assert_eq!(spec.host_keys, Some(HostKeys::AcceptNew));
    assert!(spec.insecure);
    assert_eq!(
        spec.jump,
        [Jump { user: Some("a".into()), host: "b".into(), port: Some(2022), host_key: None }]
    );
    assert_eq!(spec.connect_timeout, Some(Duration::from_secs(5)));
    assert_eq!(spec.keepalive, Some(Duration::from_secs(2)));
    assert_eq!(spec.become_user, Some(Become { method: BecomeMethod::Doas, user: Some("web".into()) }));
    assert_eq!(spec.become_password, Some(SecretSource::Env("B".into())));
    assert_eq!(spec.os, Some(TargetOs::Darwin));
    assert_eq!(spec.ssh_config.as_deref(), Some("/c"));
    let key = ssh("u@h?host_key=ssh-ed25519%20AAAAC3Nza+/==").host_key;
    assert_eq!(key.as_deref(), Some("ssh-ed25519 AAAAC3Nza+/=="));
}

/// Case 1: what is no transport is refused, with the part and its place.
#[test]
fn what_is_no_transport_is_refused_with_part_position_and_nearest() {
    for (text, message) in [
        ("", "a transport is empty, at character 1 (write `local` or `ssh://user@host`)"),
        (
            "host",
            "`host` is not a transport: a bare word is never taken for a host name, at character 1 (write `ssh://host` or `user@host`)",
        ),
        (
            "host?key=/k",
            "`host` is not a transport: a bare word is never taken for a host name, at character 1 (write `ssh://host` or `user@host`)",
        ),
        (
            "locl",
            "`locl` is not a transport: a bare word is never taken for a host name, at character 1 (did you mean `local`?)",
        ),
        (
            "ftp://h",
            "`ftp://` is not a transport; there are `local` and `ssh://`, at character 1 (write `local` or `ssh://user@host`)",
        ),
        (
            "shs://h",
            "`shs://` is not a transport; there are `local` and `ssh://`, at character 1 (did you mean `ssh://`?)",
        ),
        ("ssh://", "the host is empty, at character 7 (write `ssh://user@host`)"),
        ("ssh://u@", "the host is empty, at character 9 (write `ssh://user@host`)"),
        ("ssh://:22", "the host is empty, at character 7 (write `ssh://user@host`)"),
        ("@h", "the user before `@` is empty, at character 1 (leave out the `@`, with `ssh://` in front)"),
        (
            "ssh://:p@h",
            "the user before `@` is empty, at character 7 (leave out the `@`, with `ssh://` in front)",
        ),
        ("ssh://u:@h", "the password before `@` is empty, at character 9 (leave out the `:`)"),
        ("u@h:0", "`0` is not a port: digits of 1 to 65535 are, at character 5"),
        ("u@h:99999", "`99999` is not a port: digits of 1 to 65535 are, at character 5"),
        ("u@h:", "this is not a port: digits of 1 to 65535 are, at character 5"),
        ("u@h:+22", "this is not a port: digits of 1 to 65535 are, at character 5"),
        (
            "u:p@h",
            "a `:` does not belong into the user, at character 2 (a password needs `ssh://user:password@host`, better `?password=env:NAME`)",
        ),
        ("u@h?kye=/k", "`kye` is not an option of a transport, at character 5 (did you mean `key`?)"),
        ("ä@h?key=a&key=b", "the option `key` is given twice, at character 11 (keep one)"),
        ("u@h?become=sudo&elevate=true", "the option `elevate` is given twice, at character 17 (keep one)"),
        ("ssh://u:p@h?password=q", "the option `password` is given twice, at character 13 (keep one)"),
        ("u@h?key", "an option is `name=value`, at character 5 (such as `?key=/path&agent=false`)"),
        ("u@h?", "an option is `name=value`, at character 5 (such as `?key=/path&agent=false`)"),
        ("u@h?key=", "the option `key` takes a path; `~` is allowed, at character 9"),
        ("u@h?os=win", "the option `os` takes `linux` or `darwin`, at character 8"),
        ("u@h?agent=yes", "the option `agent` takes `true` or `false`, at character 11"),
        (
            "u@h?keepalive=15",
            "the option `keepalive` takes a duration above zero, such as `30s` or `1m30s`, at character 15",
        ),
        (
            "u@h?become=su",
            "the option `become` takes `sudo`, `doas`, `sudo:USER` or `doas:USER`, at character 12",
        ),
        (
            "u@h?password=env:",
            "the option `password` takes `env:NAME` or `file:PATH`; a literal works too, at character 14",
        ),
        ("u@h?jump=a@b:0", "`0` is not a port: digits of 1 to 65535 are, at character 10"),
        (
            "u @h",
            "white space does not belong into a transport, at character 2 (a blank in a value is written `%20`)",
        ),
        (
            "u@h?key=%2",
            "`%` stands before two hexadecimal digits, and what they make is printable UTF-8, at character 9 (a `%` itself is written `%25`)",
        ),
        (
            "u%00@h",
            "`%` stands before two hexadecimal digits, and what they make is printable UTF-8, at character 1 (a `%` itself is written `%25`)",
        ),
        ("ssh://u@fd00::7", "`fd00::7` is not a host: an IPv6 address stands in brackets, at character 9"),
        ("u@fd00::g", "this is not a host: it is not an IPv6 address, at character 3"),
        ("ssh://h/etc", "a transport has no path, at character 8 (options begin with `?`)"),
        ("-oProxyCommand=x@h", "a user does not start with `-`, at character 1"),
        (
            "local?become=sudo",
            "`local` takes nothing behind it, at character 6 (options are for SSH; `become` and the like are keys of the host in an inventory)",
        ),
    ] {
        assert_eq!(refused(text).to_string(), message, "{text}");
    }
    for bad in [
        "u@-h",
        "u@.h",
        "u@h_*",
        "u@[::1",
        "u@[::1]x",
        "u@[]",
        "u@[h]",
        "u@h?host_key=MD5:x",
        "u@h?jump=none",
    ] {
        refused(bad);
    }
}

/// Case 1: a literal secret works, warns, and is nowhere to be seen.
#[test]
fn literal_secrets_warn_and_are_masked() {
    let text = "ssh://u:hunter2@h?passphrase=hunter2&become_password=hunter2&insecure=true";
    let spec = TransportSpec::parse(text).unwrap();
    let codes: Vec<&str> = spec.warnings().iter().map(|(code, _)| *code).collect();
    assert_eq!(
        codes,
        ["reach/secret-in-spec", "reach/secret-in-spec", "reach/secret-in-spec", "reach/insecure"]
    );
    assert!(spec.has_literal_secret());
    for shown in [format!("{spec} {spec:?} {:?}", spec.warnings()), spec.address()] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert_eq!(spec.address(), "u@h");
    assert!(TransportSpec::parse("u@h?password=env:P").unwrap().warnings().is_empty());
}

/// A transport with a mistake in it does not show its password, not even to say so.
#[test]
fn errors_and_shown_text_repeat_no_secret() {
    for text in [
        "ssh://u:hunter2@h?kye=1",
        "ssh://u:hunter2@",
        "ssh://u:hunter2",
        "ssh://u:hun?ter2@h",
        "ssh://u:x:hunter2",
        "u:hunter2@h",
        "ftp://u:hunter2@h",
        "u@h?pasword=hunter2",
        "u@h?password=hunter2&x=1",
        "u@h?become_password=hunter2&os=x",
    ] {
        let error = refused(text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        let mut shown = text.to_owned();
        for range in secret_ranges(text) {
            shown.replace_range(range.clone(), &"*".repeat(range.len()));
        }
        assert!(!shown.contains("hun") && !shown.contains("ter2"), "{shown}");
    }
    for text in [
        "ssh://u@h:22?key=/k",
        "u@fd00::7",
        "ssh://h:2222",
        "u@h?password=env:P",
        "local",
        "ssh://[::1]:22",
        "role:web,",
        "a:b:c",
    ] {
        assert!(secret_ranges(text).is_empty(), "{text}");
    }
}

fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_.@:/ %&=?+~ä'#-]{1,8}".prop_map(|text| text.trim_start_matches('-').to_owned() + "x")
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9_][a-z0-9._-]{0,8}", Just("fd00::7".to_owned()), Just("fe80::1%eth0".to_owned())]
}

fn source() -> impl Strategy<Value = Option<SecretSource>> {
    prop_oneof![
        Just(None),
        "[A-Z_][A-Z0-9_]{0,5}".prop_map(|name| Some(SecretSource::Env(name))),
        word().prop_map(|path| Some(SecretSource::File(path))),
    ]
}

fn port() -> impl Strategy<Value = Option<u16>> {
    prop::option::of((1u16..).prop_filter("22 is left out", |port| *port != DEFAULT_PORT))
}

fn time(default: Duration) -> impl Strategy<Value = Option<Duration>> {
    let millis = (1u64..10_000_000).prop_map(Duration::from_millis);
    prop::option::of(millis.prop_filter("the default is left out", move |time| *time != default))
}

prop_compose! {
    fn any_jump()(user in prop::option::of("[a-z][a-z@._]{0,4}"), host in host(), port in port()) -> Jump {
        Jump { user, host, port, host_key: None }
    }
}

prop_compose! {
    fn any_become()(doas in any::<bool>(), user in prop::option::of("[a-z_$#.]{1,6}")) -> Become {
        let method = if doas { BecomeMethod::Doas } else { BecomeMethod::Sudo };
        Become { method, user: user.filter(|user| user != "root") }
    }
}

prop_compose! {
    fn any_ssh()(
        (user, host, port) in (prop::option::of(word()), host(), port()),
        (password, passphrase, become_password) in (source(), source(), source()),
        (key, known_hosts, ssh_config) in (prop::option::of(word()), prop::option::of(word()), prop::option::of(word())),
        (agent, host_keys, insecure) in (any::<bool>(), any::<bool>(), any::<bool>()),
        jump in prop::collection::vec(any_jump().prop_filter("reserved", |jump| jump.host != "none"), 0..3),
        connect_timeout in time(DEFAULT_CONNECT_TIMEOUT),
        keepalive in time(DEFAULT_KEEPALIVE),
        become_user in prop::option::of(any_become()),
        os in prop_oneof![Just(None), Just(Some(TargetOs::Linux)), Just(Some(TargetOs::Darwin))],
    ) -> SshSpec {
        SshSpec {
            user, host, port, password, passphrase, become_password, key, known_hosts, ssh_config, insecure, jump,
            connect_timeout, keepalive, become_user, os,
            host_key: None,
            agent: (!agent).then_some(false),
            host_keys: host_keys.then_some(HostKeys::AcceptNew),
        }
    }
}

proptest! {
    #[test]
    fn the_canonical_form_reads_back_as_the_same_transport(ssh in any_ssh()) {
        let spec = TransportSpec::Ssh(Box::new(ssh));
        let text = spec.to_string();
        prop_assert_eq!(TransportSpec::parse(&text).map_err(|error| error.to_string()), Ok(spec), "{}", text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "(ssh://)?[a:@%?&=/ä\\[\\] \u{0}-]{0,12}(\\PC{0,8})") {
        if let Ok(spec) = TransportSpec::parse(&text) {
            let canonical = spec.to_string();
            prop_assert_eq!(TransportSpec::parse(&canonical).unwrap().to_string(), canonical);
        }
        for range in secret_ranges(&text) {
            prop_assert!(text.get(range).is_some());
        }
    }
}
