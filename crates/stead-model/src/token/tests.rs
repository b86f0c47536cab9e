//! Tokens that are right and wrong.

use proptest::prelude::*;
use std::time::Duration;

use super::*;
use crate::site::keyring::{KeyUse, Keyring, KeyringKey, Revocation};
use crate::{NodeName, SiteKey};

const V1: &str = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzM4ODAwMDAwfQ.ibGxKOmJOeO1osEGnesy4P6UlSZGXbsG_kyvXAr8stI";
const V2: &str = "eyJ2IjoyLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzM4ODAwMDAwLCJleHAiOjE3Mzk0MDQ4MDAsImtpZCI6IjlhMmRiMmUyIiwiYXVkIjoibm9kZSIsImp0aSI6IkFBRUNBd1FGQmdjSUNRb0xEQTBPRHcifQ.nBz6wvqetfuvYdTdpFUixgpj1CJg0qAsFzGzQKxjMrs";
const IAT: i64 = 1_738_800_000;
const EXP: i64 = 1_739_404_800;

fn key(byte: u8) -> SigningKey {
    SigningKey::from_bytes([byte; 32])
}

fn ring(key: &SigningKey) -> LiveRing {
    LiveRing::new(&Keyring::default(), Some(key), IAT).unwrap()
}

fn claims(version: Version) -> Claims {
    Claims { node: "edge".to_owned(), spec: Some(SiteKey::parse("base").unwrap()), iat: IAT, version }
}

fn v2(aud: Audience) -> Claims {
    claims(Version::V2 { exp: EXP, kid: String::new(), aud, jti: "AAECAwQFBgcICQoLDA0ODw".to_owned() })
}

fn check(token: &str, now: i64) -> Result<Claims, RefusalCode> {
    verify(token, Ok(&ring(&key(0xab))), true, now).map_err(|refusal| refusal.code)
}

/// Signs any payload with the vectors' key.
fn signed(payload: &[u8]) -> String {
    let payload = url::encode(payload);
    let signature = url::encode(&key(0xab).mac(payload.as_bytes()).finalize().into_bytes());
    format!("{payload}.{signature}")
}

/// Case 18.
#[test]
fn the_vectors_are_minted_and_verified() {
    let key = key(0xab);
    assert_eq!(key.kid(), "9a2db2e2");
    assert_eq!(mint(&key, &claims(Version::V1 { exp: None })), V1);
    assert_eq!(mint(&key, &v2(Audience::Node)), V2);
    assert_eq!(check(V1, IAT).unwrap().audience(), Audience::Spec);
    let claims = check(V2, IAT).unwrap();
    assert_eq!(
        (claims.node.as_str(), claims.audience(), claims.jti()),
        ("edge", Audience::Node, Some("AAECAwQFBgcICQoLDA0ODw"))
    );
    assert_eq!(inspect(V2).unwrap(), claims);
}

/// Case 18: section 6.
#[test]
fn the_derived_key_is_that_of_the_vector() {
    let derived =
        key(0xab).derive(&SiteKey::parse("nested-test").unwrap(), &NodeName::parse("inner-pve").unwrap());
    assert_eq!(derived.to_hex(), "450f7a32d0d280c1109c5aa56a546d9f2f97a70dcc2aec4b245f5a608b105c6c");
    let token = mint(&derived, &v2(Audience::Node));
    assert!(verify(&token, Ok(&ring(&derived)), true, IAT).is_ok());
    assert_eq!(check(&token, IAT), Err(RefusalCode::E301), "a level below cannot speak for this one");
}

/// Case 19, check 1.
#[test]
fn only_a_bearer_header_carries_a_token() {
    assert_eq!(bearer(Some("Bearer abc")), Ok("abc"));
    for header in [
        None,
        Some(""),
        Some("Bearer"),
        Some("Bearer "),
        Some("bearer abc"),
        Some("Basic abc"),
        Some("Bearer  a"),
        Some("Bearer a b"),
    ] {
        assert_eq!(bearer(header).unwrap_err().code, RefusalCode::E300, "{header:?}");
    }
}

