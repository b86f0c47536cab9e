//! The way to a fleet's master: who asks, and where.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_fleet::api::CallError;
use stead_fleet::identity::Identity;
use stead_fleet::service::OPERATOR;
use stead_fleet::wire::{self, Carrier, Client};
use stead_model::fleet::peer::Role;
use stead_model::plan::Digest;
use stead_model::token::join::{JoinClaims, inspect};

use super::call_failure;
use crate::args::FleetWayArgs;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Where the certificate of a daemon is.
pub(super) const IDENTITY: &str = "identity";

/// Returns where a fleet's files are.
pub(super) fn directory(settings: &Settings) -> PathBuf {
    settings.state_dir.path.join("fleet")
}

/// Returns where the certificate of whoever asks is.
pub(super) fn identity_directory(args: &FleetWayArgs, settings: &Settings) -> PathBuf {
    match &args.identity {
        Some(given) => settings.current_dir.join(given),
        // Whoever has the master's account needs no token.
        None => [OPERATOR, IDENTITY]
            .map(|name| directory(settings).join(name))
            .into_iter()
            .find(|directory| directory.exists())
            .unwrap_or_else(|| directory(settings).join(IDENTITY)),
    }
}

/// Returns the fleet's masters, asked by whoever this is.
pub(crate) async fn master(args: &FleetWayArgs, settings: &Settings) -> Result<Arc<Client>, Failure> {
    let user = settings.environment.get("USER").and_then(|user| user.to_str());
    let name = Name { given: None, fallback: Fallback::Like(user.unwrap_or("somebody")) };
    let directory = identity_directory(args, settings);
    client(join(&directory, args, &args.masters, name, None).await?, &args.masters)
}

/// Returns a client that is `identity`, of `masters` or else of those it joined at.
pub(super) fn client(mut identity: Identity, masters: &[String]) -> Result<Arc<Client>, Failure> {
    if !masters.is_empty() {
        identity.masters = masters.to_vec();
    }
    Client::new(carrier()?, identity).map_err(call_failure)
}

/// Returns the identity in `directory`, if somebody joined there.
pub(super) fn load(directory: &Path) -> Result<Option<Identity>, Failure> {
    Identity::load(directory).map_err(|error| Failure::caused_by(FailureKind::Work, error))
}

/// What somebody wants to be called in a fleet.
pub(super) struct Name<'a> {
    /// The only name that will do.
    pub(super) given: Option<&'a str>,
    /// The name if neither it nor the token says one.
    pub(super) fallback: Fallback<'a>,
}

/// What somebody is called whom nobody gave a name.
#[derive(Clone, Copy)]
pub(super) enum Fallback<'a> {
    /// This, and nothing else: machines are known by it.
    Only(&'a str),
    /// This, or something like it if somebody else is called so.
    Like(&'a str),
}

impl Fallback<'_> {
    /// Returns the names to ask for, one after the other. `token` makes the last one like no other.
    fn names(self, token: &str) -> Vec<String> {
        match self {
            Self::Only(name) => vec![name.to_owned()],
            Self::Like(name) => {
                let digits = Digest::of(token.as_bytes()).to_string().chars().take(8).collect::<String>();
                vec![name.to_owned(), format!("{name}-{digits}")]
            }
        }
    }
}

/// Returns who this is: as it joined before, else as its token says, if that is of the `role` that will do.
pub(super) async fn join(
    directory: &Path,
    args: &FleetWayArgs,
    masters: &[String],
    name: Name<'_>,
    role: Option<Role>,
) -> Result<Identity, Failure> {
    if let Some(identity) = load(directory)? {
        let joined = identity.peer().name.as_str();
        return match name.given {
            Some(given) if given != joined => Err(Failure::new(
                FailureKind::Invalid,
                format!("this is to be {given}, but {} has joined as {joined}", directory.display()),
            )
            .hint(format!("call it {joined}, or join as {given} with another --identity"))),
            Some(_) | None => Ok(identity),
        };
    }
    let Some(file) = &args.join_file else {
        let message =
            format!("nobody has joined a fleet here: there is no certificate in {}", directory.display());
        return Err(Failure::new(FailureKind::Unreachable, message).hint(
            "where a master or `stead fleet dev` runs, use its --state-dir; elsewhere mint a token there (`stead fleet token mint`) and give it with --join-file",
        ));
    };
    let token = std::fs::read_to_string(file).map_err(|error| Failure::unreadable(file.display(), &error))?;
    let token = token.trim();
    let claims = inspect(token).ok();
    if let (Some(claims), Some(role)) = (&claims, role) {
        check_role(claims, role)?;
    }
    let claimed = claims.and_then(|claims| claims.name);
    let names = match name.given.or(claimed.as_deref()) {
        Some(name) => vec![name.to_owned()],
        None => name.fallback.names(token),
    };
    let identity = join_as(&names, masters, token).await?;
    identity.save(directory).map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    Ok(identity)
}

/// Refuses a token of another role before it is sent: it would be used up, and what it gives would be of no use.
fn check_role(claims: &JoinClaims, role: Role) -> Result<(), Failure> {
    if claims.role == role {
        return Ok(());
    }
    let has = claims.role;
    let message = format!("the token is for the role {has}, and this is to be a {role}; it was not used");
    Err(Failure::new(FailureKind::Work, message)
        .code("fleet/join-role")
        .hint(format!("mint one with `stead fleet token mint --role {role}`")))
}

/// Joins under the first of these names that nobody else has: a token that was refused for its name is not used up.
async fn join_as(names: &[String], masters: &[String], token: &str) -> Result<Identity, Failure> {
    let carrier = carrier()?;
    let mut names = names.iter().peekable();
    loop {
        let Some(name) = names.next() else {
            return Err(Failure::new(FailureKind::Work, "there is no name to join with"));
        };
        match wire::join(carrier.as_ref(), masters, token, name).await {
            Ok(identity) => return Ok(identity),
            Err(CallError::Refused { code, .. }) if code == "join-name" && names.peek().is_some() => {}
            Err(error) => return Err(call_failure(error)),
        }
    }
}

fn carrier() -> Result<Arc<Carrier>, Failure> {
    Carrier::start().map_err(|error| Failure::caused_by(FailureKind::Work, error))
}

#[cfg(test)]
mod tests {
    use stead_model::ExitCode;

    use super::*;

    /// Section 12: a token is good once; one of another role is refused before it is sent.
    #[test]
    fn a_token_of_another_role_is_not_used_up() {
        let claims = |role| JoinClaims {
            role,
            name: None,
            iat: 0,
            exp: 1,
            jti: "AAECAwQFBgcICQoLDA0ODw".to_owned(),
            ca: Digest::of(b"ca"),
        };
        assert!(check_role(&claims(Role::Worker), Role::Worker).is_ok());
        let refused = check_role(&claims(Role::Observer), Role::Worker).unwrap_err();
        assert_eq!(
            (refused.exit_code(), refused.stable_code().as_ref()),
            (ExitCode::Failed, "fleet/join-role")
        );
        assert!(refused.message().contains("observer"), "{}", refused.message());
        assert!(refused.hints[0].contains("--role worker"), "{:?}", refused.hints);
    }
}
