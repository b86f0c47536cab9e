use super::*;

fn resolve(text: &str, host: &str) -> Result<SshConfig, ConfigError> {
    let file = ConfigText { path: "config".to_owned(), base: "/base".to_owned(), text: text.to_owned() };
    let query = Query { host, user: None, port: None, local_user: "me", home: "/home/me" };
    let mut include = |pattern: &str| {
        let text = match pattern {
            "/base/sub" => "User included\nHost other\nPort 7\n",
            "/home/me/loop" => "Include ~/loop\n",
            _ => return Vec::new(),
        };
        vec![ConfigText { path: pattern.to_owned(), base: String::new(), text: text.to_owned() }]
    };
    let mut exec = |command: &str| command == "test h.example = h.example";
    SshConfig::resolve(&[file], &query, &mut Outside { include: &mut include, exec: &mut exec })
}

#[test]
fn the_first_value_holds_and_identities_add_up() {
    let text = "Host h*\n User a\n IdentityFile one\nHost *\n User b\n IdentityFile two\n IdentityFile one\n";
    let config = resolve(text, "h").unwrap();
    assert_eq!(config.get("user"), Some("a"));
    assert_eq!(config.all("identityfile"), ["one", "two"]);
    assert_eq!(resolve(text, "x").unwrap().get("user"), Some("b"));
}

#[test]
fn a_negated_pattern_takes_the_block_away() {
    let text = "Host *.example !bad.example\n Port 1\n";
    assert_eq!(resolve(text, "good.example").unwrap().get("port"), Some("1"));
    assert_eq!(resolve(text, "bad.example").unwrap().get("port"), None);
    assert_eq!(resolve("Host !bad\n Port 1\n", "good").unwrap().get("port"), None);
}

#[test]
fn an_include_belongs_to_its_block_and_ends_with_its_file() {
    let text = "Host h\n Include sub\n Port 5\n";
    let config = resolve(text, "h").unwrap();
    assert_eq!((config.get("user"), config.get("port")), (Some("included"), Some("5")));
    assert_eq!(resolve(text, "other").unwrap().get("user"), None);
    assert_eq!(resolve("Include sub\nPort 5\n", "other").unwrap().get("port"), Some("7"));
}

#[test]
fn includes_without_end_are_an_error() {
    let error = resolve("Include ~/loop\n", "h").unwrap_err();
    assert!(error.message.contains("deeper than 16"), "{error}");
}

#[test]
fn conditions_of_match() {
    for (condition, holds) in [
        ("all", true),
        ("host h.example", true),
        ("host *.example,!h.example", false),
        ("!host x", true),
        ("originalhost h", true),
        ("originalhost h.example", false),
        ("user me", true),
        ("localuser me,you", true),
        ("!localuser me", false),
        ("exec \"test %h = h.example\"", true),
        ("exec \"false\"", false),
        ("host x exec \"test %h = h.example\"", false),
        ("final all", true),
    ] {
        let text = format!("Host h\n HostName %h.example\nMatch {condition}\n Port 9\n");
        let config = resolve(&text, "h").unwrap();
        assert_eq!(config.get("port").is_some(), holds, "{condition}");
    }
}

#[test]
fn what_has_no_effect_is_named_and_what_is_wrong_has_its_line() {
    let config = resolve("ForwardX11 yes\nHost other\n Compression yes\n", "h").unwrap();
    assert_eq!(config.ignored().collect::<Vec<_>>(), ["forwardx11"]);
    for (text, line) in [("\nPort\n", 2), ("User a b\n", 1), ("Match nothing x\n", 1), ("User \"a\n", 1)] {
        assert_eq!(resolve(text, "h").unwrap_err().line, line, "{text}");
    }
}

#[test]
fn the_first_of_jump_and_command_holds() {
    let config = resolve("ProxyJump a,b\nProxyCommand nc %h %p # not a comment\n", "h").unwrap();
    assert_eq!((config.get("proxyjump"), config.get("proxycommand")), (Some("a,b"), None));
    let config = resolve("ProxyCommand nc %h %p # not a comment\n", "h").unwrap();
    assert_eq!(config.get("proxycommand"), Some("nc %h %p # not a comment"));
}
