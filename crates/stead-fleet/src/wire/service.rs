//! What is offered on a connection: [`Service`] to members, [`Door`] to everybody else.
//!
//! Both check who calls and what is asked, on the thread of connections; the master's own work runs outside of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stead_model::fleet::peer::{Method, Role};
use stead_model::fleet::state::Verdict;
use stead_model::{WorkerName, fleet::state::Publication};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::convert::{self, refusal, to_error};
use super::fleet_capnp::{join, master};
use super::request::{Hello, SentAssignment};
use super::serve::Hall;
use super::{MAX_CALLS, MAX_MESSAGE, MAX_WAIT, PROTO_MAJOR, forbidden};
use crate::api::{Applied, CallError, HoldOrder, PipelineReport, StatusFilter};
use crate::identity::{IdentityError, Member, MintOrder};

/// The most calls that somebody without a certificate may make.
const DOOR_CALLS: u32 = 16;
/// Room for the frame of an answer.
const FRAME: usize = 4_096;

fn identity_error(error: &IdentityError) -> capnp::Error {
    match error {
        IdentityError::Join(refused) => refusal(refused.code.word(), &refused.message),
        IdentityError::Refused { code, message } => refusal(code, message),
        IdentityError::Ledger(_)
        | IdentityError::Make(_)
        | IdentityError::Unusable(_)
        | IdentityError::File { .. } => refusal(error.code(), &error.to_string()),
    }
}

fn check_version(me: &Hello) -> capnp::Result<()> {
    if me.is_spoken() {
        return Ok(());
    }
    Err(refusal(
        "version-unsupported",
        &format!(
            "version {} of the protocol is not spoken here, but {PROTO_MAJOR} and {}; upgrade masters first",
            me.proto_major,
            PROTO_MAJOR.saturating_sub(1)
        ),
    ))
}

fn check_size(text: &str) -> capnp::Result<()> {
    if text.len() + FRAME <= MAX_MESSAGE {
        return Ok(());
    }
    Err(refusal("too-large", "the answer is larger than 64 MiB; ask for one group, worker or VM"))
}

/// Ends what runs outside when nobody waits for it any more.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Hall {
    /// Does `work` outside of the thread of connections, to its end even if the caller goes away.
    async fn outside<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> capnp::Result<T> {
        let done = self.outside.spawn(work).await;
        done.map_err(|_| refusal("internal", "the master failed at this; see its log"))
    }

    /// Waits outside of the thread of connections, for as long as the caller is there.
    async fn waiting<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> capnp::Result<T> {
        let task = self.outside.spawn(work);
        let _abort = Abort(task.abort_handle());
        task.await.map_err(|_| refusal("internal", "the master failed at this; see its log"))
    }

    async fn me(&self) -> capnp::Result<Hello> {
        let master = Arc::clone(&self.master);
        let leader = self.waiting(async move { master.leader().await }).await?;
        Ok(Hello { leader: leader.address, epoch: leader.epoch, ..Hello::new(self.authority.fleet()) })
    }
}

/// What members are offered: what their role may do.
pub(super) struct Service {
    hall: Rc<Hall>,
    member: Member,
    calls: Cell<usize>,
    is_unspoken: Cell<bool>,
    /// Cancelled once a newer session speaks for this worker.
    session: RefCell<Option<CancellationToken>>,
}

/// A call that is under way.
struct Entered(Rc<Service>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get().saturating_sub(1));
    }
}

fn replaced() -> capnp::Error {
    refusal("replaced", "another process speaks for this worker now; this one changes nothing any more")
}

impl Service {
    pub(super) fn new(hall: Rc<Hall>, member: Member) -> Self {
        Self { hall, member, calls: Cell::new(0), is_unspoken: Cell::new(false), session: RefCell::new(None) }
    }

    /// Begins a call, if the caller may make it.
    fn enter(self: &Rc<Self>, method: Method) -> capnp::Result<Entered> {
        if self.is_unspoken.get() && method != Method::Hello {
            return Err(refusal("version-unsupported", "this version of the protocol is not spoken here"));
        }
        if !self.member.peer.role.may(method) {
            return Err(self.forbid(&forbidden(self.member.peer.role, method)));
        }
        if self.calls.get() >= MAX_CALLS {
            return Err(refusal("busy", "too many calls at once on one connection"));
        }
        self.calls.set(self.calls.get() + 1);
        Ok(Entered(Rc::clone(self)))
    }

