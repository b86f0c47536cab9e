//! Which values the keys of inputs get.

use super::*;

fn world() -> World {
    World::cluster().file("config.env", "BASE_DOMAIN=lab\n").file(
        "profiles/secrets.env",
        "OIDC_CLIENT_ID=fake-client\nOIDC_CLIENT_SECRET=fake-secret\nOAUTH_COOKIE_SECRET=0123456789abcdef\nCLICKSTACK_API_KEY=fake-api-key\nCLICKSTACK_INGESTION_KEY=fake-ingestion\n",
    )
}

fn documents(
    world: &World,
    selected: &[&str],
) -> (BTreeMap<String, BTreeMap<String, InputValue>>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let documents = inputs(&world.catalogue, &world.values(), &steps(selected), &mut diagnostics);
    (documents, diagnostics)
}

#[test]
fn every_key_takes_the_variable_of_its_name_or_from() {
    let (found, diagnostics) = documents(&world(), &["access", "runtime-inputs"]);
    assert!(diagnostics.0.is_empty(), "{diagnostics}");
    let rows: Vec<(&str, &str)> =
        found["runtime"].iter().map(|(key, input)| (key.as_str(), input.value.as_str())).collect();
    assert_eq!(
        rows,
        [
            ("CLICKSTACK_API_KEY", "fake-api-key"),
            ("CLICKSTACK_INGESTION_KEY", "fake-ingestion"),
            ("OAUTH_COOKIE_SECRET", "0123456789abcdef"),
            ("OIDC_CLIENT_ID", "fake-client"),
            ("OIDC_CLIENT_SECRET", "fake-secret"),
        ]
    );
    let from = World::new(&CLUSTER.replace(
        "OIDC_CLIENT_ID: { when: FEAT_OAUTH2_PROXY, required: true }",
        "client: { from: OIDC_CLIENT_ID }",
    ));
    let from = World { catalogue: from.catalogue, ..world() };
    assert_eq!(documents(&from, &["runtime-inputs"]).0["runtime"]["client"].value, "fake-client");
    assert!(!format!("{found:?}").contains("fake"));
}

#[test]
fn inputs_are_looked_at_only_if_a_step_with_them_is_selected() {
    let (found, diagnostics) = documents(&World::cluster(), &["access", "config-inputs"]);
    assert!(found.is_empty() && diagnostics.0.is_empty());
}

/// Case 18: 15 bytes are refused, 16, 24 and 32 pass, and without the feature 15 pass.
#[test]
fn a_rule_acts_only_while_its_when_holds() {
    for (length, is_fine) in [(15, false), (16, true), (17, false), (24, true), (32, true), (33, false)] {
        let world = world().set("OAUTH_COOKIE_SECRET", &"x".repeat(length));
        let (_, diagnostics) = documents(&world, &["runtime-inputs"]);
        let expected: Vec<String> = if is_fine {
            Vec::new()
        } else {
            vec![format!(
                "value/rule steps.yaml:41: the input `OAUTH_COOKIE_SECRET` ({length} bytes, from --set) must have 16 or 24 or 32 bytes"
            )]
        };
        assert_eq!(told(&diagnostics, Severity::Error), expected);
    }
    let without = world().set("OAUTH_COOKIE_SECRET", &"x".repeat(15)).set("FEAT_OAUTH2_PROXY", "false");
    let (found, diagnostics) = documents(&without, &["runtime-inputs"]);
    assert!(!diagnostics.has_errors(), "{diagnostics}");
    assert_eq!(found["runtime"]["OAUTH_COOKIE_SECRET"].value.len(), 15);
}

/// Case 18: the warning names both keys, and both have one value.
#[test]
fn a_fallback_is_used_with_a_warning_that_names_both_keys() {
    let mut world = world();
    let secrets = world.files["profiles/secrets.env"].replace("CLICKSTACK_INGESTION_KEY=fake-ingestion", "");
    world = world.file("profiles/secrets.env", &secrets);
    let (found, diagnostics) = documents(&world, &["runtime-inputs"]);
    assert!(!diagnostics.has_errors());
    let warnings = diagnostics.to_string();
    for words in ["`CLICKSTACK_INGESTION_KEY`", "`CLICKSTACK_API_KEY`", "set it after the first login"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    assert_eq!(diagnostics.0.len(), 1);
    let runtime = &found["runtime"];
    assert_eq!(runtime["CLICKSTACK_INGESTION_KEY"].value, runtime["CLICKSTACK_API_KEY"].value);
    assert_eq!(runtime["CLICKSTACK_INGESTION_KEY"].fallback.as_deref(), Some("CLICKSTACK_API_KEY"));
    let off = world.set("FEAT_OTEL_K8S", "false");
    let (found, diagnostics) = documents(&off, &["runtime-inputs"]);
    assert!(diagnostics.0.is_empty(), "{diagnostics}");
    assert_eq!(found["runtime"]["CLICKSTACK_INGESTION_KEY"].value, "");
}

#[test]
fn everything_required_that_is_missing_is_told_of_at_once() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=lab\n");
    let (found, diagnostics) = documents(&world, &["runtime-inputs"]);
    let errors = told(&diagnostics, Severity::Error);
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert!(errors.iter().all(|error| error.starts_with("value/required steps.yaml:")), "{errors:?}");
    assert!(errors[0].ends_with("it is required while FEAT_CLICKSTACK || FEAT_OTEL_K8S: FEAT_CLICKSTACK is true from default, FEAT_OTEL_K8S is true from default"), "{errors:?}");
    assert_eq!(found["runtime"].len(), 5);
    assert!(found["runtime"].values().all(|input| input.value.is_empty()));
}

#[test]
fn fallbacks_are_followed_over_several_keys() {
    let yaml = CLUSTER.replace(
        "      CLICKSTACK_API_KEY: { when: FEAT_CLICKSTACK || FEAT_OTEL_K8S, required: true }\n",
        "      CLICKSTACK_API_KEY: { when: FEAT_CLICKSTACK, required: true, fallback: OIDC_CLIENT_ID }\n",
    );
    let world = World::new(&yaml).file("config.env", "BASE_DOMAIN=lab\nOIDC_CLIENT_ID=client\nOIDC_CLIENT_SECRET=secret\nOAUTH_COOKIE_SECRET=0123456789abcdef\n");
    let (found, diagnostics) = documents(&world, &["runtime-inputs"]);
    assert!(!diagnostics.has_errors(), "{diagnostics}");
    assert_eq!(
        found["runtime"]["CLICKSTACK_INGESTION_KEY"],
        InputValue { value: "client".into(), fallback: Some("OIDC_CLIENT_ID".into()) }
    );
    let off = world.set("FEAT_CLICKSTACK", "false");
    assert_eq!(documents(&off, &["runtime-inputs"]).0["runtime"]["CLICKSTACK_INGESTION_KEY"].value, "");
}
