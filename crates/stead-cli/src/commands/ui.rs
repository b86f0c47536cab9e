//! `stead ui`: runs, nodes and the fleet in a browser of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use stead_fleet::api::{Master, StatusFilter};
use stead_fleet::wire::Client;
use stead_model::ExitCode;
use stead_web::{Asked, Desk, Door, Shown, Views};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::args::{FleetWayArgs, SiteArgs, StatusArgs, UiArgs};
use crate::commands::{bundle, fleet, nodes, reach, site};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;
use crate::signals;

/// How long what was seen of nodes is shown again: looking asks every machine.
const FRESH: Duration = Duration::from_secs(2);

pub(super) fn run(args: &UiArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let shown = Arc::new(Local::new(args, settings)?);
    let work = |error| Failure::caused_by(FailureKind::Work, error);
    let mut signals = signals::listen().map_err(work)?;
    reach::block_on(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Failure::new(FailureKind::Work, format!("cannot listen at {address}: {error}"))
                .hint("`--port` names another port; without it any free one is taken")
        })?;
        let port = listener.local_addr().map_err(work)?.port();
        let door = Arc::new(Door::new(shown).map_err(work)?);
        let url = format!("http://localhost:{port}{}", door.path());
        if args.fleet.json {
            output.out.print(&render_json::document(&json!({"schema": 1, "url": url})));
        } else {
            output.out.print_line(&url);
            output.err.print_line("Open this address in a browser of this machine; Ctrl-C ends it.");
        }
        let shutdown = CancellationToken::new();
        tokio::select! {
            () = stead_web::serve(listener, door, shutdown) => {}
            heard = signals.changed() => drop(heard),
        }
        Ok(ExitCode::Success)
    })?
}

/// What there is to see on this machine.
struct Local {
    title: String,
    settings: Settings,
    site: Option<SiteArgs>,
    way: Option<FleetWayArgs>,
    desk: Arc<Desk>,
    nodes: Mutex<Option<(Instant, Value)>>,
    fleet: Mutex<Option<Arc<Client>>>,
}

impl Local {
    fn new(args: &UiArgs, settings: &Settings) -> Result<Self, Failure> {
        let site = match site::find(&args.site, settings) {
            Ok(found) => Some(found),
            // Without one that is named there need be none.
            Err(failure) if args.site.site.is_some() => return Err(failure),
            Err(_) => None,
        };
        let directories = bundle::run_directories_with(&args.site, settings);
        let place = site.as_ref().map_or(&settings.current_dir, |site| &site.path);
        let title = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let has_fleet = fleet::is_known(&args.fleet, settings);
        Ok(Self {
            title,
            settings: settings.clone(),
            site: site.is_some().then(|| args.site.clone()),
            way: has_fleet.then(|| args.fleet.clone()),
            desk: Arc::new(Desk::new(directories)),
            nodes: Mutex::default(),
            fleet: Mutex::default(),
        })
    }

    fn about(&self) -> Value {
        let views = [(true, "runs"), (self.site.is_some(), "nodes"), (self.way.is_some(), "fleet")];
        let views: Vec<&str> = views.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        json!({"title": self.title, "views": views})
    }

    async fn nodes(&self, site: &SiteArgs) -> Result<Value, Failure> {
        let mut seen = self.nodes.lock().await;
        if let Some((at, document)) = &*seen
            && at.elapsed() < FRESH
        {
            return Ok(document.clone());
        }
        let args = StatusArgs { site: site.clone(), ..StatusArgs::default() };
        let settings = self.settings.clone();
        let looked = tokio::task::spawn_blocking(move || nodes::status::document(&args, &settings)).await;
        let document = looked.map_err(|error| Failure::caused_by(FailureKind::Work, error))??;
        *seen = Some((Instant::now(), document.clone()));
        Ok(document)
    }

    async fn fleet(&self, way: &FleetWayArgs) -> Result<String, Failure> {
        let client = {
            let mut known = self.fleet.lock().await;
            match &*known {
                Some(client) => Arc::clone(client),
                None => Arc::clone(known.insert(fleet::master(way, &self.settings).await?)),
            }
        };
        let asked = client.status(0, Duration::ZERO, &StatusFilter::default()).await;
        asked.map(|(status, _)| status.0).map_err(fleet::call_failure)
    }
}

#[async_trait]
impl Views for Local {
    async fn answer(&self, asked: Asked) -> Shown {
        let answered = match (&asked, &self.site, &self.way) {
            (Asked::About, _, _) => Ok(Shown::json(&self.about())),
            (Asked::Nodes, Some(site), _) => self.nodes(site).await.map(|document| Shown::json(&document)),
            (Asked::Fleet, _, Some(way)) => {
                self.fleet(way).await.map(|text| Shown::text_of("application/json", text))
            }
            _ => {
                let desk = Arc::clone(&self.desk);
                let answered = tokio::task::spawn_blocking(move || desk.answer(&asked)).await;
                answered.map_err(|error| Failure::caused_by(FailureKind::Work, error))
            }
        };
        answered
            .unwrap_or_else(|failure| Shown::refused(stead_web::StatusCode::BAD_GATEWAY, &failure.to_error()))
    }
}
