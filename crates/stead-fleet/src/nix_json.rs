//! What Nix prints, in every shape it has had.
//!
//! `path-info --json` is a list (2.8), a map by path (2.19), or `{version, storeDir, info}` by base name (2.33) with hashes as
//! objects and, later (2.35), signatures as objects. `build --json` is a list of outputs, each a text or an object.

use serde_json::Value;
use stead_model::base64;
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::nix_signature::{PathFacts, from_nix32};

/// What is known of a path: its facts, or that it is not there.
pub(crate) type PathInfo = (StorePath, Option<PathFacts>);

/// Returns what `path-info --json` says of each path, or what cannot be read.
pub(crate) fn path_infos(text: &str) -> Result<Vec<PathInfo>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("path-info: {error}"))?;
    match &value {
        Value::Array(rows) => {
            let path = |row: &Value| row.get("path").and_then(Value::as_str).map(str::to_owned);
            rows.iter().map(|row| read_info(&path(row).unwrap_or_default(), row)).collect()
        }
        Value::Object(fields) => {
            let rows = match fields.get("info") {
                Some(Value::Object(rows)) if fields.contains_key("version") => rows,
                Some(_) | None => fields,
            };
            rows.iter().map(|(path, row)| read_info(path, row)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Err("path-info: neither a list nor a map".to_owned())
        }
    }
}

fn read_info(path: &str, row: &Value) -> Result<PathInfo, String> {
    let bad = |what: &str| format!("path-info of `{path}`: {what}");
    let path = whole_path(path).ok_or_else(|| bad("no store path"))?;
    if row.is_null() || row.get("valid") == Some(&Value::Bool(false)) {
        return Ok((path, None));
    }
    let nar_sha256 = row.get("narHash").and_then(read_hash).ok_or_else(|| bad("no narHash"))?;
    let nar_size = row.get("narSize").and_then(Value::as_u64).ok_or_else(|| bad("no narSize"))?;
    let listed = row.get("references").and_then(Value::as_array).ok_or_else(|| bad("no references"))?;
    let references: Option<Vec<StorePath>> =
        listed.iter().map(|reference| whole_path(reference.as_str()?)).collect();
    let references = references.ok_or_else(|| bad("a reference is no store path"))?;
    Ok((path.clone(), Some(PathFacts { path, nar_sha256, nar_size, references })))
}

/// Returns a store path from itself or from its base name.
fn whole_path(text: &str) -> Option<StorePath> {
    StorePath::parse(text).or_else(|| StorePath::parse(&format!("/nix/store/{text}")))
}

