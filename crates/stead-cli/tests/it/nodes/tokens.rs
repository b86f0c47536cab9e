//! `stead token`: minting, checking, rotating, revoking.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{site, write};
use crate::cases_17_32::lab::{Ended, Lab};

const V1: &str = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzM4ODAwMDAwfQ.ibGxKOmJOeO1osEGnesy4P6UlSZGXbsG_kyvXAr8stI";
const V2: &str = "eyJ2IjoyLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzM4ODAwMDAwLCJleHAiOjE3Mzk0MDQ4MDAsImtpZCI6IjlhMmRiMmUyIiwiYXVkIjoibm9kZSIsImp0aSI6IkFBRUNBd1FGQmdjSUNRb0xEQTBPRHcifQ.nBz6wvqetfuvYdTdpFUixgpj1CJg0qAsFzGzQKxjMrs";

fn token(lab: &Lab, args: &[&str]) -> Ended {
    lab.run(["token"].into_iter().chain(args.iter().copied()))
}

/// Case 18: `mint` prints the vectors, `verify --at` accepts them.
#[test]
fn the_vectors_are_minted_and_verified() {
    let lab = site(&[]);
    let common = ["mint", "--node", "edge", "--spec", "base", "--iat", "1738800000"];
    assert_eq!(token(&lab, &[&common[..], &["--v1"]].concat()).exits(0).stdout, format!("{V1}\n"));
    let v2 =
        [&common[..], &["--exp", "1739404800", "--aud", "node", "--jti", "AAECAwQFBgcICQoLDA0ODw"]].concat();
    assert_eq!(token(&lab, &v2).exits(0).stdout, format!("{V2}\n"));
    for minted in [V1, V2] {
        token(&lab, &["verify", minted, "--at", "1738800000", "--node", "edge", "--aud", "spec"]).exits(0);
    }
    let said = token(&lab, &["inspect", V2]).exits(0).document();
    assert_eq!(
        said,
        json!({"v": 2, "n": "edge", "s": "base", "iat": 1738800000, "exp": 1739404800, "kid": "9a2db2e2", "aud": "node",
            "jti": "AAECAwQFBgcICQoLDA0ODw"})
    );
}

/// Exit 4 with the code; exit 3 for what cannot be decoded; exit 2 for what cannot be minted.
#[test]
fn refusals_have_their_codes() {
    let lab = site(&[]);
    let at = ["--at", "1738800000", "--json"];
    for (args, code) in [
        (vec!["verify", "x.y"], "E300"),
        (vec!["verify", V2, "--node", "other"], "E301"),
        (vec!["verify", V1, "--aud", "node"], "E304"),
        (vec!["verify", &V2[..V2.len() - 2]], "E300"),
    ] {
        let document = token(&lab, &[args, at.to_vec()].concat()).exits(4).document();
        assert_eq!(document["code"], code);
    }
    token(&lab, &["verify", V2]).exits(4).says("E302");
    token(&lab, &["inspect", "nonsense"]).exits(3).says("E300");
    token(&lab, &["mint", "--node", "edge"]).exits(2);
    token(&lab, &["mint", "--node", "Edge", "--spec", "base"]).exits(2);
    token(&lab, &["mint", "--node", "ann", "--spec", "base", "--aud", "operator"]).exits(2);
    let minted =
        token(&lab, &["mint", "--node", "ann@desk", "--aud", "operator", "--ttl", "7d"]).exits(0).stdout;
    token(&lab, &["verify", minted.trim(), "--aud", "operator"]).exits(0);
    write(&lab, "site.yaml", "server: {accept_v1: false}\n");
    token(&lab, &["verify", V1]).exits(4).says("E300");
    write(&lab, "secrets.yaml", "");
    token(&lab, &["mint", "--node", "edge", "--spec", "base"]).exits(3).says("auth.signing_key");
    token(&lab, &["verify", V1]).exits(4).says("E500");
    write(&lab, "keyring.yaml", "keys: [");
    token(&lab, &["verify", V1]).exits(4).says("E500");
    token(&lab, &["rotate"]).exits(3);
}

