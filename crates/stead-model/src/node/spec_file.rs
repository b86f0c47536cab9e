//! A resolved spec as a file: as it came from a driver or a server, and as it lies on a node.

use std::fmt::Write as _;

use serde_json::Value;

use crate::diagnostic::{Diagnostic, Diagnostics, Place};
use crate::site::ResolvedSpec;
use crate::yaml::{self, Codes, Ordered};

/// Returns the resolved spec that `bytes` hold, YAML or JSON, with or without its digest; `name` is what to call them.
///
/// # Errors
/// If it is none, if it is of another version, or if the digest that is in it is not its own.
pub fn read(name: &str, bytes: Vec<u8>) -> Result<ResolvedSpec, Diagnostics> {
    let source = yaml::source(name, bytes, Codes::NODE)?;
    let mut diagnostics = Diagnostics::default();
    let tree = yaml::read(&source, Codes::NODE, &mut diagnostics);
    let Some(tree) = tree.filter(|_| !diagnostics.has_errors()) else { return Err(diagnostics.sorted()) };
    let mut value = tree.root().to_json();
    let digest = value.as_object_mut().and_then(|map| map.remove("digest"));
    let refuse = |code: &'static str, message: String| {
        let problem = Diagnostic::error(code, Place::Named(name.to_owned()), message);
        Err(Diagnostics(vec![
            problem.help("`stead validate` checks specs; the driver or the server resolves them"),
        ]))
    };
    if !value.is_object() {
        return refuse("node/bad-type", "this is not a resolved spec: it is empty or no mapping".to_owned());
    }
    let spec: ResolvedSpec = match serde_json::from_value(value) {
        Ok(spec) => spec,
        Err(error) => return refuse("node/bad-type", format!("this is not a resolved spec: {error}")),
    };
    if spec.schema_version != 1 {
        let message = format!("`schema_version` is {}; this program reads 1", spec.schema_version);
        return refuse("node/version-unsupported", message);
    }
    match digest {
        Some(Value::String(digest)) if digest != spec.digest() => {
            refuse("node/conflict", format!("its digest is {}, not {digest} as it says", spec.digest()))
        }
        Some(_) | None => Ok(spec),
    }
}

/// Returns the text of `spec` for people and programs, its digest above it.
pub fn to_yaml(spec: &ResolvedSpec) -> String {
    let value = serde_json::to_value(spec).expect("a resolved spec is always JSON");
    let mut text = String::new();
    write!(text, "# {}\n{}", spec.digest(), yaml::to_yaml(&Ordered::from(value)))
        .expect("writing to memory does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTOR: &str = r#"{"access":{"posture":"local","security":{"fail2ban":{"enabled":false},"ssh":{"password_authentication":"no","permit_root_login":"prohibit-password","port":22},"sudo":{"nopasswd":true}},"users":[{"name":"ops","ssh_keys":["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk"],"sudo":true}]},"config":{"timezone":"UTC"},"identity":{"domain":"lab.example","hostname":"edge"},"node":"edge","platform":{"packages":["htop","curl","ca-certificates"],"services":{"disable":["rpcbind"],"enable":[]}},"run":{"trigger":"manual"},"schema_version":1,"spec":"base"}"#;
    const DIGEST: &str = "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f";

    #[test]
    fn a_spec_is_read_as_it_comes_and_as_it_lies() {
        let spec = read("-", VECTOR.into()).unwrap();
        assert_eq!(spec.digest(), DIGEST);
        let text = to_yaml(&spec);
        assert!(text.starts_with(&format!("# {DIGEST}\n")), "{text}");
        assert_eq!(read("spec.yaml", text.into_bytes()).unwrap(), spec);
        let served = VECTOR.replacen('{', &format!("{{\"digest\":\"{DIGEST}\","), 1);
        assert_eq!(read("-", served.into_bytes()).unwrap(), spec);
    }

    #[test]
    fn what_is_no_resolved_spec_says_why() {
        let code = |text: String| read("-", text.into_bytes()).unwrap_err().0[0].code;
        assert_eq!(code("a: [".to_owned()), "node/bad-yaml");
        assert_eq!(code("schema_version: 1\n".to_owned()), "node/bad-type");
        assert_eq!(code(String::new()), "node/bad-type");
        assert_eq!(
            code(VECTOR.replace("\"schema_version\":1", "\"schema_version\":2")),
            "node/version-unsupported"
        );
        assert_eq!(code(VECTOR.replacen('{', "{\"digest\":\"sha256:00\",", 1)), "node/conflict");
    }
}
