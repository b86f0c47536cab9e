//! A real HTTP server on a loopback port, for the time of one test.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Answers a request: method and path, headers, body.
pub(crate) type Answer = Arc<dyn Fn(Request<()>, Vec<u8>) -> Response<Full<Bytes>> + Send + Sync>;

/// Runs `test` with the address of a server that answers with `answer`; the server ends with it.
pub(crate) async fn with_server<F: Future>(answer: Answer, test: impl FnOnce(String) -> F) -> F::Output {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::select! {
        () = serve(listener, answer) => unreachable!("the server never ends"),
        result = test(address) => result,
    }
}

async fn serve(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = Arc::clone(&answer);
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
                    Ok::<_, Infallible>(answer(Request::from_parts(head, ()), body))
                }
            });
            // A client that goes away early is what some tests are about.
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
    }
}
