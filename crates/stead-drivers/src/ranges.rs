//! Lists of whole numbers and `"200-299"` ranges, as `ok_exit` and `expect_status` take them.

use serde_json::Value;
use stead_runner::operation::Params;

/// Returns the ranges of parameter `name`, ends included; nothing if it is not given.
pub(crate) fn parse(params: &Params, name: &str) -> Option<Vec<(i64, i64)>> {
    let items = params.get(name)?.as_array()?;
    Some(items.iter().filter_map(range).collect())
}

fn range(item: &Value) -> Option<(i64, i64)> {
    match item.as_str() {
        Some(text) => {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        }
        None => item.as_i64().map(|number| (number, number)),
    }
}
