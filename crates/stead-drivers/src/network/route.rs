//! `network.route`: a route, now and after the next start.

use serde_json::Value;
use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

use super::interface::{CONFIRM, watched};
use super::manager::{self, Manager};
use super::prefix::Prefix;
use super::routes::{self, Route};
use super::{interfaces_file, links, netplan_file};
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::file::params::STATE;
use crate::setup::live::Live;
use crate::setup::settle::Settle;
use crate::setup::{CONFIGURE, Configure, Setup, input};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "network.route",
    summary: "Makes sure there is a route, by netplan or ifupdown, or that there is not.",
    params: &[
        ParamSpec::new(
            "to",
            ParamKind::NonEmptyText,
            "Destination: a network such as 10.1.0.0/16, or `default`.",
        )
        .required()
        .judged(|value| {
            judge_texts(value, |text| input::problem(Prefix::given("to", text)).filter(|_| text != "default"))
        }),
        ParamSpec::new("via", ParamKind::Address, "Gateway; default: the destination is on the link."),
        ParamSpec::new(
            "interface",
            ParamKind::NonEmptyText,
            "Interface; default: the one that leads to `via` now.",
        ),
        ParamSpec::new("metric", ParamKind::Int(0, 4_294_967_295), "The lower wins."),
        STATE,
        CONFIRM,
    ],
    one_of: &[&["via", "interface"]],
    ..CONFIGURE
};

pub(super) struct NetworkRoute;

impl Configure for NetworkRoute {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let via = params.text("via").map(|text| input::address("via", text)).transpose()?;
        let to = params.required("to")?;
        let (to, ipv6) = match (to, via) {
            ("default", Some(via)) => (to.to_owned(), via.is_ipv6()),
            ("default", None) => return Err(OpError::invalid("a default route needs `via`")),
            (to, _) => {
                let prefix = Prefix::given("to", to)?;
                (prefix.to_string(), prefix.address.is_ipv6())
            }
        };
        if via.is_some_and(|via| via.is_ipv6() != ipv6) {
            return Err(OpError::invalid("`to` and `via` are of different address families"));
        }
        let interface = match (params.text("interface"), via) {
            (Some(name), _) => links::name("interface", name)?.to_owned(),
            (None, Some(via)) if setup.is_running() => routes::interface_to(setup.cx, &via.to_string())?,
            (None, Some(_)) => return Err(OpError::invalid("under a root prefix `interface` is needed")),
            (None, None) => return Err(OpError::invalid("one of `via` and `interface` is needed")),
        };
        let metric = params.int("metric").and_then(|metric| u32::try_from(metric).ok());
        let route = Route { to, interface, metric, ipv6 };
        let gateway = routes::gateway(via.map(|via| via.to_string()).as_deref());
        let absent = input::is_absent(params);
        let manager = Manager::of(setup, DESCRIPTOR.name)?;
        let metric_name = metric.map(|metric| format!("-{metric}")).unwrap_or_default();
        let slug = route.to.replace(['/', ':'], "-");
        let path = manager.path(&format!("route-{}-{slug}{metric_name}", route.interface));
        if absent {
            if setup.is_running() && !Live::Route(route.clone()).read(setup.cx)?.is_null() {
                routes::refuse_if_in_use(setup.cx, &route)?;
            }
            setup.absent(path)?;
        } else {
            let text = match manager {
                Manager::Netplan => {
                    let to = match (route.to.as_str(), ipv6) {
                        ("default", false) => "0.0.0.0/0",
                        ("default", true) => "::/0",
                        (to, _) => to,
                    };
                    netplan_file::route(&route.interface, to, via, metric)
                }
                Manager::Interfaces => {
                    manager::source_directory(setup)?;
                    interfaces_file::route(
                        &route.interface,
                        &routes::args(&route, &gateway),
                        &routes::args(&route, &Value::Null),
                    )
                }
            };
            setup.file(path, Want::new(Kind::File).content(text.into_bytes()).mode(manager.mode()))?;
        }
        if setup.is_running() {
            links::require(setup.cx, &route.interface)?;
        }
        setup.wish(Live::Route(route), if absent { Value::Null } else { gateway })?;
        if manager == Manager::Netplan {
            setup.settle(Settle::Netplan);
        }
        watched(setup, params)
    }
}
