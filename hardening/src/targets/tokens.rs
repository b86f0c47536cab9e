//! Tokens of nodes and operators, and tokens that let somebody join a fleet.

use stead_model::base64::url;
use stead_model::site::Keyring;
use stead_model::token::{Claims, LiveRing, SigningKey, Version, inspect, join, mint, verify, verify_again};

use super::{Target, chosen, text};

pub(super) const TOKEN: Target = Target {
    name: "token",
    about: "tokens of nodes and operators: `s` and a payload that is signed, else the token itself",
    run: token,
    words: &[
        "{\"v\":1,",
        "{\"v\":2,",
        "\"n\":\"edge\"",
        "\"s\":\"base\"",
        "\"iat\":",
        "\"exp\":",
        "\"kid\":\"",
        "\"aud\":\"node\"",
        "\"jti\":\"",
    ],
};

pub(super) const JOIN: Target = Target {
    name: "token-join",
    about: "join tokens: `s` and a payload that is signed, else the token itself",
    run: join_token,
    words: &[
        "sj1.",
        "{\"v\":1,",
        "\"r\":\"worker\"",
        "\"n\":\"w1\"",
        "\"iat\":",
        "\"exp\":",
        "\"jti\":\"",
        "\"ca\":\"",
    ],
};

/// The time of these tests, in seconds since 1970.
const NOW: i64 = 1_800_000_000;

fn key() -> SigningKey {
    SigningKey::from_bytes([7; 32])
}

fn other() -> SigningKey {
    SigningKey::from_bytes([8; 32])
}

/// Returns a token whose payload is `payload`, whatever it says: it is minted for somebody and its payload replaced, so
/// the signature has to be made with the key's own hands.
fn signed(payload: &[u8], prefix: &str) -> String {
    let signed = format!("{prefix}{}", url::encode(payload));
    format!("{signed}.{}", url::encode(&hmac_sha256(&[7; 32], signed.as_bytes())))
}

/// HMAC-SHA256 by its definition: the key is shorter than a block.
fn hmac_sha256(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    use stead_model::plan::Digest;
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        for (place, key) in block.iter_mut().zip(key) {
            *place ^= key;
        }
        block
    };
    let inner = Digest::of(&[pad(0x36).as_slice(), message].concat());
    Digest::of(&[pad(0x5c).as_slice(), &inner.0].concat()).0
}

fn token(bytes: &[u8]) {
    let Some((choice, rest)) = chosen(bytes) else { return };
    let given = if choice == b's' { signed(rest, "") } else { String::from_utf8_lossy(bytes).into_owned() };
    let ring = LiveRing::new(&Keyring::default(), Some(&key()), NOW).expect("one key");
    let strange = LiveRing::new(&Keyring::default(), Some(&other()), NOW).expect("one key");
    let inspected = inspect(&given);
    let refused = verify(&given, Ok(&strange), true, NOW);
    assert!(refused.is_err(), "a token of another site is taken");
    match verify(&given, Ok(&ring), true, NOW) {
        Ok(claims) => {
            assert_eq!(choice, b's', "a signature was guessed");
            assert_eq!(inspected.as_ref(), Ok(&claims));
            assert!(claims.exp().is_none_or(|exp| exp > NOW), "it has expired");
            assert_eq!(verify_again(&claims, Ok(&ring), true, NOW), Ok(()));
            if matches!(claims.version, Version::V1 { .. }) {
                assert!(verify(&given, Ok(&ring), false, NOW).is_err(), "version 1 is not accepted");
            }
            again(&claims, &ring);
        }
        Err(refusal) => check_refusal(&refusal.message, &given),
    }
}

/// A token is not repeated; a word or two could be there by chance, and so could a part of a sentence.
fn check_refusal(message: &str, given: &str) {
    let could_be_token = given.len() >= 20 && !given.contains(' ');
    assert!(!could_be_token || !message.contains(given), "a refusal repeats the token");
}

/// What a token says is said by the token that is minted for it.
fn again(claims: &Claims, ring: &LiveRing) {
    let minted = mint(&key(), claims);
    assert_eq!(verify(&minted, Ok(ring), true, NOW).as_ref(), Ok(claims));
}

fn join_token(bytes: &[u8]) {
    let Some((choice, rest)) = chosen(bytes) else { return };
    let given =
        if choice == b's' { signed(rest, "sj1.") } else { String::from_utf8_lossy(bytes).into_owned() };
    assert!(join::verify(&given, &other(), NOW).is_err(), "a token of another fleet is taken");
    let inspected = join::inspect(&given);
    match join::verify(&given, &key(), NOW) {
        Ok(claims) => {
            assert_eq!(choice, b's', "a signature was guessed");
            assert_eq!(inspected.as_ref(), Ok(&claims));
            assert!(claims.exp > NOW);
            assert!(claims.name.as_deref().is_none_or(|name| claims.role.names(name)));
            assert_eq!(join::verify(&join::mint(&key(), &claims), &key(), NOW).as_ref(), Ok(&claims));
        }
        Err(refusal) => check_refusal(&refusal.message, &given),
    }
    drop(text(bytes).map(|header| stead_model::token::bearer(Some(header))));
}
