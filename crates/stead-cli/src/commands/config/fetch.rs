//! `stead config fetch`: this node's spec, from its server.

use serde_json::json;
use stead_drivers::config::ConfigFiles;
use stead_drivers::node_agent::{self, FetchFailed, NodeFiles, Patience};
use stead_drivers::server_client::{ClientError, ServerClient};
use stead_model::node::wire::Pins;
use stead_model::node::{Bootstrap, path};
use stead_model::site::secrets::Secret;
use stead_model::{ExitCode, NodeName, token};

use crate::args::ConfigFetchArgs;
use crate::commands::{reach, server_way};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ConfigFetchArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let root = settings.root();
    let files = ConfigFiles::below(&root);
    let files = match &args.output {
        Some(directory) => files.kept_in(settings.current_dir.join(directory)),
        None => files,
    };
    let told = node_agent::bootstrap(&NodeFiles::below(&root))
        .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    let (client, node) = asked(args, told.as_ref(), settings, output)?;
    let err = output.err.clone();
    let tell = move |line: &str| err.print_line(line);
    let patience = Patience { attempts: args.attempts, backoff: args.backoff };
    let unwritten = |error: std::io::Error| {
        let place = files.place(path::SPEC);
        Failure::new(FailureKind::Work, format!("cannot write {}: {error}", place.display()))
    };
    match reach::block_on(node_agent::fetch(&client, &node, None, patience, &tell))? {
        Ok(Some(fetched)) => {
            files.put_spec(&fetched.spec).map_err(unwritten)?;
            let place = files.place(path::SPEC);
            if args.json {
                let (spec, digest) = (&fetched.spec.spec, &fetched.digest);
                let document = json!({"node": node, "spec": spec, "spec_digest": digest, "file": place});
                output.out.print(&render_json::document(&document));
            } else {
                output.out.print_line(&format!("{}: {} of {node}", place.display(), fetched.spec.spec));
            }
            Ok(ExitCode::Success)
        }
        // Only who names the one it knows is answered so.
        Ok(None) => Ok(ExitCode::Success),
        Err(failed) => {
            // Why there is no spec matters more than that this cannot be kept.
            if let Err(error) = files.put_failed(&failed.marker(Some(&node), &client.server())) {
                let place = files.place(path::FAILED);
                let line = format!("warning: {} is not written: {error}", place.display());
                output.err.print_line(&line);
            }
            Err(failure(failed))
        }
    }
}

fn failure(failed: FetchFailed) -> Failure {
    let hint = match &*failed.error {
        ClientError::Untrusted { .. } => {
            Some("--fingerprint names the certificate that is meant, --ca-cert who vouches for it")
        }
        ClientError::Refused { .. }
        | ClientError::Unreachable { .. }
        | ClientError::Answer(_)
        | ClientError::Invalid(_) => None,
    };
    let failure = Failure::caused_by(FailureKind::of(failed.error.exit_code()), failed);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Returns whom to ask for which node: flags, then the environment, then what the node was told.
fn asked(
    args: &ConfigFetchArgs,
    told: Option<&Bootstrap>,
    settings: &Settings,
    output: &Output,
) -> Result<(ServerClient, NodeName), Failure> {
    let missing = |what: &str, flag: &str, variable: &str| {
        Failure::new(FailureKind::Usage, format!("no {what} is known")).hint(format!(
            "name it by {flag} or {variable}; a node that was made has it in {}",
            path::BOOTSTRAP
        ))
    };
    let server = args.server.clone().or_else(|| settings.server_url()).or_else(|| Some(told?.server.clone()));
    let server = server.ok_or_else(|| missing("server", "--server", "STEAD_SERVER"))?;
    let token = match &args.token_file {
        Some(file) => Some(server_way::token(file, settings)?),
        None => settings.server_token().map(Secret::new).or_else(|| Some(told?.token.clone())),
    };
    let token = token.ok_or_else(|| missing("token", "--token-file", "STEAD_TOKEN"))?;
    let pins = settings.server_pin().map(|text| server_way::pin(&text)).or_else(|| {
        let told = told?;
        let pins = Pins {
            fingerprints: told.fingerprints.clone(),
            spki_pin: told.spki_pin.clone().unwrap_or_default(),
        };
        Some(pins).filter(|pins| !pins.fingerprints.is_empty() || !pins.spki_pin.is_empty())
    });
    let of_token = || NodeName::parse(&token::inspect(token.expose()).ok()?.node).ok();
    let node = args.identity.clone().or_else(|| Some(told?.node.clone())).or_else(of_token);
    let node = node.ok_or_else(|| {
        Failure::new(FailureKind::Usage, "which node this is is not known").hint("name it by --identity")
    })?;
    let client = server_way::trusted(&server, &args.trust, pins, settings, output)?;
    Ok((client.with_token(token), node))
}