    /// Returns that the caller may not do this, and writes it down.
    fn forbid(&self, why: &str) -> capnp::Error {
        self.hall.authority.note_refused(&self.member.peer.to_string(), "forbidden", why);
        refusal("forbidden", why)
    }

    /// Checks that a worker speaks for itself.
    fn check_worker(&self, worker: &WorkerName) -> capnp::Result<()> {
        let peer = &self.member.peer;
        if peer.role == Role::Worker && peer.name != worker.as_str() {
            return Err(self.forbid(&format!("the certificate is that of {}, not of {worker}", peer.name)));
        }
        Ok(())
    }

    /// Returns who publishes: what the certificate says, not what was sent.
    fn publisher(&self, sent: String) -> String {
        match self.member.peer.role {
            Role::Publisher => self.member.peer.name.clone(),
            Role::Observer | Role::Worker | Role::Operator | Role::Master => sent,
        }
    }

    /// Waits for `work`, unless a newer session speaks for this worker before it is done.
    async fn unless_replaced<T>(&self, work: impl Future<Output = capnp::Result<T>>) -> capnp::Result<T> {
        let session = self.session.borrow().clone();
        let Some(session) = session else { return work.await };
        tokio::select! {
            biased;
            () = session.cancelled() => Err(replaced()),
            done = work => done,
        }
    }
}

fn wait(millis: u32) -> Duration {
    Duration::from_millis(u64::from(millis)).min(MAX_WAIT)
}