/// Case 19, checks 2 to 4.
#[test]
fn shape_comes_before_key_and_key_before_signature() {
    let (payload, mac) = V2.split_once('.').unwrap();
    let last = &V2[..V2.len() - 1];
    for shape in [
        String::new(),
        ".".to_owned(),
        payload.to_owned(),
        format!("{payload}."),
        format!(".{mac}"),
        format!("{V2}.x"),
        format!("{V2}="),
        format!("{payload}=.{mac}"),
        format!("{payload} .{mac}"),
        format!("{payload}.{mac}A"),
        format!("{last}t"),
        format!("{payload}+.{mac}"),
        "é.é".to_owned(),
        "a".repeat(MAX_BYTES + 1),
    ] {
        for ring in [Ok(&ring(&key(0xab))), Err(&RingError::NoKey)] {
            assert_eq!(verify(&shape, ring, true, IAT).unwrap_err().code, RefusalCode::E300, "{shape}");
        }
    }
    for error in [RingError::NoKey, RingError::BrokenSecrets, RingError::BrokenKeyring, RingError::TooMany(9)]
    {
        assert_eq!(verify(V2, Err(&error), true, IAT).unwrap_err().code, RefusalCode::E500);
    }
    assert_eq!(verify(V2, Ok(&ring(&key(1))), true, IAT).unwrap_err().code, RefusalCode::E301);
    let changed = format!("f{}", &V2[1..]);
    assert_eq!(check(&changed, IAT), Err(RefusalCode::E301));
}

/// Checks 5 and 6.
#[test]
fn signed_payloads_are_still_read_strictly() {
    let full = r#"{"v":2,"n":"edge","s":"base","iat":1738800000,"exp":1739404800,"kid":"9a2db2e2","aud":"node","jti":"x"}"#;
    assert!(check(&signed(full.as_bytes()), IAT).is_ok());
    assert!(
        check(&signed(full.replace("\"v\":2", "\"more\":{\"a\":[null]},\"v\":2").as_bytes()), IAT).is_ok()
    );
    for (from, to) in [
        ("\"v\":2", "\"v\":3"),
        ("\"v\":2", "\"v\":true"),
        ("\"v\":2", "\"v\":2.0"),
        ("\"v\":2", "\"v\":\"2\""),
        ("\"v\":2,", ""),
        ("\"edge\"", "\"Edge\""),
        ("\"edge\"", "\"../x\""),
        ("\"edge\"", "null"),
        ("\"base\"", "\"a/b\""),
        ("\"base\"", "1"),
        ("\"s\":\"base\",", ""),
        ("1738800000", "\"1738800000\""),
        ("1738800000", "-1"),
        ("1738800000", "1e400"),
        ("\"exp\":1739404800", "\"exp\":null"),
        ("\"kid\":\"9a2db2e2\",", ""),
        ("\"jti\":\"x\"", "\"jti\":\"\""),
        ("\"jti\":\"x\"", "\"jti\":\"x\",\"jti\":\"x\""),
        ("\"jti\":\"x\"", "\"jti\":\"x\",\"o\":{\"a\":1,\"a\":2}"),
        ("\"jti\":\"x\"", "\"jti\":\"x\",\"n\":\"edge\""),
        ("}", "}x"),
        ("{", "[{"),
    ] {
        let payload = full.replacen(from, to, 1);
        assert_eq!(check(&signed(payload.as_bytes()), IAT), Err(RefusalCode::E300), "{payload}");
    }
    assert_eq!(check(&signed(&[0xff]), IAT), Err(RefusalCode::E300));
    assert_eq!(check(&signed(full.replace("9a2db2e2", "00000000").as_bytes()), IAT), Err(RefusalCode::E301));
    assert_eq!(verify(V1, Ok(&ring(&key(0xab))), false, IAT).unwrap_err().code, RefusalCode::E300);
    let person = r#"{"v":2,"n":"Ann@desk","iat":1738800000,"exp":1739404800,"kid":"9a2db2e2","aud":"operator","jti":"x"}"#;
    assert_eq!(check(&signed(person.as_bytes()), IAT).unwrap().spec, None);
    assert_eq!(check(&signed(person.replace("operator", "node").as_bytes()), IAT), Err(RefusalCode::E300));
}