/// Case 20, without a server: rotation keeps the old key, revocation counts at once.
#[test]
fn keys_rotate_and_tokens_are_revoked() {
    let lab = site(&[]);
    let mint =
        || token(&lab, &["mint", "--node", "edge", "--spec", "base"]).exits(0).stdout.trim().to_owned();
    let old = mint();
    let rotated = token(&lab, &["rotate", "--json"]).exits(0).document();
    assert_eq!(rotated["verify"][0]["kid"], "9a2db2e2");
    let keyring = lab.path("site-config/keyring.yaml");
    assert_eq!(keyring.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let new = mint();
    assert_eq!(token(&lab, &["inspect", &new]).document()["kid"], rotated["mint"]);
    token(&lab, &["verify", &old]).exits(0);
    token(&lab, &["verify", &new]).exits(0);
    let until = rotated["verify"][0]["until"].to_string();
    token(&lab, &["verify", &old, "--at", &until]).exits(4).says("E301");
    token(&lab, &["verify", &new, "--at", &until]).exits(0);

    token(&lab, &["revoke", &new]).exits(0).says("revoked: token");
    token(&lab, &["revoke", &new]).exits(0).says("already revoked");
    token(&lab, &["verify", &new]).exits(4).says("E303");
    token(&lab, &["verify", &old]).exits(0);
    token(&lab, &["revoke", "--node", "edge"]).exits(0);
    token(&lab, &["verify", &old]).exits(4).says("E303");
    token(&lab, &["verify", &mint()]).exits(0);
    token(&lab, &["revoke", V1]).exits(3).says("--node");
    token(&lab, &["revoke"]).exits(2);
    token(&lab, &["revoke", "--jti", "a", "--node", "b"]).exits(2);
    let shown = lab.read("site-config/keyring.yaml");
    assert!(shown.contains("use: mint") && shown.contains("use: verify"));
    lab.run(["validate"]).exits(0);
}

/// Sections 2 and 8: a token lives a week, an old key a day, unless somebody says otherwise.
#[test]
fn tokens_live_a_week_and_old_keys_a_day() {
    let lab = site(&[]);
    let mint = ["mint", "--node", "edge", "--spec", "base"];
    let lifetime = |more: &[&str]| {
        let minted = token(&lab, &[&mint[..], more].concat()).exits(0).stdout;
        let claims = token(&lab, &["inspect", minted.trim()]).exits(0).document();
        claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap()
    };
    assert_eq!((lifetime(&[]), lifetime(&["--ttl", "1h"])), (7 * 86_400, 3600));
    write(&lab, "site.yaml", "server: {token_ttl: 2d}\n");
    assert_eq!(lifetime(&[]), 2 * 86_400);
    let now = || {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        i64::try_from(since.as_secs()).unwrap()
    };
    let before = now();
    let until =
        token(&lab, &["rotate", "--json"]).exits(0).document()["verify"][0]["until"].as_i64().unwrap();
    assert!((before + 86_400..=now() + 86_400).contains(&until), "{before} {until}");
}

/// A keyring that is written can be read; a token that is minted can be checked.
#[test]
fn what_is_written_can_be_read_again() {
    let lab = site(&[]);
    token(&lab, &["rotate"]).exits(0);
    let before = lab.read("site-config/keyring.yaml");
    for bad in ["a\u{7f}b", " ", "ü", &"a".repeat(129)] {
        token(&lab, &["revoke", "--jti", bad]).exits(2);
    }
    token(&lab, &["rotate", "--overlap", "5000000000000h"]).exits(2).says("ten years");
    let mint = ["mint", "--node", "edge", "--spec", "base"];
    token(&lab, &[&mint[..], &["--ttl", "5000000000000h"]].concat()).exits(2);
    token(&lab, &[&mint[..], &["--iat", "9007199254740992"]].concat()).exits(2);
    token(&lab, &[&mint[..], &["--v1", "--aud", "node"]].concat()).exits(2);
    assert_eq!(lab.read("site-config/keyring.yaml"), before);
}

/// What `site.yaml` says of old tokens is not known if it cannot be read: nothing is accepted.
#[test]
fn a_broken_site_accepts_no_token() {
    let lab = site(&[]);
    token(&lab, &["verify", V1, "--at", "1738800000"]).exits(0);
    write(&lab, "site.yaml", "server: {accept_v1: false}\ncolour: red\n");
    token(&lab, &["verify", V1, "--at", "1738800000"]).exits(4).says("E500");
    token(&lab, &["verify", V2, "--at", "1738800000"]).exits(4).says("E500");
}
