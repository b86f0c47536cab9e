//! What a worker counts, for Prometheus of this machine. Labels are bounded: states, and nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use stead_model::fleet::state::InstanceState;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::master::{Check, Visitor, may_see};
use crate::metrics::{Counter, Page};

/// How many visitors are answered at once; more wait.
const MOST_VISITORS: usize = 16;

/// How long one may take.
const LONGEST: Duration = Duration::from_secs(10);

/// What a worker counts.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Heartbeats that were answered, and those that were not.
    pub(super) heartbeats: Counter,
    pub(super) rejected: Counter,
    /// Bytes that were fetched.
    pub(super) fetched: Counter,
    /// Machines that were started again.
    pub(super) restarts: Counter,
    generation: AtomicU64,
    instances: Mutex<BTreeMap<InstanceState, u64>>,
}

impl Figures {
    /// Notes the generation that is applied.
    pub(super) fn applied(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// Notes what the instances here are doing.
    pub(super) fn saw(&self, states: impl Iterator<Item = InstanceState>) {
        let mut counted = BTreeMap::new();
        states.for_each(|state| *counted.entry(state).or_default() += 1);
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    }

    /// Returns everything as text.
    pub(super) fn to_text(&self) -> String {
        let mut page = Page::default();
        let generation = self.generation.load(Ordering::Relaxed);
        page.one("generation", "gauge", "The generation that is applied.", generation);
        page.head("instances", "gauge", "Instances by what they are doing.");
        let counted = self.instances.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (word, state) in InstanceState::WORDS {
            page.value("instances", &[("state", word)], counted.get(&state).copied().unwrap_or_default());
        }
        for (name, help, counter) in [
            ("heartbeats_total", "Heartbeats that a master answered.", &self.heartbeats),
            ("heartbeat_rejected_total", "Heartbeats that no master answered.", &self.rejected),
            ("fetch_bytes_total", "Bytes that were fetched.", &self.fetched),
            ("restarts_total", "Instances that were started again.", &self.restarts),
        ] {
            page.one(name, "counter", help, counter.get());
        }
        page.into_text()
    }
}

/// Shows them at `/metrics` until it is dropped.
pub(super) async fn serve(listener: TcpListener, figures: Arc<Figures>) {
    let mut visitors = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = visitors.join_next() => {}
            taken = listener.accept(), if visitors.len() < MOST_VISITORS => match taken {
                Ok((stream, peer)) => drop(visitors.spawn(welcome(stream, peer, Arc::clone(&figures)))),
                // Out of files, mostly: it passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

async fn welcome(stream: TcpStream, peer: SocketAddr, figures: Arc<Figures>) {
    let service = service_fn(|request: Request<Incoming>| {
        let answered = answer(&request, peer, &figures);
        async move { Ok::<_, Infallible>(answered) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).keep_alive(false);
    // A visitor that goes away in between is no matter.
    tokio::time::timeout(LONGEST, builder.serve_connection(TokioIo::new(stream), service)).await.ok();
}

fn answer(request: &Request<Incoming>, peer: SocketAddr, figures: &Figures) -> Response<Full<Bytes>> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let nobody: Check = Arc::new(|_| false);
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, _)
            if !may_see(&Visitor { peer, certificate: None, token: None }, host, &nobody) =>
        {
            (StatusCode::FORBIDDEN, "only this machine may see this\n".to_owned())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, figures.to_text()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "there is /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