/// Check 7.
#[test]
fn clocks_may_differ_a_little() {
    assert!(check(V2, EXP + 59).is_ok() && check(V2, IAT - 300).is_ok());
    assert_eq!(check(V2, EXP + 60), Err(RefusalCode::E302));
    assert_eq!(check(V2, IAT - 301), Err(RefusalCode::E302));
    assert!(check(V1, i64::MAX).is_ok(), "version 1 has no end unless it says so");
    let ends = mint(&key(0xab), &claims(Version::V1 { exp: Some(EXP) }));
    assert_eq!(check(&ends, EXP + 60), Err(RefusalCode::E302));
}

/// Case 20: revocation by id and by node, and a token made right after.
#[test]
fn revoked_tokens_are_refused_and_new_ones_are_not() {
    let verify_with = |keyring: &Keyring, token: &str, now| {
        let ring = LiveRing::new(keyring, Some(&key(0xab)), now).unwrap();
        verify(token, Ok(&ring), true, now).map(drop).map_err(|refusal| refusal.code)
    };
    let by_id = revoke_token(&Keyring::default(), "AAECAwQFBgcICQoLDA0ODw");
    assert_eq!(revoke_token(&by_id, "AAECAwQFBgcICQoLDA0ODw"), by_id);
    assert_eq!(verify_with(&by_id, V2, IAT), Err(RefusalCode::E303));
    assert_eq!(verify_with(&by_id, V1, IAT), Ok(()));
    let edge = NodeName::parse("edge").unwrap();
    let by_node = revoke_node(&Keyring::default(), &edge, IAT);
    assert_eq!(by_node.revoked, [Revocation::Node { node: edge.clone(), before: IAT + 1 }]);
    assert_eq!(verify_with(&by_node, V2, IAT), Err(RefusalCode::E303));
    let ring = LiveRing::new(&by_node, Some(&key(0xab)), IAT).unwrap();
    let again = Claims { iat: ring.issue_time("edge", IAT), ..v2(Audience::Node) };
    assert_eq!(verify_with(&by_node, &mint(&key(0xab), &again), IAT), Ok(()));
    assert_eq!(ring.issue_time("other", IAT), IAT);
    let later = revoke_node(&by_node, &edge, IAT + 10);
    assert_eq!(later.revoked.len(), 1);
    assert_eq!(revoke_node(&later, &edge, IAT), later, "an earlier moment takes nothing back");
    let all = revoke_all_of(&by_node, &edge, IAT);
    assert_eq!(
        all,
        revoke_node(&by_node, &edge, IAT + 1),
        "one minted in that second says that it is of the next"
    );
}

/// A token that held is looked at again while its client waits: revoked, expired or without its key it holds no longer.
#[test]
fn a_token_that_held_may_hold_no_longer() {
    let again = |claims: &Claims, keyring: &Keyring, signing: &SigningKey, now| {
        let ring = LiveRing::new(keyring, Some(signing), now).unwrap();
        verify_again(claims, Ok(&ring), true, now).map_err(|refusal| refusal.code)
    };
    let claims = verify(V2, Ok(&ring(&key(0xab))), true, IAT).unwrap();
    let none = Keyring::default();
    assert_eq!(again(&claims, &none, &key(0xab), IAT), Ok(()));
    let revoked = revoke_node(&none, &NodeName::parse("edge").unwrap(), IAT);
    assert_eq!(again(&claims, &revoked, &key(0xab), IAT), Err(RefusalCode::E303));
    assert_eq!(again(&claims, &none, &key(0xab), EXP + 60), Err(RefusalCode::E302));
    assert_eq!(again(&claims, &none, &key(0xcd), IAT), Err(RefusalCode::E301));
    let refused = verify_again(&claims, Err(&RingError::NoKey), true, IAT).unwrap_err();
    assert_eq!(refused.code, RefusalCode::E500);
}

