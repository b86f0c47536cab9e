//! A master somewhere else.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stead_model::WorkerName;
use stead_model::fleet::state::{Assignment, Heartbeat, Publication, Verdict};
use stead_model::fleet::{CommitId, InstanceKey};
use stead_model::token::join;
use stead_runner::clock;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::request::{Answer, Desired, Hello, Request, Secret};
use super::transport::{Link, Mode, Transport};
use super::{DEADLINE, MAX_WAIT};
use crate::api::{Applied, Beat, CallError, HoldOrder, Json, Leader, Master, PipelineReport, StatusFilter};
use crate::identity::{Admitted, Enrolment, Identity, IdentityError, MintOrder, client_config, join_config};

#[cfg(test)]
mod tests;

/// The first wait before masters are tried again.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long one master may take to connect, so that a call that waits for one has time for the next.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a call follows from one master to another.
const HOPS: u32 = 4;
/// How often it is looked whether a certificate has to be renewed.
const RENEWAL_CHECK: Duration = Duration::from_secs(60 * 60);

/// A master somewhere else: the one that leads, found by asking.
///
/// Every call ends within its deadline: 10 seconds, 60 for a publication, 10 beyond what it asks to wait. One that misses it
/// ends the connection. Masters are tried in turn, with growing waits; a call that found none of them says so.
pub struct Client {
    transport: Arc<dyn Transport>,
    masters: Vec<String>,
    who: Mutex<Who>,
    state: AsyncMutex<State>,
}

#[derive(Clone)]
struct Who {
    identity: Arc<Identity>,
    mode: Mode,
}

struct State {
    link: Option<Arc<dyn Link>>,
    /// The master that a call was sent on to.
    told: Option<String>,
    next: usize,
    failures: u32,
    not_before: Instant,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("masters", &self.masters).finish_non_exhaustive()
    }
}

fn away(message: impl Into<String>) -> CallError {
    CallError::Away(message.into())
}

fn refused(error: &IdentityError) -> CallError {
    CallError::Refused { code: error.code().to_owned(), message: error.to_string() }
}

fn unexpected() -> CallError {
    away("the master answered something else than was asked")
}

/// Returns a wait between nothing and what so many failures allow.
fn jittered(failures: u32) -> Duration {
    let most = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_WAIT);
    let mut bytes = [0; 8];
    // Without randomness the whole wait is as good.
    let share = if getrandom::fill(&mut bytes).is_ok() { u64::from_ne_bytes(bytes) } else { u64::MAX };
    let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(share % millis.saturating_add(1))
}

impl Client {
    /// Returns a client of the masters that `identity` knows.
    pub fn new(transport: Arc<dyn Transport>, identity: Identity) -> Result<Arc<Self>, CallError> {
        if identity.masters.is_empty() {
            return Err(CallError::Refused {
                code: "no-masters".to_owned(),
                message: "no master is named; give `--masters`".to_owned(),
            });
        }
        let masters = identity.masters.clone();
        let who = Who { mode: mode(&identity)?, identity: Arc::new(identity) };
        let state = State { link: None, told: None, next: 0, failures: 0, not_before: Instant::now() };
        Ok(Arc::new(Self { transport, masters, who: Mutex::new(who), state: AsyncMutex::new(state) }))
    }