impl master::Server for Service {
    async fn hello(
        self: Rc<Self>,
        params: master::HelloParams,
        mut results: master::HelloResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::Hello)?;
        let me = convert::read_hello(params.get()?.get_me()?)?;
        self.is_unspoken.set(!me.is_spoken());
        check_version(&me)?;
        let you = self.hall.me().await?;
        convert::write_hello(results.get().init_you(), &you);
        Ok(())
    }

    async fn reserve_generation(
        self: Rc<Self>,
        params: master::ReserveGenerationParams,
        mut results: master::ReserveGenerationResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::ReserveGeneration)?;
        let params = params.get()?;
        let commit = convert::commit(params.get_commit())?;
        let publisher = self.publisher(convert::text(params.get_publisher())?);
        let master = Arc::clone(&self.hall.master);
        let work = async move { master.reserve_generation(&commit, &publisher).await };
        let generation = self.hall.outside(work).await?.map_err(|error| to_error(&error))?;
        results.get().set_generation(generation);
        Ok(())
    }

    async fn publish_desired_state(
        self: Rc<Self>,
        params: master::PublishDesiredStateParams,
        mut results: master::PublishDesiredStateResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::PublishDesiredState)?;
        let mut desired = convert::read_desired(params.get()?.get_desired()?)?;
        drop(params);
        desired.publisher = self.publisher(desired.publisher);
        let master = Arc::clone(&self.hall.master);
        let (authority, peer) = (Arc::clone(&self.hall.authority), self.member.peer.to_string());
        let work = async move {
            let publisher = desired.publisher.clone();
            let read = tokio::task::spawn_blocking(move || convert::read_publications(&desired)).await;
            let read: Result<Vec<Publication>, Vec<Verdict>> =
                read.map_err(|_| CallError::Away("the publication could not be read".to_owned()))?;
            match read {
                Ok(publications) => master.publish_together(publications, &publisher).await,
                Err(verdicts) => {
                    for problem in verdicts.iter().flat_map(|verdict| &verdict.problems) {
                        let why = format!("{}: {}", problem.subject, problem.message);
                        authority.note_refused(&peer, &problem.code, &why);
                    }
                    Ok(verdicts)
                }
            }
        };
        match self.hall.outside(work).await? {
            Ok(verdicts) => convert::write_verdicts(results.get().init_verdict(), &verdicts),
            Err(CallError::NotLeader { leader }) => {
                convert::write_not_leader(results.get().init_verdict(), &leader);
            }
            Err(error @ (CallError::Away(_) | CallError::Refused { .. })) => return Err(to_error(&error)),
        }
        Ok(())
    }

    async fn get_assignment(
        self: Rc<Self>,
        params: master::GetAssignmentParams,
        mut results: master::GetAssignmentResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::GetAssignment)?;
        let params = params.get()?;
        let worker = convert::worker(params.get_worker_id())?;
        self.check_worker(&worker)?;
        let applied = Applied {
            generation: params.get_last_seen_generation(),
            revision: params.get_last_seen_revision(),
        };
        let wait = wait(params.get_wait_ms());
        let master = Arc::clone(&self.hall.master);
        let work = async move {
            let found = master.assignment(&worker, applied, wait).await?;
            Ok::<_, CallError>(found.map(SentAssignment::new))
        };
        let found = self.unless_replaced(self.hall.waiting(work)).await?.map_err(|error| to_error(&error))?;
        match found {
            None => results.get().set_unchanged(true),
            Some(assignment) => convert::write_assignment(results.get().init_assignment(), &assignment),
        }
        Ok(())
    }

    async fn report_observed(
        self: Rc<Self>,
        params: master::ReportObservedParams,
        mut results: master::ReportObservedResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::ReportObserved)?;
        let heartbeat = convert::read_observed(params.get()?.get_observed()?)?;
        self.check_worker(&heartbeat.worker)?;
        let session = self.hall.speaks(&heartbeat, &self.member.serial).ok_or_else(replaced)?;
        *self.session.borrow_mut() = Some(session);
        let master = Arc::clone(&self.hall.master);
        let beat = self.hall.outside(async move { master.report(heartbeat).await }).await?;
        let beat = beat.map_err(|error| to_error(&error))?;
        let mut results = results.get();
        results.set_lease_ms(beat.lease.unwrap_or_default());
        results.set_interval_ms(u32::try_from(beat.interval).unwrap_or(u32::MAX));
        results.set_need_full(beat.needs_full);
        results.set_leader(&beat.leader);
        Ok(())
    }

    async fn get_status(
        self: Rc<Self>,
        params: master::GetStatusParams,
        mut results: master::GetStatusResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::GetStatus)?;
        let params = params.get()?;
        let filter: StatusFilter = if params.get_filter()?.is_empty() {
            StatusFilter::default()
        } else {
            convert::json(params.get_filter())?
        };
        let (after, wait) = (params.get_after_seq(), wait(params.get_wait_ms()));
        let master = Arc::clone(&self.hall.master);
        let work = async move { master.status(after, wait, &filter).await };
        let (status, seq) = self.hall.waiting(work).await?.map_err(|error| to_error(&error))?;
        check_size(&status.0)?;
        results.get().set_status(status.0.as_bytes());
        results.get().set_seq(seq);
        Ok(())
    }

    async fn explain(
        self: Rc<Self>,
        params: master::ExplainParams,
        mut results: master::ExplainResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::Explain)?;
        let instance = convert::instance(params.get()?.get_instance())?;
        let master = Arc::clone(&self.hall.master);
        let work = async move { master.explain(&instance).await };
        let explanation = self.hall.waiting(work).await?.map_err(|error| to_error(&error))?;
        check_size(&explanation.0)?;
        results.get().set_explanation(explanation.0.as_bytes());
        Ok(())
    }

    async fn get_snapshot(
        self: Rc<Self>,
        _params: master::GetSnapshotParams,
        mut results: master::GetSnapshotResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::GetSnapshot)?;
        let master = Arc::clone(&self.hall.master);
        let work = async move { master.snapshot().await };
        let snapshot = self.hall.waiting(work).await?.map_err(|error| to_error(&error))?;
        check_size(&snapshot.0)?;
        results.get().set_snapshot(snapshot.0.as_bytes());
        Ok(())
    }

    async fn report_pipeline(
        self: Rc<Self>,
        params: master::ReportPipelineParams,
        _results: master::ReportPipelineResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::ReportPipeline)?;
        let report: PipelineReport = convert::json(params.get()?.get_state())?;
        let master = Arc::clone(&self.hall.master);
        let done = self.hall.outside(async move { master.report_pipeline(report).await }).await?;
        done.map_err(|error| to_error(&error))
    }

    async fn set_hold(
        self: Rc<Self>,
        params: master::SetHoldParams,
        mut results: master::SetHoldResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::SetHold)?;
        let order: HoldOrder = convert::json(params.get()?.get_hold())?;
        let (master, by) = (Arc::clone(&self.hall.master), self.member.peer.name.clone());
        let work = async move { master.set_hold(order, &by).await };
        let id = self.hall.outside(work).await?.map_err(|error| to_error(&error))?;
        results.get().set_id(&id);
        Ok(())
    }

    async fn renew(
        self: Rc<Self>,
        params: master::RenewParams,
        mut results: master::RenewResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::Renew)?;
        let csr = params.get()?.get_csr()?.to_vec();
        let (authority, member) = (Arc::clone(&self.hall.authority), self.member.clone());
        let work = async move { authority.renew(&member, &csr).await };
        let admitted = self.hall.outside(work).await?.map_err(|error| identity_error(&error))?;
        results.get().set_cert(&admitted.certificate);
        results.get().set_ca(&admitted.authority);
        Ok(())
    }

    async fn mint_join(
        self: Rc<Self>,
        params: master::MintJoinParams,
        mut results: master::MintJoinResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::MintJoin)?;
        let params = params.get()?;
        let role = convert::role(params.get_role())?;
        if role == Role::Master && self.member.peer.role != Role::Master {
            return Err(self.forbid("only a master may mint a token for a master"));
        }
        let name = Some(convert::text(params.get_name())?).filter(|name| !name.is_empty());
        let given = |time: i64| Some(time).filter(|time| *time != 0);
        let order = MintOrder {
            iat: given(params.get_iat()),
            exp: given(params.get_exp()),
            jti: Some(convert::text(params.get_jti())?).filter(|jti| !jti.is_empty()),
            ..MintOrder::new(role, name, Duration::from_millis(params.get_ttl_ms()))
        };
        let authority = Arc::clone(&self.hall.authority);
        let token = self.hall.outside(async move { authority.mint(&order).await }).await?;
        results.get().set_token(&token.map_err(|error| identity_error(&error))?);
        Ok(())
    }

    async fn get_enrolments(
        self: Rc<Self>,
        _params: master::GetEnrolmentsParams,
        mut results: master::GetEnrolmentsResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::GetEnrolments)?;
        let authority = Arc::clone(&self.hall.authority);
        let found = self.hall.waiting(async move { authority.enrolments().await }).await?;
        let text = to_json(&found.map_err(|error| identity_error(&error))?);
        check_size(&text)?;
        results.get().set_enrolments(text.as_bytes());
        Ok(())
    }

    async fn revoke_enrolment(
        self: Rc<Self>,
        params: master::RevokeEnrolmentParams,
        mut results: master::RevokeEnrolmentResults,
    ) -> capnp::Result<()> {
        let _entered = self.enter(Method::RevokeEnrolment)?;
        let what = convert::text(params.get()?.get_what())?;
        let authority = Arc::clone(&self.hall.authority);
        let found = self.hall.outside(async move { authority.revoke(&what).await }).await?;
        results.get().set_revoked(to_json(&found.map_err(|error| identity_error(&error))?).as_bytes());
        Ok(())
    }
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What somebody without a certificate is offered: to become a member.
pub(super) struct Door {
    hall: Rc<Hall>,
    calls: Cell<u32>,
}