/// Case 20: old and new hold during the overlap, the old one not after.
#[test]
fn rotation_keeps_the_old_key_for_a_while() {
    let day = |now| Overlap { now, length: Duration::from_secs(24 * 3600) };
    let (old, new) = (key(0xab), key(1));
    let first = rotate(&Keyring::default(), Some(&old), new.clone(), day(IAT)).unwrap();
    let accepts = |keyring: &Keyring, now| {
        verify(V1, Ok(&LiveRing::new(keyring, Some(&old), now).unwrap()), true, now)
            .map(drop)
            .map_err(|refusal| refusal.code)
    };
    assert_eq!(LiveRing::new(&first, Some(&old), IAT).unwrap().minting().unwrap(), &new);
    assert_eq!(accepts(&first, IAT + 24 * 3600 - 1), Ok(()));
    assert_eq!(accepts(&first, IAT + 24 * 3600), Err(RefusalCode::E301));
    // The signing key stays listed, or it would be live again.
    let second = rotate(&first, Some(&old), key(2), day(IAT + 48 * 3600)).unwrap();
    assert_eq!(accepts(&second, IAT + 48 * 3600), Err(RefusalCode::E301));
    assert_eq!(second.keys.len(), 3);
    let third = rotate(&second, Some(&old), key(3), day(IAT + 96 * 3600)).unwrap();
    assert_eq!(third.keys.len(), 3, "the first new key has ended and is gone");
    let none = rotate(&Keyring::default(), None, new, day(IAT)).unwrap();
    assert_eq!(none.keys.len(), 1);
}

#[test]
fn at_most_eight_keys_are_live() {
    let overlap = Overlap { now: IAT, length: Duration::from_secs(60) };
    let mut keyring = Keyring::default();
    for byte in 0..8 {
        keyring = rotate(&keyring, None, key(byte), overlap).unwrap();
    }
    assert_eq!(rotate(&keyring, None, key(9), overlap), Err(RingError::TooMany(9)));
    assert_eq!(LiveRing::new(&keyring, Some(&key(9)), IAT), Err(RingError::TooMany(9)));
    assert!(rotate(&keyring, None, key(9), Overlap { now: IAT + 60, ..overlap }).is_ok());
    assert_eq!(LiveRing::new(&Keyring::default(), None, IAT), Err(RingError::NoKey));
}

#[test]
fn a_keyring_is_read_as_it_was_written() {
    let keyring = Keyring {
        keys: vec![
            KeyringKey { key: key(1), usage: KeyUse::Verify, until: Some(EXP) },
            KeyringKey { key: key(2), usage: KeyUse::Mint, until: None },
        ],
        revoked: vec![
            Revocation::Token { jti: "a\"b:#c".to_owned() },
            Revocation::Node { node: NodeName::parse("edge").unwrap(), before: IAT },
        ],
    };
    for keyring in [keyring, Keyring::default()] {
        let file = crate::site::SiteFile {
            kind: crate::site::FileKind::Keyring,
            stem: "keyring".to_owned(),
            name: "keyring.yaml".to_owned(),
            content: Ok(keyring.to_yaml().into_bytes()),
        };
        let site = crate::Site::read(vec![file]);
        assert_eq!(site.keyring.diagnostics.to_string(), "");
        assert_eq!(site.keyring.value, keyring);
    }
}

