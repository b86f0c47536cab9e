//! The way to a site's server, for every command that needs one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_drivers::nodes::server_directory;
use stead_drivers::server_client::{ClientError, ServerClient};
use stead_model::node::wire::{Pins, WireCode};
use stead_model::site::secrets::Secret;
use stead_model::token::MAX_BYTES;

use crate::args::{OperatorArgs, TrustArgs};
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// How long a server of this machine may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most of a file of certificates.
const MOST_CERTIFICATES: u64 = 1 << 20;

/// Returns the failure of a request.
pub(super) fn failure(error: ClientError) -> Failure {
    let code = error.code();
    let kind = match code {
        // What was named on the command line does not exist.
        Some(WireCode::E200) => FailureKind::Usage,
        Some(_) | None => FailureKind::of(error.exit_code()),
    };
    let failure = Failure::caused_by(kind, error);
    match code {
        Some(code) => failure.code(code.as_str()),
        None => failure,
    }
}

/// Returns the client of the server at `url`; without flags it is known by `pins`, else by this machine's certificates.
pub(super) fn trusted(
    url: &str,
    trust: &TrustArgs,
    pins: Option<Pins>,
    settings: &Settings,
    output: &Output,
) -> Result<ServerClient, Failure> {
    let client = if trust.insecure {
        output
            .err
            .print_line("[warning] server/insecure: whoever answers is trusted; others may read the token");
        ServerClient::insecure(url)
    } else if let Some(file) = &trust.ca_cert {
        ServerClient::vouched_for(url, read(&settings.current_dir.join(file), MOST_CERTIFICATES)?)
    } else {
        match trust.fingerprint.as_deref().map(pin).or(pins) {
            Some(pins) => ServerClient::pinned(url, &pins),
            None => ServerClient::public(url),
        }
    };
    client.map_err(failure)
}

/// Returns the pin that somebody typed: of a certificate, or of a key.
pub(super) fn pin(text: &str) -> Pins {
    if text.starts_with("sha256:") {
        Pins { fingerprints: Vec::new(), spki_pin: text.to_owned() }
    } else {
        Pins { fingerprints: vec![text.to_owned()], spki_pin: String::new() }
    }
}

/// Returns the token in a file; `-` is standard input.
pub(super) fn token(file: &Path, settings: &Settings) -> Result<Secret, Failure> {
    let bytes = if file == Path::new("-") {
        site::read_stdin()?
    } else {
        read(&settings.current_dir.join(file), 2 * MAX_BYTES as u64)?
    };
    let text = String::from_utf8(bytes).ok().map(|text| text.trim().to_owned());
    match text.filter(|text| !text.is_empty() && text.len() <= MAX_BYTES) {
        Some(text) => Ok(Secret::new(text)),
        None => Err(Failure::new(FailureKind::Invalid, format!("{} holds no token", file.display()))),
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 <= most => Ok(bytes),
        Ok(_) => Err(Failure::new(FailureKind::Invalid, format!("{} is too large", path.display()))),
        Err(error) => Err(Failure::unreadable(path.display(), &error)),
    }
}

/// Returns the client of an operator: of the server that is named, else of the one of this site that runs here.
pub(super) async fn operator(
    args: &OperatorArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ServerClient, Failure> {
    if let Some(url) = &args.server {
        let token = match &args.token_file {
            Some(file) => token(file, settings)?,
            None => settings.server_token().map(Secret::new).ok_or_else(|| {
                Failure::new(FailureKind::Usage, format!("no token for {url}"))
                    .hint("give it with --token-file, or in STEAD_TOKEN")
            })?,
        };
        let pins = settings.server_pin().as_deref().map(pin);
        return Ok(trusted(url, &args.trust, pins, settings, output)?.with_token(token));
    }
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let mut is_silent = false;
    for socket in sockets(&server_directory(&state_dir, &directory.path)) {
        let client = ServerClient::socket(socket);
        match tokio::time::timeout(PATIENCE, client.health()).await {
            // One that is not well answers all the same, and says itself what it cannot do.
            Ok(Ok(()) | Err(ClientError::Refused { .. })) => return Ok(client),
            // Whoever is gone left its socket behind.
            Ok(Err(_)) => {}
            Err(_) => is_silent = true,
        }
    }
    let failure = |message| Failure::new(FailureKind::Unreachable, message);
    if is_silent {
        let message = format!("the server of the site {} does not answer", directory.named());
        return Err(failure(message).hint("`stead server start` replaces one that hangs"));
    }
    let hint = "`stead server start` starts one; one elsewhere: --server URL --token-file FILE";
    Err(failure(format!("no server of the site {} runs here", directory.named())).hint(hint))
}

fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sock");
    let mut sockets: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_socket).collect();
    sockets.sort();
    sockets
}
