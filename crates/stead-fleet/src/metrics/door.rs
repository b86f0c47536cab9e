//! Where a worker and a publisher show their figures: at `/metrics`, to this machine alone.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::events::Events;
use crate::master::{Check, Visitor, may_see};

/// How many visitors are answered at once; more wait.
const MOST_VISITORS: usize = 16;

/// How long one may take.
const LONGEST: Duration = Duration::from_secs(10);

/// Listens, and says where.
pub(crate) async fn open(address: SocketAddr, events: Option<&Arc<Events>>) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    events.into_iter().for_each(|events| events.say(&format!("figures at http://{bound}/metrics")));
    Ok(listener)
}

/// Returns the figures as text.
pub(crate) type Text = Arc<dyn Fn() -> String + Send + Sync>;

/// Shows figures at `/metrics` until it is dropped.
pub(crate) async fn serve(listener: TcpListener, text: Text) {
    let mut visitors = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = visitors.join_next() => {}
            taken = listener.accept(), if visitors.len() < MOST_VISITORS => match taken {
                Ok((stream, peer)) => drop(visitors.spawn(welcome(stream, peer, Arc::clone(&text)))),
                // Out of files, mostly: it passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

async fn welcome(stream: TcpStream, peer: SocketAddr, text: Text) {
    let service = service_fn(|request: Request<Incoming>| {
        let answered = answer(&request, peer, &text);
        async move { Ok::<_, Infallible>(answered) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).keep_alive(false);
    // A visitor that goes away in between is no matter.
    tokio::time::timeout(LONGEST, builder.serve_connection(TokioIo::new(stream), service)).await.ok();
}

fn answer(request: &Request<Incoming>, peer: SocketAddr, text: &Text) -> Response<Full<Bytes>> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let nobody: Check = Arc::new(|_| false);
    let (status, shown) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, _)
            if !may_see(&Visitor { peer, certificate: None, token: None }, host, &nobody) =>
        {
            (StatusCode::FORBIDDEN, "only this machine may see this\n".to_owned())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, text()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "there is /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(shown)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
