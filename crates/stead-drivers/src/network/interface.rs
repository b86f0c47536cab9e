//! `network.interface`: addresses and properties of an interface, now and after the next start.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

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

pub(super) const CONFIRM: ParamSpec = ParamSpec::new(
    "confirm",
    ParamKind::Duration,
    "The change is undone by itself unless the driver reaches the machine again within this time; default: 60s.",
)
.default(ParamDefault::Text("60s"))
.judged(|value| {
    let is_short = |time: Duration| time < SHORTEST_CONFIRM;
    judge_texts(value, |text| {
        stead_model::duration::parse(text).is_ok_and(is_short).then(|| "less than 1s".to_owned())
    })
});

/// The process that undoes looks once a second.
const SHORTEST_CONFIRM: Duration = Duration::from_secs(1);

static DESCRIPTOR: Descriptor = Descriptor {
    name: "network.interface",
    summary: "Makes sure an interface has addresses and properties, by netplan or ifupdown, or that Stead gives it none.",
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "The interface.").required(),
        ParamSpec::new("dhcp4", ParamKind::Bool, "Ask for an IPv4 address."),
        ParamSpec::new("dhcp6", ParamKind::Bool, "Ask for an IPv6 address."),
        ParamSpec::new(
            "addresses",
            ParamKind::TextList,
            "Addresses with prefix length, such as 10.0.0.7/24.",
        )
        .judged(|value| judge_texts(value, |text| input::problem(Prefix::given("addresses", text)))),
        ParamSpec::new("gateway4", ParamKind::Address, "Gateway of the IPv4 default route."),
        ParamSpec::new("gateway6", ParamKind::Address, "Gateway of the IPv6 default route."),
        ParamSpec::new("dns", ParamKind::Addresses, "Name servers."),
        ParamSpec::new("mtu", ParamKind::Int(68, 65_536), "Largest packet."),
        ParamSpec::new("mac", ParamKind::NonEmptyText, "Hardware address.")
            .judged(|value| judge_texts(value, |text| input::problem(mac(text)))),
        ParamSpec::new(
            "state",
            STATE.kind,
            "`present` (default) or `absent`: Stead's file goes, and with it the addresses it gave.",
        )
        .default(ParamDefault::Text("present")),
        CONFIRM,
    ],
    ..CONFIGURE
};

/// What an interface should have.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) dhcp4: Option<bool>,
    pub(super) dhcp6: Option<bool>,
    pub(super) addresses: Vec<Prefix>,
    pub(super) gateway4: Option<IpAddr>,
    pub(super) gateway6: Option<IpAddr>,
    pub(super) dns: Vec<IpAddr>,
    pub(super) mtu: Option<i64>,
    pub(super) mac: Option<String>,
}

impl Wanted {
    fn new(params: &Params) -> Result<Self, OpError> {
        let flag = |name: &str| params.get(name).and_then(Value::as_bool);
        let gateway = |name: &str, ipv4: bool| -> Result<Option<IpAddr>, OpError> {
            let address = params.text(name).map(|text| input::address(name, text)).transpose()?;
            match address {
                Some(address) if address.is_ipv4() != ipv4 => {
                    Err(OpError::invalid(format!("`{name}`, `{address}`, is of the other address family")))
                }
                Some(_) | None => Ok(address),
            }
        };
        let dns = params.texts("dns");
        let addresses = params.texts("addresses");
        let wanted = Self {
            name: links::name("name", params.required("name")?)?.to_owned(),
            dhcp4: flag("dhcp4"),
            dhcp6: flag("dhcp6"),
            addresses: addresses
                .iter()
                .map(|text| Prefix::given("addresses", text))
                .collect::<Result<_, _>>()?,
            gateway4: gateway("gateway4", true)?,
            gateway6: gateway("gateway6", false)?,
            dns: dns.iter().map(|text| input::address("dns", text)).collect::<Result<_, _>>()?,
            mtu: params.int("mtu"),
            mac: params.text("mac").map(mac).transpose()?,
        };
        for (gateway, ipv4) in [(wanted.gateway4, true), (wanted.gateway6, false)] {
            if gateway.is_some() && !wanted.addresses.iter().any(|prefix| prefix.address.is_ipv4() == ipv4) {
                let family = if ipv4 { 4 } else { 6 };
                return Err(OpError::invalid(format!(
                    "`gateway{family}` needs an IPv{family} address in `addresses`"
                )));
            }
        }
        Ok(wanted)
    }

    fn has_dhcp(&self) -> bool {
        self.dhcp4 == Some(true) || self.dhcp6 == Some(true)
    }
}

fn mac(text: &str) -> Result<String, OpError> {
    let is_octet = |octet: &str| octet.len() == 2 && octet.bytes().all(|b| b.is_ascii_hexdigit());
    if text.split(':').count() == 6 && text.split(':').all(is_octet) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(OpError::invalid(format!(
        "`mac`, `{}`: expected six pairs of hex digits such as 52:54:00:12:34:56",
        text.escape_debug()
    )))
}

pub(super) struct Interface;