/// Checks 9 and 10.
#[test]
fn a_token_is_for_what_it_says() {
    let allowed = |aud: &str| -> Vec<bool> {
        let claims = v2(Audience::parse(aud));
        [Endpoint::SpecList, Endpoint::Spec, Endpoint::Node, Endpoint::Operator]
            .map(|endpoint| check_endpoint(&claims, endpoint).is_ok())
            .to_vec()
    };
    assert_eq!(allowed("spec"), [true, true, false, false]);
    assert_eq!(allowed("node"), [true, true, true, false]);
    assert_eq!(allowed("operator"), [true, false, false, true]);
    assert_eq!(allowed("else"), [false; 4]);
    assert_eq!(check_endpoint(&v2(Audience::Spec), Endpoint::Node).unwrap_err().code, RefusalCode::E304);
    assert_eq!(check_identity(&v2(Audience::Spec), "other").unwrap_err().code, RefusalCode::E301);
    assert!(check_identity(&v2(Audience::Spec), "edge").is_ok());
}

/// Check 11.
#[test]
fn the_claimed_spec_must_resolve() {
    use crate::site::{FileKind, SiteFile};
    let site = |posture: bool, spec: Option<&str>| {
        let file = |kind: FileKind, stem: &str, text: &str| SiteFile {
            kind,
            stem: stem.to_owned(),
            name: kind.path_of(stem),
            content: Ok(text.as_bytes().to_vec()),
        };
        let mut files: Vec<SiteFile> =
            spec.map(|spec| file(FileKind::Spec, "base", spec)).into_iter().collect();
        if posture {
            files.push(file(FileKind::Posture, "dev", "{}"));
        }
        crate::Site::read(files)
    };
    let code =
        |site: &crate::Site| check_spec(&v2(Audience::Node), site).map(drop).map_err(|refusal| refusal.code);
    assert_eq!(code(&site(true, Some("schema_version: 1"))), Ok(()));
    assert_eq!(code(&site(true, None)), Err(RefusalCode::E200));
    assert_eq!(code(&site(false, Some("schema_version: 1"))), Err(RefusalCode::E201));
    let nobody = "schema_version: 1\naccess: {users: [{name: a, ssh_keys: [x]}]}";
    assert_eq!(code(&site(true, Some(nobody))), Err(RefusalCode::E202));
    assert_eq!(code(&site(true, Some("schema_version: 7"))), Err(RefusalCode::E400));
}

#[test]
fn debug_of_a_key_shows_its_name_only() {
    assert_eq!(format!("{:?}", key(0xab)), "SigningKey(9a2db2e2)");
}

proptest! {
    /// Whatever is typed: an answer, never a panic, and never accepted.
    #[test]
    fn nothing_unsigned_is_accepted(token in "[A-Za-z0-9_=.-]{0,200}|\\PC{0,60}") {
        prop_assert!(check(&token, IAT).is_err());
        drop(inspect(&token));
    }

    #[test]
    fn any_signed_payload_is_answered(payload: Vec<u8>, text in "[\\[\\]{}:,\"vnsiatexpkd0-9.tru]{0,80}") {
        for payload in [payload, text.into_bytes()] {
            drop(check(&signed(&payload), IAT));
        }
    }

    /// One changed character never passes.
    #[test]
    fn any_change_is_noticed(at in 0..V2.len(), with in "[A-Za-z0-9_-]") {
        let mut changed = V2.to_owned();
        changed.replace_range(at..=at, &with);
        prop_assume!(changed != V2);
        prop_assert!(check(&changed, IAT).is_err());
    }
}

/// What a keyring could not hold is no id.
#[test]
fn ids_of_tokens_are_short_and_visible() {
    let with = |jti: &str| {
        let jti = serde_json::Value::from(jti);
        signed(
            format!("{{\"v\":2,\"n\":\"edge\",\"s\":\"base\",\"iat\":{IAT},\"exp\":{EXP},\"kid\":\"9a2db2e2\",\"aud\":\"node\",\"jti\":{jti}}}")
                .as_bytes(),
        )
    };
    assert!(check(&with(&"a".repeat(128)), IAT).is_ok());
    for bad in ["", " ", "a b", "\u{7f}", "\u{0}", "ü", &"a".repeat(129)] {
        assert_eq!(check(&with(bad), IAT), Err(RefusalCode::E300), "{bad:?}");
        assert!(inspect(&with(bad)).is_err(), "{bad:?}");
    }
}

