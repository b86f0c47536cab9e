//! Requests outside of any plan: what daemons fetch and put, with the system's certificates.

use std::io;
use std::time::Duration;

use stead_runner::operation::OpError;

use crate::http::client::{Request, Roots, send_uncancelled};

/// What came back, without the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Answer {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Sends `body` to `url` and gives what comes back to `sink`; an error of the sink ends the exchange. Redirects are not
/// followed. Dropping the future ends it.
///
/// # Errors
/// If there is no whole answer within `timeout`.
pub async fn exchange(
    method: &str,
    url: &str,
    body: Vec<u8>,
    timeout: Duration,
    sink: &mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
) -> io::Result<Answer> {
    let request = Request { url, method, headers: Vec::new(), body, roots: Roots::System, timeout };
    let mut take = |bytes: &[u8]| sink(bytes).map_err(|error| OpError::operation(error.to_string()));
    let answer = send_uncancelled(request, &mut take).await;
    let answer = answer.map_err(|error| io::Error::other(error.message))?;
    Ok(Answer { status: answer.status, headers: answer.headers })
}
