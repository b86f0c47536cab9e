//! Keys of the levels below: derived, good for their level alone, and renewed.

use super::*;

const NODES: &str =
    "  - {name: inner, type: vm, spec: base}\n  - {name: leaf, type: vm, spec: base, parent: inner}\n";

/// Returns a token for `leaf` that the level of `inner` mints, and that level's site.
fn mint_below(tree: &Tree) -> (String, String) {
    let below = tree.root(&["inner"]).join("var/lib/stead/delegated/site/m").display().to_string();
    let mint = ["token", "mint", "--node", "leaf", "--spec", "base", "--site", &below];
    let token = tree.lab.run(mint).exits(0).stdout;
    (token.trim().to_owned(), below)
}

/// Whether a token is signed by the key that the level of `inner` derives from `above`.
fn comes_from(tree: &Tree, token: &str, above: &str) -> bool {
    let node = stead_model::NodeName::parse("inner").unwrap();
    let derived = SigningKey::parse(above).unwrap().derive(&SiteKey::parse("m").unwrap(), &node);
    tree.lab.run(["token", "inspect", token]).exits(0).document()["kid"] == derived.kid()
}

/// Case 18: the derived key works where the subtree is run, and is good for that level alone.
#[test]
fn tokens_of_a_hosting_node_are_good_for_its_level() {
    let tree = Tree::new(NODES);
    tree.run("create", &[]).exits(0);
    let (token, below) = mint_below(&tree);
    tree.lab.run(["token", "verify", &token, "--node", "leaf", "--site", &below]).exits(0);
    tree.lab.run(["token", "verify", &token, "--node", "leaf"]).exits(4).says("E301");
    assert!(comes_from(&tree, &token, &"ab".repeat(32)));
}

/// Section 8: a new key names the nodes whose keys come from the old one, and a create renews those.
#[test]
fn a_new_key_names_the_hosting_nodes_that_need_a_create() {
    let tree = Tree::new(&format!("{NODES}  - {{name: alone, type: vm}}\n"));
    let rotate =
        |more: &[&str]| tree.lab.run(["token", "rotate"].into_iter().chain(more.iter().copied())).exits(0);
    assert_eq!(rotate(&["--json"]).document()["hosting"], json!([]), "nobody has any yet");
    tree.run("create", &[]).exits(0);
    assert_eq!(rotate(&["--json"]).document()["hosting"], json!([["m", "inner"]]));
    let said = rotate(&[]).stdout;
    assert!(
        said.contains("inner of m has keys that come from the old one: `stead create` renews them"),
        "{said}"
    );
    assert!(!said.contains("alone") && !said.contains("leaf"), "{said}");
    let keyring: Value = serde_saphyr::from_str(&tree.lab.read("site-config/keyring.yaml")).unwrap();
    let minting = keyring["keys"].as_array().unwrap().iter().find(|key| key["use"] == "mint").unwrap();
    let minting = minting["key"].as_str().unwrap();
    assert!(!comes_from(&tree, &mint_below(&tree).0, minting), "nothing is renewed by itself");
    tree.run("create", &[]).exits(0);
    assert!(comes_from(&tree, &mint_below(&tree).0, minting));
}
