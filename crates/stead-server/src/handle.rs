//! From a request to its answer: what is asked, who asks, whether they may, and then what they get.

mod agents;
mod files;
mod operators;
mod page;
mod plans;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Version};
use serde_json::{Map, json};
use stead_model::base64;
use stead_model::node::wire::{FOR_HEADER, WireCode, WireError};
use stead_model::site::settings::Limits;
use stead_model::token::{Claims, Endpoint, bearer, check_endpoint, check_identity, inspect};
use stead_runner::clock;

use crate::answer::{self, Answer, with};
use crate::connection::too_large;
use crate::meter::Pulse;
use crate::rates::counted;
use crate::route::Route;
use crate::server::Server;
use crate::snapshot::Snapshot;

/// For whom of a level above an account on the socket asks, and the longest such name.
const FOR: HeaderName = HeaderName::from_static(FOR_HEADER);
const MOST_NAME: usize = 256;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Somebody over TLS.
    Remote(IpAddr),
    /// An account of this machine over the socket, which only that of the server can open.
    Local {
        /// Which account.
        uid: u32,
    },
}

/// Why a request is refused, and what the client is told besides.
#[derive(Debug)]
pub(crate) struct Refused {
    error: WireError,
    retry_after: Option<u64>,
    allow: Option<&'static [Method]>,
    wants_basic: bool,
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Self { error, retry_after: None, allow: None, wants_basic: false }
    }
}

impl Refused {
    fn too_often(seconds: u64) -> Self {
        let error = WireError::new(WireCode::E105, format!("too often; come again in {seconds} s"));
        Self { retry_after: Some(seconds), ..error.into() }
    }

    fn into_answer(self) -> Answer {
        let mut answer = answer::refusal(&self.error);
        // What only time changes says when to come again.
        let retry = self.retry_after.or((self.error.code == WireCode::E105).then_some(1));
        if let Some(seconds) = retry {
            answer = with(answer, header::RETRY_AFTER, HeaderValue::from(seconds));
            // Who comes too often does not also keep a connection.
            answer = with(answer, header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(methods) = self.allow {
            let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
            if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
                answer = with(answer, header::ALLOW, value);
            }
        }
        if self.wants_basic {
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            let realm = HeaderValue::from_static("Basic realm=\"stead\"");
            answer = with(answer, header::WWW_AUTHENTICATE, realm);
        }
        answer
    }
}

/// What the log says of a request.
#[derive(Clone, Default)]
pub(crate) struct Noted {
    route: Option<&'static str>,
    claims: Option<Claims>,
}

impl Noted {
    /// Returns what the token says that the request came with.
    pub(crate) const fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }
}

/// One request on its way.
struct Asked<'s> {
    server: &'s Arc<Server>,
    snapshot: Arc<Snapshot>,
    peer: Peer,
    method: Method,
    headers: HeaderMap,
    body: Incoming,
    pulse: &'s Pulse,
    /// Whether the connection goes on after the answer.
    is_kept_alive: bool,
    noted: Noted,
}

/// Returns the answer to a request. Never fails: a refusal is an answer.
pub(crate) async fn handle(
    server: &Arc<Server>,
    peer: Peer,
    pulse: &Pulse,
    request: Request<Incoming>,
) -> Answer {
    let (head, body) = request.into_parts();
    let is_kept_alive = head.version == Version::HTTP_11 && !head.headers.contains_key(header::CONNECTION);
    let mut asked = Asked {
        server,
        snapshot: server.snapshot(),
        peer,
        method: head.method,
        headers: head.headers,
        body,
        pulse,
        is_kept_alive,
        noted: Noted::default(),
    };
    let (answer, code) = match asked.answer(head.uri).await {
        Ok(answer) => (answer, None),
        Err(refused) => {
            let code = refused.error.code;
            (refused.into_answer(), Some(code))
        }
    };
    note(server, peer, &asked.noted, answer.status().as_u16(), code);
    answer
}