    /// Returns who this client is.
    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.who.lock().unwrap_or_else(PoisonError::into_inner).identity)
    }

    fn mode(&self) -> Mode {
        self.who.lock().unwrap_or_else(PoisonError::into_inner).mode.clone()
    }

    /// Returns the answer to `request`, from whoever leads.
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        let deadline = request.deadline();
        let used = Mutex::new(None);
        match timeout(deadline, self.carry(&request, &used)).await {
            Ok(answer) => answer,
            Err(_) => {
                let used: Option<Arc<dyn Link>> = used.into_inner().unwrap_or_else(PoisonError::into_inner);
                if let Some(link) = used {
                    link.close();
                }
                Err(away(format!("no answer within {} s", deadline.as_secs())))
            }
        }
    }

    async fn carry(
        &self,
        request: &Request,
        used: &Mutex<Option<Arc<dyn Link>>>,
    ) -> Result<Answer, CallError> {
        let mut answer = Err(away("no master leads"));
        for _ in 0..HOPS {
            let link = self.link().await?;
            *used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&link));
            answer = link.call(request.clone()).await;
            match &answer {
                Err(CallError::NotLeader { leader }) => self.follow(&link, leader).await,
                Err(CallError::Away(_)) => {
                    link.close();
                    break;
                }
                Ok(_) | Err(CallError::Refused { .. }) => break,
            }
        }
        answer
    }

    /// Has the next call go to `leader`, or to the next master if none is known.
    async fn follow(&self, from: &Arc<dyn Link>, leader: &str) {
        from.close();
        let mut state = self.state.lock().await;
        if leader.is_empty() {
            state.failures = state.failures.saturating_add(1);
            state.not_before = Instant::now() + jittered(state.failures);
        } else {
            state.told = Some(leader.to_owned());
        }
    }

    /// Returns a connection: the one there is, or a new one. Every master is tried once.
    async fn link(&self) -> Result<Arc<dyn Link>, CallError> {
        let mut state = self.state.lock().await;
        if let Some(link) = &state.link
            && link.is_open()
        {
            return Ok(Arc::clone(link));
        }
        state.link = None;
        let mut last = away("no master answers");
        let tries = self.masters.len() + usize::from(state.told.is_some());
        for _ in 0..tries {
            sleep_until(state.not_before).await;
            let address = match state.told.take() {
                Some(address) => address,
                None => {
                    let next = state.next;
                    state.next = next.wrapping_add(1);
                    self.masters.get(next % self.masters.len()).cloned().unwrap_or_default()
                }
            };
            let mode = self.mode();
            let connected = timeout(CONNECT, self.transport.connect(&address, &mode)).await;
            match connected.unwrap_or_else(|_| Err(away(format!("{address} did not answer in time")))) {
                Ok(link) => {
                    state.failures = 0;
                    state.not_before = Instant::now();
                    state.link = Some(Arc::clone(&link));
                    return Ok(link);
                }
                Err(error) => {
                    state.failures = state.failures.saturating_add(1);
                    state.not_before = Instant::now() + jittered(state.failures);
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Returns who answers.
    pub async fn hello(&self) -> Result<Hello, CallError> {
        let Answer::Hello(hello) =
            self.call(Request::Hello(Hello::new(&self.identity().peer().fleet))).await?
        else {
            return Err(unexpected());
        };
        Ok(hello)
    }

    /// Returns a join token. A master that is too old to make it as it is ordered has made another, which nobody gets.
    pub async fn mint_join(&self, order: MintOrder) -> Result<String, CallError> {
        let (iat, exp, jti) = (order.iat, order.exp, order.jti.clone());
        let Answer::Token(token) = self.call(Request::Mint(order)).await? else {
            return Err(unexpected());
        };
        let made = join::inspect(&token.0).map_err(|_| unexpected())?;
        let is_as_ordered = iat.is_none_or(|iat| iat == made.iat)
            && exp.is_none_or(|exp| exp == made.exp)
            && jti.is_none_or(|jti| jti == made.jti);
        if !is_as_ordered {
            return Err(CallError::Refused {
                code: "version-unsupported".to_owned(),
                message: "the master is too old to make a token with times or an id that are given"
                    .to_owned(),
            });
        }
        Ok(token.0)
    }

    /// Returns every join token that was minted, with what became of it.
    pub async fn enrolments(&self) -> Result<Vec<Enrolment>, CallError> {
        read_enrolments(self.call(Request::Enrolments).await?)
    }

    /// Revokes a token by its id, or everything of somebody by name. Returns what it was.
    pub async fn revoke(&self, what: &str) -> Result<Vec<Enrolment>, CallError> {
        read_enrolments(self.call(Request::Revoke(what.to_owned())).await?)
    }

    /// Takes a new key and certificate, which the next connection shows. Returns the new identity.
    pub async fn renew(&self) -> Result<Arc<Identity>, CallError> {
        let old = self.identity();
        let request = crate::identity::Request::new(&old.peer().name).map_err(|error| refused(&error))?;
        let Answer::Admitted { certificate, authority } =
            self.call(Request::Renew(request.der().to_vec())).await?
        else {
            return Err(unexpected());
        };
        let admitted = Admitted { peer: old.peer().clone(), certificate, authority };
        let new = request.admitted(&admitted, old.masters.clone()).map_err(|error| refused(&error))?;
        if new.peer() != old.peer() {
            return Err(unexpected());
        }
        let who = Who { mode: mode(&new)?, identity: Arc::new(new) };
        let identity = Arc::clone(&who.identity);
        *self.who.lock().unwrap_or_else(PoisonError::into_inner) = who;
        Ok(identity)
    }

    /// Renews the certificate if half of its life is over at `now`, in seconds since 1970, and keeps it in `directory`.
    /// Returns whether it did; what fails leaves the certificate there is.
    pub async fn renew_when_due(&self, directory: &Path, now: i64) -> bool {
        if !self.identity().member().wants_renewal(now) {
            return false;
        }
        let Ok(identity) = self.renew().await else { return false };
        if identity.save(directory).is_err() {
            return false;
        }
        if let Some(link) = self.state.lock().await.link.take() {
            // The next call shows the new certificate; those under way are asked again.
            link.close();
        }
        true
    }

    /// Renews the certificate at its half life and keeps it in `directory`, until `shutdown`. What fails is tried again.
    pub async fn keep_renewed(&self, directory: &Path, shutdown: CancellationToken) {
        loop {
            self.renew_when_due(directory, clock::now().as_micros().div_euclid(1_000_000)).await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(RENEWAL_CHECK) => {}
            }
        }
    }
}

fn mode(identity: &Identity) -> Result<Mode, CallError> {
    let tls = client_config(identity).map_err(|error| refused(&error))?;
    Ok(Mode::Member { tls: Arc::new(tls), fleet: identity.peer().fleet.clone() })
}

fn read_enrolments(answer: Answer) -> Result<Vec<Enrolment>, CallError> {
    let Answer::Json(text) = answer else { return Err(unexpected()) };
    serde_json::from_str(&text).map_err(|_| unexpected())
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[async_trait]
impl Master for Client {
    async fn leader(&self) -> Leader {
        let hello = self.hello().await;
        hello.map(|hello| Leader { address: hello.leader, epoch: hello.epoch }).unwrap_or_default()
    }

    async fn reserve_generation(&self, commit: &CommitId, publisher: &str) -> Result<u64, CallError> {
        let request = Request::Reserve { commit: commit.clone(), publisher: publisher.to_owned() };
        let Answer::Generation(generation) = self.call(request).await? else { return Err(unexpected()) };
        Ok(generation)
    }

    async fn publish(&self, publication: Publication, publisher: &str) -> Result<Verdict, CallError> {
        let verdicts = self.publish_together(vec![publication], publisher).await?;
        verdicts.into_iter().next().ok_or_else(unexpected)
    }

    async fn publish_together(
        &self,
        publications: Vec<Publication>,
        publisher: &str,
    ) -> Result<Vec<Verdict>, CallError> {
        let mut verdicts: Vec<Verdict> = Vec::new();
        // A master of before knows of no others: it takes them one after the other.
        while let [first, rest @ ..] = publications.get(verdicts.len()..).unwrap_or_default() {
            let desired = Desired::together(first, rest, publisher)?;
            let answer = self.call(Request::Publish(Arc::new(desired))).await?;
            let Answer::Verdicts(found) = answer else { return Err(unexpected()) };
            verdicts.extend(found);
        }
        Ok(verdicts)
    }

    async fn assignment(
        &self,
        worker: &WorkerName,
        applied: Applied,
        wait: Duration,
    ) -> Result<Option<Assignment>, CallError> {
        let request = Request::Assignment { worker: worker.clone(), applied, wait: wait.min(MAX_WAIT) };
        let Answer::Assignment(sent) = self.call(request).await? else { return Err(unexpected()) };
        Ok(sent.map(super::SentAssignment::into_assignment))
    }

    async fn report(&self, heartbeat: Heartbeat) -> Result<Beat, CallError> {
        let Answer::Beat(beat) = self.call(Request::Report(Arc::new(heartbeat))).await? else {
            return Err(unexpected());
        };
        Ok(beat)
    }

    async fn status(
        &self,
        after: u64,
        wait: Duration,
        filter: &StatusFilter,
    ) -> Result<(Json, u64), CallError> {
        let request = Request::Status { after, wait: wait.min(MAX_WAIT), filter: to_json(filter) };
        let Answer::Status(status, seq) = self.call(request).await? else { return Err(unexpected()) };
        Ok((Json(status), seq))
    }

    async fn explain(&self, instance: &InstanceKey) -> Result<Json, CallError> {
        let Answer::Json(text) = self.call(Request::Explain(instance.clone())).await? else {
            return Err(unexpected());
        };
        Ok(Json(text))
    }

    async fn snapshot(&self) -> Result<Json, CallError> {
        let Answer::Json(text) = self.call(Request::Snapshot).await? else { return Err(unexpected()) };
        Ok(Json(text))
    }

    async fn report_pipeline(&self, report: PipelineReport) -> Result<(), CallError> {
        match self.call(Request::Pipeline(to_json(&report))).await {
            Ok(Answer::Done) => Ok(()),
            Ok(_) => Err(unexpected()),
            // An older master shows less and does the same.
            Err(CallError::Refused { code, .. }) if code == super::link::UNIMPLEMENTED => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn set_hold(&self, order: HoldOrder, _by: &str) -> Result<String, CallError> {
        let Answer::Text(id) = self.call(Request::Hold(to_json(&order))).await? else {
            return Err(unexpected());
        };
        Ok(id)
    }
}

/// Becomes a member of a fleet: returns the identity that `token` gives at the first of `masters` that answers.
///
/// The token is sent only to a master whose authority is the token's. Keep the identity with [`Identity::save`].
pub async fn join(
    transport: &dyn Transport,
    masters: &[String],
    token: &str,
    name: &str,
) -> Result<Identity, CallError> {
    let refuse = |refusal: join::JoinRefusal| CallError::Refused {
        code: refusal.code.word().to_owned(),
        message: refusal.message,
    };
    let claims = join::inspect(token).map_err(refuse)?;
    if claims.name.as_deref().is_some_and(|own| own != name) {
        let own = claims.name.unwrap_or_default();
        return Err(refuse(join::JoinRefusal::new(
            join::JoinCode::Name,
            format!("the token is for {own}, not for {name}"),
        )));
    }
    let mode = Mode::Joiner(Arc::new(join_config(claims.ca).map_err(|error| refused(&error))?));
    let mut last = away("no master is named; give `--masters`");
    for address in masters {
        let connected = timeout(CONNECT, transport.connect(address, &mode)).await;
        let link = match connected.unwrap_or_else(|_| Err(away(format!("{address} did not answer in time"))))
        {
            Ok(link) => link,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let request = crate::identity::Request::new(name).map_err(|error| refused(&error))?;
        let call = Request::Join { token: Secret(token.to_owned()), csr: request.der().to_vec() };
        let answer = timeout(DEADLINE, link.call(call)).await;
        link.close();
        let answer = answer.unwrap_or_else(|_| Err(away(format!("{address} did not answer in time"))))?;
        let Answer::Admitted { certificate, authority } = answer else { return Err(unexpected()) };
        let peer = crate::identity::Member::read(&certificate).map_err(|error| refused(&error))?.peer;
        let admitted = Admitted { peer, certificate, authority };
        return request.admitted(&admitted, masters.to_vec()).map_err(|error| refused(&error));
    }
    Err(last)
}
