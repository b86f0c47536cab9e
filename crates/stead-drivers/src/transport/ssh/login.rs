//! Logging in: every way is tried in order, and none hides the next.
//!
//! A server may want several steps. After each it says what it takes next, and that may be a way that stands before the
//! one just taken; a new connection begins with the first step again.

use std::collections::BTreeSet;

use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey};
use russh::{AgentAuthError, MethodKind, MethodSet, Signer};
use stead_runner::transport::{TransportError, TransportErrorKind};

use super::algorithms::accepts;
use super::client::Client;
use super::identity::{Agent, Candidate, Candidates};
use super::settings::Settings;

/// How often a server may ask for more in one keyboard-interactive login.
const MOST_QUESTIONS: usize = 8;

/// How far logging in to one host has come, over all connections it took.
#[derive(Default)]
pub(super) struct Login {
    /// Candidates that came to nothing, by their place: they are not tried again.
    refused: BTreeSet<usize>,
    tried: Vec<String>,
    offered: Vec<&'static str>,
}

/// What became of a login on one connection.
pub(super) enum Step {
    /// It is done.
    In,
    /// The server closed the connection, as it does after too many tries; a new one may go on.
    Closed,
    /// Nothing is left to try.
    Refused,
}

impl Login {
    /// Tries what is left on this connection.
    pub(super) async fn step(
        &mut self,
        handle: &mut Handle<Client>,
        settings: &Settings,
        candidates: &Candidates,
        mut agent: Option<&mut Agent>,
    ) -> Step {
        let user = settings.user.as_str();
        // Costs a round trip and tells what the server takes.
        let mut methods = match handle.authenticate_none(user).await {
            Ok(AuthResult::Success) => return Step::In,
            Ok(AuthResult::Failure { remaining_methods, .. }) => remaining_methods,
            Err(_) => return Step::Closed,
        };
        if handle.is_closed() {
            return Step::Closed;
        }
        self.offered = methods.iter().map(Into::into).collect();
        let mut accepted = BTreeSet::new();
        loop {
            let is_left = |(place, candidate): &(usize, &Candidate)| {
                !self.refused.contains(place) && !accepted.contains(place) && takes(&methods, candidate)
            };
            let Some((place, candidate)) = candidates.list.iter().enumerate().find(is_left) else {
                return Step::Refused;
            };
            let name = candidate.describe();
            let result = attempt(handle, settings, candidate, agent.as_deref_mut(), &methods).await;
            let became = match result {
                Ok(AuthResult::Success) => return Step::In,
                Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
                    if !remaining_methods.is_empty() {
                        methods = remaining_methods;
                    }
                    if partial_success {
                        accepted.insert(place);
                        "accepted, but the server wants more".to_owned()
                    } else {
                        "refused".to_owned()
                    }
                }
                Err(problem) => problem,
            };
            if !accepted.contains(&place) {
                self.refused.insert(place);
            }
            let became = format!("{name}: {became}");
            if !self.tried.contains(&became) {
                self.tried.push(became);
            }
            if handle.is_closed() {
                let is_over = self.refused.len() == candidates.list.len();
                return if is_over { Step::Refused } else { Step::Closed };
            }
        }
    }

    /// How many candidates came to nothing so far: a connection without progress is not worth another.
    pub(super) fn progress(&self) -> usize {
        self.refused.len()
    }

    /// Returns what to say when nothing worked.
    pub(super) fn failure(&self, settings: &Settings, candidates: &Candidates) -> TransportError {
        let (user, name) = (&settings.user, settings.name());
        let mut tried = self.tried.clone();
        tried.extend(candidates.problems.iter().cloned());
        let tried = if tried.is_empty() {
            "nothing, there is no key, agent or password".to_owned()
        } else {
            tried.join("; ")
        };
        let offered = if self.offered.is_empty() { "nothing".to_owned() } else { self.offered.join(", ") };
        TransportError::new(
            TransportErrorKind::Login,
            format!(
                "no way to log in to {name} as {user} worked. Tried: {tried}. The server offers: {offered}"
            ),
        )
    }
}

/// Whether the server takes this kind of login.
fn takes(methods: &MethodSet, candidate: &Candidate) -> bool {
    match candidate {
        Candidate::Agent(_)
        | Candidate::AgentCertificate { .. }
        | Candidate::Key { .. }
        | Candidate::Certificate { .. } => methods.contains(&MethodKind::PublicKey),
        Candidate::Password(_) => {
            methods.contains(&MethodKind::Password) || methods.contains(&MethodKind::KeyboardInteractive)
        }
    }
}

