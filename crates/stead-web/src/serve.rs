//! A small web server for this machine alone: what `stead ui` is.
//!
//! Everything lies below a secret path, so that other accounts of this machine see nothing of it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::asked::Asked;
use crate::body::Body;
use crate::page::page;
use crate::shown::{Shown, Whole};

/// How long a visitor may take to say what it wants.
const BEGIN: Duration = Duration::from_secs(10);

/// The most visitors at once. A browser has at most six connections to one place.
const MOST_VISITORS: usize = 64;

/// What there is to see.
#[async_trait]
pub trait Views: Send + Sync {
    /// Answers the page.
    async fn answer(&self, asked: Asked) -> Shown;
}

/// A page and who may see it: whoever knows the key.
pub struct Door {
    key: String,
    views: Arc<dyn Views>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl Door {
    /// Returns a door with a new key.
    pub fn new(views: Arc<dyn Views>) -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        let key = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { key, views })
    }

    /// Returns the path of the page.
    pub fn path(&self) -> String {
        format!("/{}/", self.key)
    }

    /// Returns what is behind the key, if `path` has it.
    fn behind_key<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (given, rest) = path.strip_prefix('/')?.split_once('/')?;
        bool::from(given.as_bytes().ct_eq(self.key.as_bytes())).then_some(rest)
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if *request.method() != Method::GET {
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
            return refusal;
        }
        // A page of elsewhere that has its name point here would come with that name.
        if !text(header::HOST).is_some_and(is_own_name) {
            return plain(StatusCode::FORBIDDEN, "ask for this machine by its own name: localhost\n");
        }
        let Some(rest) = self.behind_key(request.uri().path()) else {
            return plain(
                StatusCode::NOT_FOUND,
                "the address has a key, which `stead ui` says when it begins\n",
            );
        };
        if rest.is_empty() {
            return of_page("data/");
        }
        let asked = rest.strip_prefix("data/").and_then(|path| Asked::parse(path, request.uri().query()));
        let shown = match asked {
            Some(asked) => {
                self.views.answer(asked.behind(text(HeaderName::from_static("last-event-id")))).await
            }
            None => Shown::nothing(),
        };
        of_shown(shown)
    }
}

/// Shows what is behind `door` until `shutdown`.
pub async fn serve(listener: TcpListener, door: Arc<Door>, shutdown: CancellationToken) {
    let mut visitors = JoinSet::new();
    loop {
        let taken = tokio::select! {
            taken = listener.accept(), if visitors.len() < MOST_VISITORS => taken,
            Some(_) = visitors.join_next() => continue,
            () = shutdown.cancelled() => return,
        };
        match taken {
            Ok((stream, _)) => {
                visitors.spawn(converse(stream, Arc::clone(&door)));
            }
            // Too many open files, say: others end soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse(stream: TcpStream, door: Arc<Door>) {
    let service = service_fn(|request: Request<Incoming>| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.answer(&request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(BEGIN).max_buf_size(16 << 10);
    // A visitor that goes away in between is no matter.
    builder.serve_connection(TokioIo::new(stream), service).await.ok();
}

/// Whether `host` of a request is a name of this machine that no page of elsewhere can have.
pub fn is_own_name(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let body = Bytes::from_static(text.as_bytes());
    of_shown(Shown::Whole(Whole { status, kind: "text/plain; charset=utf-8", extra: Vec::new(), body }))
}

/// Returns the page as an answer; it asks for everything at `root`.
pub fn of_page(root: &str) -> Response<Body> {
    let page = page(root);
    let mut response = of_shown(Shown::text_of("text/html; charset=utf-8", page.text));
    if let Ok(policy) = HeaderValue::from_str(&page.policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// Returns an answer to the page.
pub fn of_shown(shown: Shown) -> Response<Body> {
    of_shown_until(shown, std::future::pending())
}

/// Returns an answer to the page; one that goes on does so until `stop` at most.
pub fn of_shown_until(shown: Shown, stop: impl Future<Output = ()> + Send + 'static) -> Response<Body> {
    let (status, kind, extra, body) = match shown {
        Shown::Whole(Whole { status, kind, extra, body }) => (status, kind, extra, body.into()),
        Shown::Events(follow) => {
            (StatusCode::OK, "text/event-stream", Vec::new(), Body::Live(follow.start(stop)))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for (name, value) in extra {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    #[async_trait]
    impl Views for Nothing {
        async fn answer(&self, _asked: Asked) -> Shown {
            Shown::nothing()
        }
    }

    #[test]
    fn only_who_knows_the_key_comes_in() {
        let door = Door::new(Arc::new(Nothing)).unwrap();
        let path = door.path();
        assert_eq!(path.len(), 34);
        assert_eq!(door.behind_key(&path), Some(""));
        assert_eq!(door.behind_key(&format!("{path}data/runs")), Some("data/runs"));
        let other = Door::new(Arc::new(Nothing)).unwrap();
        for bad in
            ["/", "", "/data/runs", &path[..33], &path[1..], other.path().as_str(), &path.to_uppercase()]
        {
            // A key of digits alone has no capital letters.
            assert!(door.behind_key(bad).is_none() || *bad == path, "{bad}");
        }
        assert!(!format!("{door:?}").contains(path.trim_matches('/')));
    }

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for (host, own) in [
            ("localhost:44445", true),
            ("127.0.0.1", true),
            ("[::1]:44445", true),
            ("evil.example", false),
            ("evil.example:44445", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_own_name(host), own, "{host}");
        }
    }
}