/// No key ends later than a keyring can say.
#[test]
fn overlaps_have_an_end() {
    let overlap = |length| Overlap { now: IAT, length: Duration::from_secs(length) };
    let rotated = |length| rotate(&Keyring::default(), Some(&key(1)), key(2), overlap(length));
    assert!(rotated(3600).is_ok());
    assert_eq!(rotated(1 << 53), Err(RingError::TooLong));
    assert_eq!(rotated(u64::MAX), Err(RingError::TooLong));
    use crate::site::settings::parse_lifetime;
    assert!(parse_lifetime("3650d").is_ok());
    for long in ["3651d", "87601h", "5000000000000h"] {
        assert!(parse_lifetime(long).is_err(), "{long}");
    }
}

/// One key mints: the ring's, else the site's own, though the ring lists it for verifying.
#[test]
fn the_own_key_mints_where_no_other_does() {
    let listed = |until| Keyring {
        keys: vec![
            KeyringKey { key: key(1), usage: KeyUse::Verify, until },
            KeyringKey { key: key(2), usage: KeyUse::Verify, until: None },
        ],
        revoked: Vec::new(),
    };
    let ring = LiveRing::new(&listed(None), Some(&key(1)), IAT).unwrap();
    assert_eq!(ring.minting(), Ok(&key(1)));
    let ended = LiveRing::new(&listed(Some(IAT)), Some(&key(1)), IAT).unwrap();
    assert_eq!(ended.minting(), Err(RingError::NoMintKey));
}

/// What the site's defaults are is not known if `site.yaml` is broken: nobody is answered.
#[test]
fn a_broken_site_is_no_fault_of_the_spec() {
    let file = |kind: crate::site::FileKind, stem: &str, text: &str| crate::site::SiteFile {
        kind,
        stem: stem.to_owned(),
        name: kind.path_of(stem),
        content: Ok(text.as_bytes().to_vec()),
    };
    let site = crate::site::Site::read(vec![
        file(crate::site::FileKind::Site, "site", "colour: red\n"),
        file(crate::site::FileKind::Spec, "base", "schema_version: 1\n"),
        file(crate::site::FileKind::Posture, "dev", "{}"),
    ]);
    let refused = check_spec(&v2(Audience::Node), &site).unwrap_err();
    assert_eq!(refused.code, RefusalCode::E500);
}

/// Section 8: what is remembered of a token is enough to see that it is not good any more.
#[test]
fn a_remembered_token_is_judged_without_it() {
    let own = key(0xab);
    let version = Version::V2 { exp: EXP, kid: own.kid(), aud: Audience::Node, jti: "j".to_owned() };
    let claims = claims(version);
    let refusal = |ring: &LiveRing, now| ring.refusal(&claims, now);
    assert_eq!(refusal(&ring(&own), IAT), None);
    assert_eq!(refusal(&ring(&own), EXP), Some(RefusalCode::E302));
    assert_eq!(refusal(&ring(&key(0xcd)), IAT), Some(RefusalCode::E301));
    let node = NodeName::parse("edge").unwrap();
    for revoked in [revoke_token(&Keyring::default(), "j"), revoke_node(&Keyring::default(), &node, IAT)] {
        let ring = LiveRing::new(&revoked, Some(&own), IAT).unwrap();
        assert_eq!(refusal(&ring, EXP), Some(RefusalCode::E303), "also where it has ended");
    }
    let earlier = revoke_node(&Keyring::default(), &node, IAT - 1);
    assert_eq!(refusal(&LiveRing::new(&earlier, Some(&own), IAT).unwrap(), IAT), None);
}