async fn attempt(
    handle: &mut Handle<Client>,
    settings: &Settings,
    candidate: &Candidate,
    agent: Option<&mut Agent>,
    methods: &MethodSet,
) -> Result<AuthResult, String> {
    let user = settings.user.as_str();
    let list = settings.lists.pubkey.as_deref();
    match candidate {
        Candidate::Agent(identity) => {
            let Some(agent) = agent else { return Err("the agent is gone".to_owned()) };
            let algorithm = match identity.as_ref() {
                AgentIdentity::PublicKey { key, .. } => key.algorithm(),
                AgentIdentity::Certificate { certificate, .. } => certificate.algorithm(),
            };
            let hash = hash_for(handle, &algorithm, list).await?;
            match identity.as_ref() {
                AgentIdentity::PublicKey { key, .. } => {
                    handle.authenticate_publickey_with(user, key.clone(), hash, agent).await
                }
                AgentIdentity::Certificate { certificate, .. } => {
                    handle.authenticate_certificate_with(user, certificate.clone(), hash, agent).await
                }
            }
            .map_err(|error| format!("the agent did not sign: {error}"))
        }
        Candidate::AgentCertificate { key, certificate, .. } => {
            let Some(agent) = agent else { return Err("the agent is gone".to_owned()) };
            let hash = hash_for(handle, &certificate.algorithm(), list).await?;
            let key = PublicKey::clone(key).into();
            let signed = handle
                .authenticate_certificate_with(
                    user,
                    certificate.as_ref().clone(),
                    hash,
                    &mut ByKey { agent, key },
                )
                .await;
            signed.map_err(|error| format!("the agent did not sign: {error}"))
        }
        Candidate::Key { key, .. } => {
            let hash = hash_for(handle, &key.algorithm(), list).await?;
            let key = PrivateKeyWithHashAlg::new(key.clone(), hash);
            handle.authenticate_publickey(user, key).await.map_err(|error| error.to_string())
        }
        Candidate::Certificate { key, certificate, .. } => {
            hash_for(handle, &key.algorithm(), list).await?;
            let sent =
                handle.authenticate_openssh_cert(user, key.clone(), certificate.as_ref().clone()).await;
            sent.map_err(|error| error.to_string())
        }
        Candidate::Password(password) => {
            if methods.contains(&MethodKind::Password) {
                let result = handle.authenticate_password(user, password).await;
                let result = result.map_err(|error| error.to_string())?;
                // A server may refuse the one way and take the other, or want both.
                let goes_on = matches!(&result, AuthResult::Failure { remaining_methods, .. }
                    if remaining_methods.contains(&MethodKind::KeyboardInteractive));
                if !goes_on || handle.is_closed() {
                    return Ok(result);
                }
            }
            answer_questions(handle, user, password).await
        }
    }
}

/// Signs for a certificate that the agent does not know, by the key that it has.
struct ByKey<'a> {
    agent: &'a mut Agent,
    key: AgentIdentity,
}

impl Signer for ByKey<'_> {
    type Error = AgentAuthError;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        self.agent.auth_sign(&self.key, hash, to_sign).await
    }
}

/// Returns the hash an RSA signature is to have, or why the key may not be used.
async fn hash_for(
    handle: &Handle<Client>,
    algorithm: &Algorithm,
    list: Option<&str>,
) -> Result<Option<HashAlg>, String> {
    let unaccepted = || "left out by PubkeyAcceptedAlgorithms".to_owned();
    if !matches!(algorithm, Algorithm::Rsa { .. }) {
        return if accepts(list, algorithm.as_str()) { Ok(None) } else { Err(unaccepted()) };
    }
    // A server that does not say what it takes is taken for a modern one.
    let best = handle.best_supported_rsa_hash().await.ok().flatten().unwrap_or(Some(HashAlg::Sha512));
    let wanted = [best, Some(HashAlg::Sha512), Some(HashAlg::Sha256)];
    let fits = |hash: &Option<HashAlg>| accepts(list, Algorithm::Rsa { hash: *hash }.as_str());
    wanted.into_iter().find(fits).ok_or_else(unaccepted)
}

/// Gives the password to every hidden question.
async fn answer_questions(
    handle: &mut Handle<Client>,
    user: &str,
    password: &str,
) -> Result<AuthResult, String> {
    let text = |error: russh::Error| error.to_string();
    let mut response = handle.authenticate_keyboard_interactive_start(user, None).await.map_err(text)?;
    for _ in 0..MOST_QUESTIONS {
        match response {
            KeyboardInteractiveAuthResponse::Success => return Ok(AuthResult::Success),
            KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success } => {
                return Ok(AuthResult::Failure { remaining_methods, partial_success });
            }
            KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => {
                let answers = prompts
                    .iter()
                    .map(|prompt| if prompt.echo { String::new() } else { password.to_owned() })
                    .collect();
                response = handle.authenticate_keyboard_interactive_respond(answers).await.map_err(text)?;
            }
        }
    }
    Err("the server asks without end".to_owned())
}
