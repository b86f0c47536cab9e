//! Secrets from where the user said they are.

use std::fs::File;
use std::io::Read;

use stead_model::transport::SecretSource;

use super::settings::expand_home;
use crate::transport::Surroundings;

/// No secret is longer.
const LONGEST: u64 = 64 << 10;

/// Returns the secret, or why there is none; never the secret in an error.
pub(in crate::transport) fn read(source: &SecretSource, around: &Surroundings) -> Result<String, String> {
    match source {
        SecretSource::Literal(text) => Ok(text.clone()),
        SecretSource::Env(name) => match around.variable(name).map(|value| value.to_str()) {
            Some(Some(value)) => Ok(value.to_owned()),
            Some(None) => Err(format!("the environment variable {name} is not text")),
            None => Err(format!("the environment variable {name} is not set")),
        },
        SecretSource::File(path) => {
            let path = expand_home(path, around);
            let read = || -> std::io::Result<String> {
                let mut text = Vec::new();
                File::open(&path)?.take(LONGEST + 1).read_to_end(&mut text)?;
                if text.len() as u64 > LONGEST {
                    return Err(std::io::Error::other(format!("it is longer than {LONGEST} bytes")));
                }
                String::from_utf8(text).map_err(|_| std::io::Error::other("it is not text"))
            };
            let text = read().map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
            // Editors end a file with a newline that is no part of the secret.
            Ok(text
                .strip_suffix('\n')
                .map(|text| text.strip_suffix('\r').unwrap_or(text))
                .unwrap_or(&text)
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "two words\n").unwrap();
        let mut around = Surroundings::default();
        around.environment.insert("P".into(), "from env".into());
        assert_eq!(read(&SecretSource::Env("P".to_owned()), &around).unwrap(), "from env");
        assert_eq!(read(&SecretSource::File(path.display().to_string()), &around).unwrap(), "two words");
        assert_eq!(read(&SecretSource::Literal("x".to_owned()), &around).unwrap(), "x");
        assert!(read(&SecretSource::Env("NO".to_owned()), &around).unwrap_err().contains("NO is not set"));
        std::fs::write(&path, "x".repeat(LONGEST as usize)).unwrap();
        let whole = read(&SecretSource::File(path.display().to_string()), &around).unwrap();
        assert_eq!(whole.len() as u64, LONGEST);
        std::fs::write(&path, "x".repeat(LONGEST as usize + 1)).unwrap();
        let refused = read(&SecretSource::File(path.display().to_string()), &around).unwrap_err();
        assert!(refused.contains("longer than 65536 bytes"), "{refused}");
        assert!(read(&SecretSource::File("/no/such".to_owned()), &around).unwrap_err().contains("/no/such"));
    }
}