impl Door {
    pub(super) fn new(hall: Rc<Hall>) -> Self {
        Self { hall, calls: Cell::new(0) }
    }

    fn enter(&self) -> capnp::Result<()> {
        self.calls.set(self.calls.get().saturating_add(1));
        if self.calls.get() > DOOR_CALLS {
            return Err(refusal("busy", "too many calls on one connection"));
        }
        Ok(())
    }
}

impl join::Server for Door {
    async fn hello(
        self: Rc<Self>,
        params: join::HelloParams,
        mut results: join::HelloResults,
    ) -> capnp::Result<()> {
        self.enter()?;
        check_version(&convert::read_hello(params.get()?.get_me()?)?)?;
        // Who is not a member need not know who leads.
        convert::write_hello(results.get().init_you(), &Hello::new(self.hall.authority.fleet()));
        Ok(())
    }

    async fn join(
        self: Rc<Self>,
        params: join::JoinParams,
        mut results: join::JoinResults,
    ) -> capnp::Result<()> {
        self.enter()?;
        let params = params.get()?;
        let (token, csr) = (convert::text(params.get_token())?, params.get_csr()?.to_vec());
        let authority = Arc::clone(&self.hall.authority);
        let admitted = self.hall.outside(async move { authority.join(&token, &csr).await }).await?;
        let admitted = admitted.map_err(|error| identity_error(&error))?;
        results.get().set_cert(&admitted.certificate);
        results.get().set_ca(&admitted.authority);
        Ok(())
    }
}