impl Configure for Interface {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let absent = input::is_absent(params);
        let wanted = if absent {
            let name = links::name("name", params.required("name")?)?.to_owned();
            Wanted { name, ..Wanted::default() }
        } else {
            Wanted::new(params)?
        };
        let manager = Manager::of(setup, DESCRIPTOR.name)?;
        let path = manager.path(&wanted.name);
        let old = setup.read(path.as_ref())?.unwrap_or_default();
        let old = String::from_utf8_lossy(&old);
        let (old_addresses, old_gateways) = match manager {
            Manager::Netplan => netplan_file::old(&old),
            Manager::Interfaces => interfaces_file::old(&old),
        };
        if absent {
            setup.absent(&path)?;
        } else {
            let text = match manager {
                Manager::Netplan => netplan_file::interface(&wanted),
                Manager::Interfaces => {
                    manager::refuse_foreign_stanza(setup, &wanted.name)?;
                    manager::source_directory(setup)?;
                    interfaces_file::interface(&wanted)
                }
            };
            setup.file(&path, Want::new(Kind::File).content(text.into_bytes()).mode(manager.mode()))?;
        }
        if setup.is_running() {
            live(setup, &wanted, absent, &old_addresses, &old_gateways)?;
            match manager {
                Manager::Netplan => setup.settle(Settle::Netplan),
                Manager::Interfaces if wanted.has_dhcp() => setup.settle(Settle::Ifup(wanted.name.clone())),
                Manager::Interfaces => {}
            }
        }
        watched(setup, params)
    }
}

/// Wants what should hold in the running system.
fn live(
    setup: &mut Setup<'_>,
    wanted: &Wanted,
    absent: bool,
    old_addresses: &[Prefix],
    old_gateways: &[IpAddr],
) -> Result<(), OpError> {
    let name = &wanted.name;
    let route = |ipv6: bool| Route { to: "default".to_owned(), interface: name.clone(), metric: None, ipv6 };
    match links::require(setup.cx, name) {
        Ok(()) => {}
        Err(_) if absent => return Ok(()),
        Err(error) => return Err(error),
    }
    for old in old_addresses.iter().filter(|old| !wanted.addresses.contains(old)) {
        setup.wish(Live::Address(name.clone(), old.to_string()), false.into())?;
    }
    // What goes does so backwards: a gateway before the address it is reached by.
    for old in old_gateways {
        let kept = if old.is_ipv4() { wanted.gateway4 } else { wanted.gateway6 };
        let route = route(old.is_ipv6());
        if kept.is_none() && !Live::Route(route.clone()).read(setup.cx)?.is_null() {
            routes::refuse_if_in_use(setup.cx, &route)?;
            setup.wish(Live::Route(route), Value::Null)?;
        }
    }
    if absent {
        return Ok(());
    }
    let mtu = wanted.mtu.map(|mtu| ("mtu", mtu.to_string()));
    let mac = wanted.mac.clone().map(|mac| ("mac", mac));
    for (property, value) in mtu.into_iter().chain(mac).chain([("state", "up".to_owned())]) {
        setup.wish(Live::Link(name.clone(), property.to_owned()), value.into())?;
    }
    for address in &wanted.addresses {
        setup.wish(Live::Address(name.clone(), address.to_string()), true.into())?;
    }
    for gateway in [wanted.gateway4, wanted.gateway6].into_iter().flatten() {
        setup.wish(Live::Route(route(gateway.is_ipv6())), gateway.to_string().into())?;
    }
    Ok(())
}

/// Wants the change undone by itself unless it is confirmed.
pub(super) fn watched(setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
    let confirm = params.duration("confirm", Duration::from_secs(60));
    if confirm < SHORTEST_CONFIRM {
        return Err(OpError::invalid("`confirm` must be at least 1s"));
    }
    setup.settle(Settle::Watch { seconds: confirm.as_secs() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wanted(values: Value) -> Result<Wanted, OpError> {
        let Value::Object(values) = values else { panic!("not a map") };
        Wanted::new(&Params::new(values))
    }

    #[test]
    fn both_files_say_the_same_and_are_read_again() {
        let wanted = wanted(json!({"name": "eth0", "addresses": ["10.0.0.7/24", "10.0.1.7/24", "FD00::7/64"],
            "gateway4": "10.0.0.1", "gateway6": "fd00::1", "dns": ["1.1.1.1"], "mtu": 1400, "mac": "52:54:00:AA:00:01"}))
        .unwrap();
        let interfaces = interfaces_file::interface(&wanted);
        assert_eq!(
            interfaces,
            "auto eth0\niface eth0 inet static\n    address 10.0.0.7/24\n    gateway 10.0.0.1\n    dns-nameservers 1.1.1.1\n    \
             mtu 1400\n    hwaddress ether 52:54:00:aa:00:01\niface eth0 inet static\n    address 10.0.1.7/24\n\
             iface eth0 inet6 static\n    address fd00::7/64\n    gateway fd00::1\n"
        );
        let netplan = netplan_file::interface(&wanted);
        let read = (wanted.addresses.clone(), vec![wanted.gateway4.unwrap(), wanted.gateway6.unwrap()]);
        assert_eq!(
            (interfaces_file::old(&interfaces), netplan_file::old(&netplan)),
            (read.clone(), read),
            "{netplan}"
        );
    }

    #[test]
    fn what_would_not_work_is_refused() {
        for values in [
            json!({"name": "eth0; reboot"}),
            json!({"name": "eth0", "addresses": ["10.0.0.7"]}),
            json!({"name": "eth0", "addresses": ["10.0.0.7/24\n  up reboot"]}),
            json!({"name": "eth0", "gateway4": "10.0.0.1"}),
            json!({"name": "eth0", "addresses": ["10.0.0.7/24"], "gateway4": "fd00::1"}),
            json!({"name": "eth0", "mac": "52:54:00:aa:00"}),
            json!({"name": "eth0", "dns": ["example.org"]}),
        ] {
            assert!(wanted(values.clone()).is_err(), "{values}");
        }
    }
}
