//! The two questions a signature has for ssh-agent: does it hold a key, and will it sign.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ssh_key::{PublicKey, Signature};

const LIST: u8 = 11;
const LISTED: u8 = 12;
const SIGN: u8 = 13;
const SIGNED: u8 = 14;
/// An agent may ask a person before it signs.
const PATIENCE: Duration = Duration::from_secs(120);
/// No answer of an agent is longer.
const LONGEST_ANSWER: u32 = 256 << 10;

/// Why an agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot be talked to.
    #[error("it does not answer")]
    Io(#[from] io::Error),
    /// It refused, or said something else than asked.
    #[error("it refused")]
    Refused,
}

/// Returns whether the agent at `socket` holds `key`.
pub(super) fn holds(socket: &Path, key: &PublicKey) -> Result<bool, AgentError> {
    let wanted = key.to_bytes().map_err(|_| AgentError::Refused)?;
    let answer = ask(socket, &[LIST], LISTED)?;
    let mut rest = answer.get(4..).ok_or(AgentError::Refused)?;
    // Each key is followed by its comment.
    while !rest.is_empty() {
        let (blob, after) = string(rest).ok_or(AgentError::Refused)?;
        if blob == wanted {
            return Ok(true);
        }
        (_, rest) = string(after).ok_or(AgentError::Refused)?;
    }
    Ok(false)
}

/// Returns the signature of `message` that the agent at `socket` makes with `key`.
pub(super) fn sign(socket: &Path, key: &PublicKey, message: &[u8]) -> Result<Signature, AgentError> {
    let blob = key.to_bytes().map_err(|_| AgentError::Refused)?;
    let mut request = vec![SIGN];
    put_string(&mut request, &blob);
    put_string(&mut request, message);
    request.extend_from_slice(&[0; 4]);
    let answer = ask(socket, &request, SIGNED)?;
    let (signature, _) = string(&answer).ok_or(AgentError::Refused)?;
    Signature::try_from(signature).map_err(|_| AgentError::Refused)
}

/// Returns what follows the kind in the answer, which must be of the kind `expected`.
fn ask(socket: &Path, request: &[u8], expected: u8) -> Result<Vec<u8>, AgentError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut message = Vec::new();
    put_string(&mut message, request);
    stream.write_all(&message)?;
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len);
    if len == 0 || len > LONGEST_ANSWER {
        return Err(AgentError::Refused);
    }
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer)?;
    if answer.remove(0) == expected { Ok(answer) } else { Err(AgentError::Refused) }
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("requests are short");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Returns the string that `bytes` begin with, and what follows it.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_at_checked(4)?;
    let len = u32::from_be_bytes(len.try_into().ok()?);
    rest.split_at_checked(len as usize)
}
