//! `hosts.entry`: names of an address in `/etc/hosts`.

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

use super::hosts::{Hosts, PATH};
use crate::file::params::STATE;
use crate::setup::{CONFIGURE, Configure, Setup, input};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hosts.entry",
    summary: "Makes sure names lead to an address in /etc/hosts, or do not.",
    params: &[
        ParamSpec::new("address", ParamKind::Address, "IPv4 or IPv6 address.").required(),
        ParamSpec::new("names", ParamKind::Lines, "Host names of the address.")
            .required()
            .judged(|value| judge_texts(value, |text| input::problem(input::host_name("names", text)))),
        STATE,
    ],
    ..CONFIGURE
};

pub(super) struct HostsEntry;

impl Configure for HostsEntry {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let content = setup.read(PATH.as_ref())?;
        let absent = input::is_absent(params);
        let edited = edit(content.as_deref().unwrap_or_default(), params, absent)?;
        if absent && content.is_none() {
            return Ok(());
        }
        setup.content(PATH, edited)
    }
}

/// Returns the content with the names as they should be. Pure.
fn edit(content: &[u8], params: &Params, absent: bool) -> Result<Vec<u8>, OpError> {
    let address = input::address("address", params.required("address")?)?;
    let names = params.texts("names");
    let names: Vec<&str> =
        names.iter().map(|name| input::host_name("names", name)).collect::<Result<_, _>>()?;
    let mut hosts = Hosts::new(content);
    if absent {
        for name in &names {
            hosts.take_off(name, |_, found| found == address);
        }
        return Ok(hosts.into_bytes());
    }
    hosts.make_known(address, &names);
    Ok(hosts.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn edited(content: &str, values: Value) -> String {
        let Value::Object(values) = values else { panic!("not a map") };
        let params = Params::new(values);
        let absent = input::is_absent(&params);
        let once = edit(content.as_bytes(), &params, absent).unwrap();
        assert_eq!(edit(&once, &params, absent).unwrap(), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn foreign_names_comments_and_spacing_stay() {
        let web = json!({"address": "10.0.0.7", "names": ["web.example", "web"]});
        assert_eq!(
            edited("127.0.0.1\tlocalhost\n", web.clone()),
            "127.0.0.1\tlocalhost\n10.0.0.7\tweb.example web\n"
        );
        assert_eq!(
            edited("# top\n10.0.0.7   old  # ours\n::1 web\n", web.clone()),
            "# top\n10.0.0.7   old web.example web  # ours\n::1 web\n"
        );
        assert_eq!(
            edited("10.0.0.7 web web.example\n", web.clone()),
            "10.0.0.7 web web.example\n",
            "order is kept"
        );
        assert_eq!(edited("", web), "10.0.0.7\tweb.example web\n");
    }

    #[test]
    fn a_name_is_taken_off_other_lines_of_its_family() {
        let web = json!({"address": "10.0.0.7", "names": ["web"]});
        assert_eq!(
            edited("10.0.0.8 web  other # c\n10.0.0.9 WEB # gone\nfd00::1 web\n10.0.0.7 x", web),
            "10.0.0.8  other # c\n# gone\nfd00::1 web\n10.0.0.7 x web"
        );
        let six = json!({"address": "fd00::1", "names": ["db"]});
        assert_eq!(edited("fd00:0:0::1 db\n10.0.0.1 db\n", six), "fd00:0:0::1 db\n10.0.0.1 db\n");
    }

    #[test]
    fn absent_takes_off_only_the_given_names() {
        let gone = json!({"address": "10.0.0.7", "names": ["web", "nope"], "state": "absent"});
        assert_eq!(edited("10.0.0.7 web api\n10.0.0.8 web\n", gone.clone()), "10.0.0.7 api\n10.0.0.8 web\n");
        assert_eq!(edited("a\n10.0.0.7 web\nb\n", gone), "a\nb\n");
    }

    #[test]
    fn what_is_no_name_or_address_is_refused() {
        for values in [
            json!({"address": "10.0.0.7\n6.6.6.6 bank", "names": ["x"]}),
            json!({"address": "10.0.0.7", "names": ["x\n6.6.6.6 bank"]}),
            json!({"address": "10.0.0.7", "names": ["x y"]}),
            json!({"address": "10.0.0.300", "names": ["x"]}),
            json!({"address": "10.0.0.7", "names": ["#x"]}),
        ] {
            let Value::Object(map) = values.clone() else { panic!("not a map") };
            assert!(edit(b"", &Params::new(map), false).is_err(), "{values}");
        }
    }
}
