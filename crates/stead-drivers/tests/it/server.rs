//! A real HTTP server on a loopback port, for the time of one test.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

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

/// As [`with_server`], over TLS: `certificate` is given out, `key` is its private key, both PEM.
pub(crate) async fn with_tls_server<F: Future>(
    certificate: &str,
    key: &str,
    answer: Answer,
    test: impl FnOnce(u16) -> F,
) -> F::Output {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let serve = async {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
            connections.spawn(async move {
                // A client that does not trust us goes away here.
                if let Ok(stream) = acceptor.accept(stream).await {
                    converse(stream, answer).await;
                }
            });
        }
    };
    tokio::select! {
        () = serve => unreachable!("the server never ends"),
        result = test(port) => result,
    }
}

async fn serve(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(converse(stream, Arc::clone(&answer)));
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, answer: Answer) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let answer = Arc::clone(&answer);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
            Ok::<_, Infallible>(answer(Request::from_parts(head, ()), body))
        }
    });
    // A client that goes away early is what some tests are about.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}
