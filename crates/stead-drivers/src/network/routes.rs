//! Routes of the running system, by `ip`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use super::links;
use super::prefix::Prefix;
use crate::setup::settle;

/// The gateway of a route that has none: its destination is on the link.
const ON_LINK: &str = "link";

/// What makes a route this one and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// `default`, or a prefix in its one spelling.
    pub(crate) to: String,
    pub(crate) interface: String,
    /// None: any.
    pub(crate) metric: Option<u32>,
    /// Which of the two tables a default route is in.
    pub(crate) ipv6: bool,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { " (IPv6)" } else { "" };
        write!(f, "to {}{family} by {}", self.to, self.interface)?;
        self.metric.map_or(Ok(()), |metric| write!(f, " metric {metric}"))
    }
}

/// A route as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    to: String,
    gateway: Option<String>,
    interface: String,
    metric: u32,
}

fn known(cx: &OpContext, ipv6: bool) -> Result<Vec<Known>, OpError> {
    let family = if ipv6 { "-6" } else { "-4" };
    let said = settle::checked(cx, "ip", &["-j", family, "route", "show", "table", "main"])?;
    parse(&said.stdout).ok_or_else(|| OpError::operation("`ip -j route` said what is not JSON"))
}

fn parse(json: &str) -> Option<Vec<Known>> {
    // Without any route some versions say nothing at all.
    let routes: Value =
        if json.trim().is_empty() { Value::Array(Vec::new()) } else { serde_json::from_str(json).ok()? };
    let known = routes.as_array()?.iter().filter_map(|route| {
        let to = route["dst"].as_str()?;
        Some(Known {
            to: Prefix::parse(to).map_or_else(|| to.to_owned(), |prefix| prefix.to_string()),
            gateway: route["gateway"].as_str().or_else(|| route["via"]["host"].as_str()).map(str::to_owned),
            interface: route["dev"].as_str()?.to_owned(),
            metric: route["metric"].as_u64().and_then(|metric| metric.try_into().ok()).unwrap_or(0),
        })
    });
    Some(known.collect())
}

fn is_meant(route: &Route, known: &Known) -> bool {
    known.to == route.to
        && known.interface == route.interface
        && route.metric.is_none_or(|metric| metric == known.metric)
}

/// Returns the route's gateway, `link` if it has none, null if there is no such route.
pub(crate) fn read(cx: &OpContext, route: &Route) -> Result<Value, OpError> {
    let routes = known(cx, route.ipv6)?;
    let found = routes.into_iter().find(|known| is_meant(route, known));
    Ok(found.map_or(Value::Null, |known| known.gateway.unwrap_or_else(|| ON_LINK.to_owned()).into()))
}

/// Returns what `via` means as the value of a route.
pub(super) fn gateway(via: Option<&str>) -> Value {
    via.unwrap_or(ON_LINK).into()
}

/// Returns the arguments of `ip` that bring a route to `want`, a gateway or null.
pub(crate) fn args(route: &Route, want: &Value) -> Vec<String> {
    let family = if route.ipv6 { "-6" } else { "-4" };
    let verb = if want.is_null() { "delete" } else { "replace" };
    let mut args = vec![family.to_owned(), "route".to_owned(), verb.to_owned(), route.to.clone()];
    if let Some(via) = want.as_str().filter(|via| *via != ON_LINK) {
        args.extend(["via".to_owned(), via.to_owned()]);
    }
    args.extend(["dev".to_owned(), route.interface.clone()]);
    if let Some(metric) = route.metric {
        args.extend(["metric".to_owned(), metric.to_string()]);
    }
    args
}

/// Brings a route to `want`.
pub(crate) fn set(cx: &OpContext, route: &Route, want: &Value) -> Result<(), OpError> {
    // It may have gone with its address.
    if want.is_null() && read(cx, route)?.is_null() {
        return Ok(());
    }
    links::run(cx, &args(route, want))
}

/// Returns an error if removing `route` would take away the default route in use.
pub(super) fn refuse_if_in_use(cx: &OpContext, route: &Route) -> Result<(), OpError> {
    if route.to != "default" {
        return Ok(());
    }
    let mut defaults: Vec<Known> =
        known(cx, route.ipv6)?.into_iter().filter(|known| known.to == "default").collect();
    defaults.sort_by_key(|known| known.metric);
    match defaults.first() {
        Some(first) if is_meant(route, first) => Err(OpError::permanent(format!(
            "this would remove the default route in use, by {}{}; make another one first",
            first.interface,
            first.gateway.as_ref().map(|via| format!(" via {via}")).unwrap_or_default()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Returns the interface that leads to `address` now.
pub(super) fn interface_to(cx: &OpContext, address: &str) -> Result<String, OpError> {
    let said = settle::run(cx, "ip", &["-j", "route", "get", address])?;
    let route: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    let interface = route[0]["dev"].as_str().filter(|_| said.is_ok() && route[0]["gateway"].is_null());
    interface.map(str::to_owned).ok_or_else(|| {
        OpError::permanent(format!("`via`, `{address}`, is on no network of this machine; give `interface`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn routes_are_read_and_written() {
        let text = json!([
            {"dst": "default", "gateway": "10.0.0.1", "dev": "eth0", "metric": 100, "flags": []},
            {"dst": "10.1.0.0/16", "dev": "eth1", "scope": "link", "flags": []},
            {"dst": "10.2.0.7", "gateway": "10.0.0.2", "dev": "eth0", "flags": []},
        ]);
        let known = parse(&text.to_string()).unwrap();
        assert_eq!(
            (known[0].metric, known[1].gateway.as_deref(), known[2].to.as_str()),
            (100, None, "10.2.0.7/32")
        );
        assert_eq!(parse("").unwrap(), []);
        let route =
            Route { to: "10.2.0.0/16".into(), interface: "eth0".into(), metric: Some(5), ipv6: false };
        assert_eq!(
            args(&route, &json!("10.0.0.1")).join(" "),
            "-4 route replace 10.2.0.0/16 via 10.0.0.1 dev eth0 metric 5"
        );
        assert_eq!(args(&route, &Value::Null).join(" "), "-4 route delete 10.2.0.0/16 dev eth0 metric 5");
        assert_eq!(args(&route, &json!("link")).join(" "), "-4 route replace 10.2.0.0/16 dev eth0 metric 5");
    }
}
