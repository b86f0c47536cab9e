//! Which groups of a commit belong together: those between which it moves VMs.

use std::collections::{BTreeMap, BTreeSet};

use stead_model::{GroupName, VmId};

/// Returns the groups of a commit in lists that are published at once: groups between which VMs move in one list, every
/// other group in one of its own. `active` is which group has which VM, `next` what the commit says.
///
/// What a commit has in two groups moves nowhere: the group that does not have it yet is refused by itself.
pub fn ties(
    active: &BTreeMap<VmId, GroupName>,
    next: &BTreeMap<GroupName, BTreeSet<VmId>>,
) -> Vec<BTreeSet<GroupName>> {
    let mut lists: Vec<BTreeSet<GroupName>> =
        next.keys().map(|group| BTreeSet::from([group.clone()])).collect();
    for (to, ids) in next {
        for id in ids {
            let from = active.get(id).filter(|from| *from != to);
            let Some(from) = from.filter(|from| next.get(*from).is_some_and(|ids| !ids.contains(id))) else {
                continue;
            };
            let (both, mut rest): (Vec<_>, Vec<_>) =
                lists.into_iter().partition(|list| list.contains(from) || list.contains(to));
            rest.push(both.into_iter().flatten().collect());
            lists = rest;
        }
    }
    lists.sort();
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::vm_id;

    fn group(name: &str) -> GroupName {
        GroupName::parse(name).unwrap()
    }

    fn found(active: &[(&str, &str)], next: &[(&str, &[&str])]) -> Vec<Vec<String>> {
        let active = active.iter().map(|(id, name)| (vm_id(id), group(name))).collect();
        let next = next.iter().map(|(name, ids)| (group(name), ids.iter().map(|id| vm_id(id)).collect()));
        let lists = ties(&active, &next.collect());
        lists.into_iter().map(|list| list.iter().map(ToString::to_string).collect()).collect()
    }

    /// Section 6: groups between which VMs move, in a ring or along a chain, are of one list; others are alone.
    #[test]
    fn groups_between_which_vms_move_belong_together() {
        let active = [("x", "a"), ("y", "b"), ("z", "c"), ("w", "d")];
        assert_eq!(
            found(&active, &[("a", &["x"]), ("b", &["y", "new"]), ("c", &[]), ("d", &["w"])]),
            [["a"], ["b"], ["c"], ["d"]]
        );
        assert_eq!(
            found(&active, &[("a", &["y"]), ("b", &["x"]), ("c", &["z"]), ("d", &["w"])]),
            [vec!["a", "b"], vec!["c"], vec!["d"]]
        );
        assert_eq!(
            found(&active, &[("a", &[]), ("b", &["x"]), ("c", &["y", "z"]), ("d", &["w"])]),
            [vec!["a", "b", "c"], vec!["d"]]
        );
        // In both groups it moves nowhere; and a group that is not published gives nothing away.
        assert_eq!(found(&active, &[("a", &["x"]), ("b", &["x", "y"])]), [["a"], ["b"]]);
        assert_eq!(found(&active, &[("b", &["x", "y"])]), [["b"]]);
    }
}