/// Returns the SHA-256 that a text or an object names.
fn read_hash(value: &Value) -> Option<[u8; 32]> {
    match value {
        Value::String(text) => parse_hash(text),
        Value::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Value::as_str);
            (text("algorithm")? == "sha256").then_some(())?;
            let hash = text("hash")?;
            match text("format").unwrap_or("base64") {
                "base64" => base64::decode(hash)?.try_into().ok(),
                "nix32" | "base32" => from_nix32(hash, 32)?.try_into().ok(),
                "base16" => Some(stead_model::plan::Digest::parse(hash)?.0),
                _ => None,
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// Returns the bits of `sha256-BASE64`, `sha256:NIX32` or `sha256:HEX`.
pub(crate) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    if let Some(text) = text.strip_prefix("sha256-") {
        return base64::decode(text)?.try_into().ok();
    }
    let text = text.strip_prefix("sha256:")?;
    match text.len() {
        52 => from_nix32(text, 32)?.try_into().ok(),
        64 => Some(stead_model::plan::Digest::parse(text)?.0),
        _ => None,
    }
}

/// Returns the paths that `build --json` made, or what cannot be read.
pub(crate) fn built(text: &str) -> Result<Vec<StorePath>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("build: {error}"))?;
    let rows = value.as_array().ok_or("build: not a list")?;
    let mut paths = Vec::new();
    for row in rows {
        // A path that is built of nothing is its own output.
        let outputs: Vec<&Value> = match (row, row.get("outputs")) {
            (_, Some(Value::Object(outputs))) => outputs.values().collect(),
            (Value::String(_), _) => vec![row],
            (_, Some(_) | None) => return Err("build: a row without outputs".to_owned()),
        };
        for output in outputs {
            let text = output.as_str().or_else(|| output.get("path").and_then(Value::as_str));
            let path = text.and_then(whole_path).ok_or("build: an output that is no store path")?;
            paths.push(path);
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";
    const LIB: &str = "d6k05ahk2h22h5m5iq4zl27qp5i2fsxg-lib";
    const SRI: &str = "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=";

    /// Case 6: all shapes of path-info parse to the same values.
    #[test]
    fn every_shape_of_path_info_says_the_same() {
        let (web, lib) = (format!("/nix/store/{WEB}"), format!("/nix/store/{LIB}"));
        let nix32 = "sha256:04zwf782yjwnh3q6hz5izfd6jyip8kgw6g6yj43fiqhbyhdd0dqw";
        let hash = &SRI[7..];
        let shapes = [
            // 2.8: a list, with what is not there in it.
            format!(
                r#"[{{"path":"{web}","narHash":"{SRI}","narSize":120,"references":["{lib}"],"deriver":"x","registrationTime":1,"ultimate":true}},{{"path":"{lib}","valid":false}}]"#
            ),
            format!(
                r#"[{{"path":"{web}","narHash":"{nix32}","narSize":120,"references":["{lib}"],"signatures":["lab-1:AAAA"]}},{{"path":"{lib}","valid":false}}]"#
            ),
            // 2.19: a map by path.
            format!(
                r#"{{"{web}":{{"ca":null,"deriver":null,"narHash":"{SRI}","narSize":120,"references":["{lib}"],"signatures":["lab-1:AAAA"],"ultimate":false}},"{lib}":null}}"#
            ),
            // 2.33: by base name, with hashes as objects.
            format!(
                r#"{{"version":2,"storeDir":"/nix/store","info":{{"{WEB}":{{"version":2,"narHash":{{"algorithm":"sha256","format":"base64","hash":"{hash}"}},"narSize":120,"references":["{LIB}"],"signatures":["lab-1:AAAA"]}},"{LIB}":null}}}}"#
            ),
            // 2.35: signatures as objects.
            format!(
                r#"{{"version":3,"storeDir":"/nix/store","info":{{"{WEB}":{{"version":3,"narHash":"{SRI}","narSize":120,"references":["{LIB}"],"signatures":[{{"keyName":"lab-1","sig":"AAAA"}}]}},"{LIB}":null}}}}"#
            ),
        ];
        let sorted = |text: &String| {
            let mut found = path_infos(text).unwrap();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found
        };
        let expected = sorted(&shapes[0]);
        assert_eq!(expected.len(), 2);
        assert_eq!(expected[0].1, None, "what is not there is told apart");
        let facts = expected[1].1.as_ref().unwrap();
        assert_eq!((facts.sri().as_str(), facts.nar_size, facts.references.len()), (SRI, 120, 1));
        for shape in &shapes {
            assert_eq!(sorted(shape), expected, "{shape}");
        }
        for bad in ["", "3", "[{}]", r#"[{"path":"/tmp/x"}]"#, r#"{"f":"#] {
            assert!(path_infos(bad).is_err(), "{bad}");
        }
    }

    /// Case 6: all shapes of build outputs parse to the same values.
    #[test]
    fn every_shape_of_a_build_says_the_same() {
        let shapes = [
            format!(r#"[{{"drvPath":"/nix/store/{LIB}.drv","outputs":{{"out":"/nix/store/{WEB}"}}}}]"#),
            format!(
                r#"[{{"drvPath":"/nix/store/{LIB}.drv","outputs":{{"out":"/nix/store/{WEB}"}},"startTime":1,"stopTime":2}}]"#
            ),
            format!(r#"[{{"drvPath":"{LIB}.drv","outputs":{{"out":"{WEB}"}}}}]"#),
            format!(r#"[{{"drvPath":"{LIB}.drv","outputs":{{"out":{{"path":"/nix/store/{WEB}"}}}}}}]"#),
            format!(r#"["/nix/store/{WEB}"]"#),
        ];
        for shape in &shapes {
            let paths = built(shape).unwrap();
            assert_eq!(paths.iter().map(StorePath::base_name).collect::<Vec<_>>(), [WEB], "{shape}");
        }
        for bad in ["", "{}", "[{}]", r#"[{"outputs":{"out":3}}]"#] {
            assert!(built(bad).is_err(), "{bad}");
        }
    }
}