/// Writes the line of a request.
pub(crate) fn note(server: &Server, peer: Peer, noted: &Noted, status: u16, code: Option<WireCode>) {
    let mut known = Map::new();
    match peer {
        Peer::Remote(address) => known.insert("peer".to_owned(), json!(address)),
        Peer::Local { uid } => known.insert("uid".to_owned(), json!(uid)),
    };
    known.insert("route".to_owned(), json!(noted.route.unwrap_or("unknown")));
    known.insert("status".to_owned(), json!(status));
    if let Some(code) = code {
        known.insert("code".to_owned(), json!(code));
    }
    if let Some(claims) = &noted.claims {
        known.insert("node".to_owned(), json!(claims.node));
        if let Some(spec) = &claims.spec {
            known.insert("spec".to_owned(), json!(spec));
        }
        if let Some(jti) = claims.jti() {
            known.insert("jti".to_owned(), json!(jti));
        }
    }
    server.log.say("request", known);
}

impl Asked<'_> {
    fn limits(&self) -> &Limits {
        self.snapshot.limits()
    }

    async fn answer(&mut self, uri: hyper::Uri) -> Result<Answer, Refused> {
        let route = self.route(&uri);
        // It is a part of what was read from the connection, which is freed when nothing holds on to it.
        drop(uri);
        let needs_token = route.as_ref().is_ok_and(|route| self.needs_token(route));
        if !needs_token || !self.headers.contains_key(header::AUTHORIZATION) {
            self.count_anonymous()?;
        }
        match route? {
            Route::Health => match self.server.store.problem() {
                None => Ok(answer::json_bytes(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}"))),
                Some(_) => Err(WireError::new(WireCode::E500, "nothing can be kept: look at its log").into()),
            },
            Route::Specs => {
                if self.needs_token(&Route::Specs) && !self.is_local() {
                    self.authorize(Endpoint::SpecList, None)?;
                }
                Ok(answer::json_bytes(StatusCode::OK, self.snapshot.spec_list.clone()))
            }
            Route::Spec(node) => {
                let claims = self.authorize(Endpoint::Spec, Some(node.as_str()))?;
                self.spec(&claims)
            }
            Route::Repo { name, path } => self.repo(&name, &path),
            Route::Artifact(digest) => self.artifact(&digest).await,
            Route::Next { node, after, wait } => self.next(&node, after, wait).await,
            Route::Reports { node, job } => self.report(&node, job).await,
            Route::Token(node) => self.renew(&node),
            Route::Nodes { after } => self.nodes(after.as_ref()),
            Route::Node { node, after, wait } => self.node(&node, after, wait).await,
            Route::Signals(node) => self.signal(&node).await,
            Route::Jobs { .. } if self.method == Method::POST => self.submit().await,
            Route::Jobs { after } => self.jobs(after.as_ref()),
            Route::Job { id, .. } if self.method == Method::DELETE => self.cancel(&id).await,
            Route::Job { id, after, wait } => self.job(&id, after, wait).await,
            Route::JobInput { node, id } => self.job_input(&node, &id).await,
            Route::Plans if self.method == Method::POST => self.submit_plan().await,
            Route::Plans => self.plans(),
            Route::PlanRun(run) if self.method == Method::DELETE => self.cancel_plan(&run).await,
            Route::PlanRun(run) => self.plan_run(&run),
            Route::PlanEvents { run, after, wait } => self.plan_events(&run, after, wait).await,
            Route::Hook(path) => self.hook(&path).await,
            Route::Page => self.page(),
            Route::Shown(asked) => self.shown(asked).await,
            Route::Manifests => self.manifests(),
            Route::Manifest(name) => self.manifest(&name),
            Route::Server => self.describe(),
            Route::Reload => self.reload().await,
            Route::Keys => self.reload_keys().await,
            Route::Usable => self.reload_usable().await,
        }
    }

    /// Returns what is asked for, if it may be asked for like this.
    fn route(&mut self, uri: &hyper::Uri) -> Result<Route, Refused> {
        self.check_size(uri)?;
        let route = Route::parse(uri)?;
        self.noted.route = Some(route.name());
        if !route.methods().contains(&self.method) {
            let error = WireError::new(WireCode::E102, format!("`{}` does not go here", self.method));
            return Err(Refused { allow: Some(route.methods()), ..error.into() });
        }
        Ok(route)
    }

    fn needs_token(&self, route: &Route) -> bool {
        match route {
            // A hook is opened by its own secret, not by a token.
            Route::Health | Route::Hook(_) => false,
            Route::Specs => !self.snapshot.site.settings.value.server.public_specs,
            Route::Spec(_)
            | Route::Repo { .. }
            | Route::Artifact(_)
            | Route::Next { .. }
            | Route::Reports { .. }
            | Route::Token(_)
            | Route::Nodes { .. }
            | Route::Node { .. }
            | Route::Signals(_)
            | Route::Jobs { .. }
            | Route::Job { .. }
            | Route::JobInput { .. }
            | Route::Plans
            | Route::PlanRun(_)
            | Route::PlanEvents { .. }
            | Route::Page
            | Route::Shown(_)
            | Route::Manifests
            | Route::Manifest(_)
            | Route::Server
            | Route::Reload
            | Route::Keys
            | Route::Usable => true,
        }
    }

    /// Returns the most bytes of a body that may be so much larger if it comes over the socket.
    fn body_bytes(&self, more: u64) -> u64 {
        self.limits().body_bytes + if self.is_local() { more } else { 0 }
    }

    fn is_local(&self) -> bool {
        matches!(self.peer, Peer::Local { .. })
    }

    /// A head that came in one piece is as large as one that came in many.
    fn check_size(&self, uri: &hyper::Uri) -> Result<(), WireError> {
        let fields: usize =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let target = uri.path().len() + uri.query().map_or(0, str::len);
        if (fields + target) as u64 > self.limits().header_bytes { Err(too_large()) } else { Ok(()) }
    }

    /// Counts a request that no token answers for; one with a token that does not hold counts as a failure.
    fn count_anonymous(&self) -> Result<(), Refused> {
        let Peer::Remote(address) = self.peer else { return Ok(()) };
        let most = self.limits().anonymous_per_second;
        let taken =
            self.server.anonymous.take(counted(address), most, Duration::from_secs(1), clock::instant());
        taken.map_err(Refused::too_often)
    }

    /// Checks 1 to 10 of the token that came with the request; `identity` is that in its path.
    fn authorize(&mut self, endpoint: Endpoint, identity: Option<&str>) -> Result<Claims, Refused> {
        let header = self.one_header(&header::AUTHORIZATION);
        let token = bearer(header.as_deref()).map(str::to_owned).map_err(WireError::from);
        self.authorize_token(token, endpoint, identity)
    }

    fn authorize_token(
        &mut self,
        token: Result<String, WireError>,
        endpoint: Endpoint,
        identity: Option<&str>,
    ) -> Result<Claims, Refused> {
        let now = clock::now().as_micros() / 1_000_000;
        let token = token.map_err(|error| self.failed(error))?;
        let verified = self.snapshot.verify(&token, now);
        self.noted.claims = match &verified {
            Ok(claims) => Some(claims.clone()),
            // Its signature has held: what it says is so, and who came too late is worth knowing.
            Err(error) if matches!(error.code, WireCode::E302 | WireCode::E303) => inspect(&token).ok(),
            Err(_) => None,
        };
        let claims = verified.map_err(|error| self.failed(error))?;
        self.pulse.trust();
        let limit = self.limits().token_per_second;
        if limit > 0 {
            let who = claims.jti().unwrap_or(&claims.node).to_owned();
            let taken = self.server.tokens.take(who, limit, Duration::from_secs(1), clock::instant());
            taken.map_err(Refused::too_often)?;
        }
        check_endpoint(&claims, endpoint).map_err(|refusal| self.failed(refusal.into()))?;
        if let Some(identity) = identity {
            check_identity(&claims, identity).map_err(|refusal| self.failed(refusal.into()))?;
        }
        Ok(claims)
    }

    /// Returns the one value of a header; none if it is missing, there twice or no text.
    fn one_header(&self, name: &header::HeaderName) -> Option<String> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?.to_str().ok()?.to_owned();
        values.next().is_none().then_some(first)
    }

    /// Counts a refused token. Those of an address that has too many are no longer told why.
    fn failed(&self, error: WireError) -> Refused {
        let Peer::Remote(address) = self.peer else { return error.into() };
        let is_failure = match error.code {
            WireCode::E300 => self.headers.contains_key(header::AUTHORIZATION),
            WireCode::E301 | WireCode::E302 | WireCode::E303 | WireCode::E304 => true,
            WireCode::E100
            | WireCode::E101
            | WireCode::E102
            | WireCode::E103
            | WireCode::E104
            | WireCode::E105
            | WireCode::E200
            | WireCode::E201
            | WireCode::E202
            | WireCode::E400
            | WireCode::E401
            | WireCode::E500
            | WireCode::E501 => false,
        };
        if !is_failure {
            return error.into();
        }
        let most = self.limits().auth_failures_per_minute;
        let minute = Duration::from_secs(60);
        match self.server.failures.take(counted(address), most, minute, clock::instant()) {
            Ok(()) => error.into(),
            Err(seconds) => Refused::too_often(seconds),
        }
    }

    /// Returns the token of a program that only knows user names and passwords: the password.
    fn basic_token(&self) -> Option<String> {
        let header = self.one_header(&header::AUTHORIZATION)?;
        let text = String::from_utf8(base64::decode(header.strip_prefix("Basic ")?)?).ok()?;
        text.split_once(':').map(|(_, password)| password.to_owned())
    }

    /// Returns the name of the operator who asks: by token, or by account on the socket, which may say for whom of a level
    /// above it asks.
    fn operator(&mut self) -> Result<String, Refused> {
        match self.peer {
            Peer::Local { uid } => Ok(match self.one_header(&FOR).filter(|told| told.len() <= MOST_NAME) {
                Some(told) => format!("{told} through uid:{uid}"),
                None => format!("uid:{uid}"),
            }),
            Peer::Remote(_) => Ok(self.authorize(Endpoint::Operator, None)?.node),
        }
    }

    fn spec(&self, claims: &Claims) -> Result<Answer, Refused> {
        let ready = self.snapshot.spec(claims)?;
        let tag = HeaderValue::from_str(&ready.etag)
            .map_err(|_| WireError::new(WireCode::E500, "the digest is no header"))?;
        let is_known = self.headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
            let tags = value.to_str().unwrap_or_default().split(',');
            tags.map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == ready.etag)
        });
        let answer = if is_known {
            answer::empty(StatusCode::NOT_MODIFIED)
        } else {
            answer::json_bytes(StatusCode::OK, ready.body.clone())
        };
        Ok(with(answer, header::ETAG, tag))
    }

    /// Reads the body, up to `most` bytes, in the time that a body has.
    async fn read_body(&mut self, most: u64) -> Result<Bytes, WireError> {
        let too_large = || WireError::new(WireCode::E103, format!("a body has at most {most} bytes here"));
        if self.body.size_hint().lower() > most {
            return Err(too_large());
        }
        let seconds = self.limits().body_seconds;
        let body = &mut self.body;
        let reading = async {
            let mut bytes = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| WireError::new(WireCode::E100, "the body has ended early"))?;
                if let Ok(piece) = frame.into_data() {
                    if (bytes.len() + piece.len()) as u64 > most {
                        return Err(too_large());
                    }
                    bytes.extend_from_slice(&piece);
                }
            }
            Ok(bytes.freeze())
        };
        match tokio::time::timeout(Duration::from_secs(seconds), reading).await {
            Ok(read) => read,
            Err(_) => Err(WireError::new(WireCode::E104, format!("a body has {seconds} s"))),
        }
    }
}
