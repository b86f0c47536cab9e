//! Plans of nodes, and what holds for all of them.

use proptest::prelude::*;
use stead_model::Site;
use stead_model::site::manifest::Origin;
use stead_model::site::{Entry, FileKind, SiteFile};

use super::*;
use crate::nodes::{Choice, ForHost, Verb, check_manifest, select};

fn site() -> Site {
    let file = |kind: FileKind, stem: &str, text: &str| SiteFile {
        kind,
        stem: stem.to_owned(),
        name: kind.path_of(stem),
        content: Ok(text.as_bytes().to_vec()),
    };
    Site::read(vec![file(FileKind::Spec, "base", "schema_version: 1"), file(FileKind::Posture, "dev", "{}")])
}

struct Case {
    manifest: Entry<Manifest>,
    checked: Checked,
}

impl Case {
    fn new(rest: &str) -> Self {
        let text = format!("schema_version: 2\nname: m\n{rest}");
        let manifest = Site::read_manifest("m.yaml", text.into_bytes(), Origin::Given);
        let checked = check_manifest(&site(), &manifest, ForHost::default());
        Self { manifest, checked }
    }

    fn forest(&self) -> &Forest {
        self.checked.forest.as_ref().unwrap()
    }

    fn plan(&self, verb: NodesVerb, choice: &Choice) -> NodesPlan {
        self.plan_with(verb, choice, &|_| false)
    }

    fn plan_with(&self, verb: NodesVerb, choice: &Choice, is_ready: &dyn Fn(usize) -> bool) -> NodesPlan {
        let selects = if verb == NodesVerb::Destroy { Verb::Remove } else { Verb::Make };
        let selection = select(self.forest(), choice, selects, &|_| false).unwrap();
        plan_nodes(verb, &self.manifest.value, self.forest(), &self.checked, &selection, is_ready)
    }

    /// Every row on a line: task, mode, action, place, what it waits for.
    fn shown(&self, verb: NodesVerb, choice: &Choice) -> Vec<String> {
        let rows = self.plan(verb, choice).to_json(self.forest(), &BTreeMap::new());
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        let show = |row: &Value| {
            let waits: Vec<&str> =
                row["depends_on"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            format!(
                "{} {} {} {} <- {}",
                text(row, "task"),
                text(row, "mode"),
                text(row, "action"),
                text(row, "at"),
                waits.join(" ")
            )
        };
        rows.as_array().unwrap().iter().map(show).collect()
    }
}

const NESTED: &str = "execution: {default_mode: pull}
nodes:
  - {name: quay, type: pve, spec: base, execution: {mode: push}}
  - {name: crane, type: vm, spec: base, parent: quay}
  - {name: hook, type: vm, parent: crane, execution: {phases: {destroy: pull}}}
";

/// Case 10: three levels, top down; destroy is the reverse. Case 12: the modes are in the rows.
#[test]
fn three_levels_are_made_top_down_and_removed_bottom_up() {
    let case = Case::new(NESTED);
    assert_eq!(
        case.shown(NodesVerb::Create, &Choice::default()),
        [
            "quay.create push make local <- ",
            "quay.config push apply local <- quay.create",
            "quay.hosting push check-hosting local <- quay.config",
            "crane.create push make quay <- quay.hosting",
            "crane.config pull await quay <- crane.create",
            "crane.hosting pull check-hosting quay <- crane.config",
            "hook.create push make quay/crane <- crane.hosting",
        ]
    );
    assert_eq!(
        case.shown(NodesVerb::Destroy, &Choice::default()),
        [
            "hook.destroy pull terminate quay/crane <- ",
            "crane.destroy push remove quay <- hook.destroy",
            "quay.destroy push remove local <- crane.destroy",
        ]
    );
}

/// Case 11: two roots with children; a leaf brings its root, a root takes its leaves.
#[test]
fn selections_are_planned_with_what_they_need() {
    let case = Case::new(
        "nodes: [{name: r1, type: vm}, {name: c1, type: vm, parent: r1}, {name: r2, type: vm}, {name: c2, type: vm, parent: r2}]\n",
    );
    let names = |verb, choice: &Choice| -> Vec<String> {
        let rows = case.shown(verb, choice);
        rows.iter().map(|row| row.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let only = |name: &str| Choice { only: vec![name.to_owned()], depth: None };
    assert_eq!(
        names(NodesVerb::Create, &Choice { depth: Some(1), only: vec![] }),
        ["r1.create", "r1.hosting", "r2.create", "r2.hosting"]
    );
    assert_eq!(names(NodesVerb::Create, &only("c2")), ["r2.create", "r2.hosting", "c2.create"]);
    assert_eq!(names(NodesVerb::Destroy, &only("r2")), ["c2.destroy", "r2.destroy"]);
}

/// Section 6: a peer that became its spec before is linked with; one that did not is not.
#[test]
fn a_peer_that_was_made_before_is_linked_with() {
    let case =
        Case::new("nodes: [{name: a, type: vm, peers: [b, c]}, {name: b, type: vm}, {name: c, type: vm}]\n");
    let only = Choice { only: vec!["b,c".to_owned()], depth: None };
    let names = |is_ready: &dyn Fn(usize) -> bool| -> Vec<String> {
        let plan = case.plan_with(NodesVerb::Create, &only, is_ready);
        (0..plan.tasks.len()).map(|row| plan.name(case.forest(), row)).collect()
    };
    assert_eq!(names(&|_| false), ["b.create", "c.create"]);
    assert_eq!(names(&|index| index == 0), ["b.create", "c.create", "a.link.b", "a.link.c"]);
    let none = Choice { only: vec!["b".to_owned()], depth: None };
    let plan = case.plan_with(NodesVerb::Create, &none, &|_| true);
    assert_eq!(plan.tasks.len(), 2, "peers that are both there are left alone");
}

#[test]
fn peers_are_linked_when_both_are_ready_and_a_test_ends_with_nothing() {
    let case = Case::new("nodes: [{name: a, type: vm, peers: [b]}, {name: b, type: vm, depends_on: [a]}]\n");
    assert_eq!(
        case.shown(NodesVerb::Test, &Choice::default()),
        [
            "a.create push make local <- ",
            "b.create push make local <- a.create",
            "a.link.b push link local <- a.create b.create",
            "a.verify push verify local <- a.create a.link.b",
            "b.verify push verify local <- b.create a.link.b",
            "verified push verified local <- a.verify b.verify",
            "b.destroy push remove local <- verified",
            "a.destroy push remove local <- b.destroy",
        ]
    );
    let trees = Case::new(
        "nodes: [{name: a, type: vm}, {name: b, type: vm, parent: a}, {name: c, type: vm, parent: b, peers: [d]}, {name: d, type: vm, parent: b}, {name: e, type: vm, parent: a, peers: [c]}]\n",
    );
    let links: Vec<String> = trees
        .shown(NodesVerb::Create, &Choice::default())
        .into_iter()
        .filter(|row| row.contains(".link."))
        .collect();
    assert_eq!(
        links.iter().map(|row| row.split(" <-").next().unwrap_or_default()).collect::<Vec<_>>(),
        ["c.link.d push link a/b", "c.link.e push link a"]
    );
}

#[test]
fn deep_and_wide_plans_are_made_without_recursion() {
    let mut deep = String::from("nodes:\n- {name: n0, type: vm}\n");
    (1..2000).for_each(|i| deep.push_str(&format!("- {{name: n{i}, type: vm, parent: n{}}}\n", i - 1)));
    let case = Case::new(&deep);
    assert_eq!(
        case.plan(NodesVerb::Test, &Choice::default())
            .to_json(case.forest(), &BTreeMap::new())
            .as_array()
            .unwrap()
            .len(),
        2000 * 3 + 1999 + 1
    );
    let mut wide = String::from("nodes:\n- {name: hub, type: vm}\n");
    (1..10_000).for_each(|i| wide.push_str(&format!("- {{name: n{i}, type: vm, parent: hub}}\n")));
    let case = Case::new(&wide);
    assert_eq!(case.plan(NodesVerb::Create, &Choice::default()).tasks.len(), 10_001);
}

/// A random forest: parents earlier, dependencies on earlier siblings, links at random.
fn forests() -> impl Strategy<Value = String> {
    let node = (any::<prop::sample::Index>(), 0..3u8, any::<prop::sample::Index>(), 0..4u8);
    prop::collection::vec(node, 1..20).prop_map(|nodes| {
        let mut text = String::from("nodes:\n");
        let mut parents: Vec<Option<usize>> = Vec::new();
        for (i, (parent, kind, other, how)) in nodes.iter().enumerate() {
            let parent = (i > 0 && *kind > 0).then(|| parent.index(i));
            let mut line = format!("  - {{name: n{i}, type: vm");
            if let Some(parent) = parent {
                line.push_str(&format!(", parent: n{parent}"));
            }
            if *how == 1 && i > 0 {
                let other = other.index(i);
                if parents[other] == parent {
                    line.push_str(&format!(", depends_on: [n{other}]"));
                }
            }
            if *how == 2 && i > 0 {
                line.push_str(&format!(", peers: [n{}]", other.index(i)));
            }
            if *how == 3 {
                line.push_str(", spec: base, execution: {mode: pull}");
            }
            parents.push(parent);
            text.push_str(&line);
            text.push_str("}\n");
        }
        text
    })
}

proptest! {
    /// Every row waits only for earlier ones; a child is made after its parent is ready; each node once per phase.
    #[test]
    fn plans_are_in_order(text in forests()) {
        let case = Case::new(&text);
        let forest = case.forest();
        for verb in [NodesVerb::Create, NodesVerb::Destroy, NodesVerb::Test] {
            let plan = case.plan(verb, &Choice::default());
            let mut names = std::collections::BTreeSet::new();
            for (row, task) in plan.tasks.iter().enumerate() {
                prop_assert!(task.depends_on.iter().all(|before| *before < row));
                prop_assert!(names.insert(plan.name(forest, row)));
                if let (Some(node), None) = (task.node, task.peer) {
                    prop_assert_eq!(task.at, forest.nodes[node].parent);
                }
                if task.action == NodeAction::Make && let Some(parent) = task.node.and_then(|node| forest.nodes[node].parent) {
                    prop_assert!(task.depends_on.iter().any(|before| plan.tasks[*before].node == Some(parent)
                        && plan.tasks[*before].action == NodeAction::CheckHosting));
                }
            }
        }
    }

    /// Destroy is the exact reverse of create.
    #[test]
    fn destroy_reverses_create(text in forests()) {
        let case = Case::new(&text);
        let of = |verb, phase| -> Vec<Option<usize>> {
            let plan = case.plan(verb, &Choice::default());
            plan.tasks.iter().filter(|task| task.phase == phase).map(|task| task.node).collect()
        };
        let mut made = of(NodesVerb::Create, Phase::Create);
        made.reverse();
        prop_assert_eq!(made, of(NodesVerb::Destroy, Phase::Destroy));
    }
}

mod levels {
    use std::collections::BTreeSet;

    use stead_model::NodeName;
    use stead_model::plan::{Action, OnFailure, Section, TriggerRule};
    use stead_model::site::host::Timeouts;
    use stead_model::site::manifest::OnNodeError;

    use super::*;
    use crate::compile::CompiledPlan;

    fn level(case: &Case, verb: NodesVerb, choice: &Choice, on_error: OnNodeError) -> CompiledPlan {
        let timeouts = |_: &NodeName| Timeouts::default();
        let pulls = case.forest().roots().filter(|root| case.checked.nodes[*root].modes.config != Mode::Push);
        let served: BTreeSet<NodeName> = pulls.map(|root| case.forest().nodes[root].name.clone()).collect();
        let level =
            Level { on_error, parallel: 8, ..Level::new(verb, &case.manifest.value, &timeouts, &served) };
        to_plan(&level, case.forest(), &case.plan(verb, choice)).unwrap()
    }

    /// Every task on a line: name, operation, what it waits for.
    fn shown(compiled: &CompiledPlan) -> Vec<String> {
        let show = |task: &stead_model::Task| {
            let Action::Op(part) = &task.action else { panic!("{}", task.name) };
            let waits: Vec<&str> = task.depends_on.iter().map(|name| name.as_str()).collect();
            format!("{} {} <- {}", task.name, part.op.operation, waits.join(" "))
        };
        compiled.plan.tasks.iter().map(show).collect()
    }

    const TREE: &str = "nodes:
- {name: quay, type: pve, spec: base}
- {name: crane, type: vm, spec: base, parent: quay, count: 2}
- {name: hook, type: vm, parent: crane-1}
- {name: buoy, type: vm, execution: {mode: pull}, spec: base}
";

    #[test]
    fn what_another_machine_makes_is_one_task_of_it() {
        let case = Case::new(TREE);
        let name = |text: &str| NodeName::parse(text).unwrap();
        let plan = |verb: NodesVerb, hosts: &[(&str, &str)], swept: &[&str]| {
            let hosts = hosts.iter().map(|(root, host)| (name(root), (*host).to_owned())).collect();
            let swept = swept.iter().map(|host| (*host).to_owned()).collect();
            let (timeouts, served) = (|_: &NodeName| Timeouts::default(), BTreeSet::new());
            let made = Level::new(verb, &case.manifest.value, &timeouts, &served);
            let level = Level { parallel: 8, hosts: &hosts, swept: &swept, ..made };
            let rows = case.plan(verb, &Choice::default());
            (shown(&to_plan(&level, case.forest(), &rows).unwrap()), rows.to_json(case.forest(), &hosts))
        };
        let (tasks, rows) = plan(NodesVerb::Create, &[("quay", "attic")], &[]);
        assert_eq!(
            tasks,
            [
                "host_attic.create node.delegate <- ",
                "buoy.create node.make <- ",
                "buoy.config node.await <- buoy.create",
            ]
        );
        let at = |task: &str| {
            let row = rows.as_array().unwrap().iter().find(|row| row["task"] == task);
            row.unwrap()["at"].clone()
        };
        assert_eq!((at("quay.create"), at("crane-1.create")), ("attic".into(), "attic/quay".into()));
        assert_eq!((at("hook.create"), at("buoy.create")), ("attic/quay/crane-1".into(), "local".into()));
        let both = [("quay", "attic"), ("buoy", "attic")];
        let (tasks, _) = plan(NodesVerb::Destroy, &both, &["attic", "cellar"]);
        let expected = ["host_attic.destroy node.delegate <- ", "host_cellar.destroy node.delegate <- "];
        assert_eq!(tasks, expected);
    }

    /// A machine that only looks for what nobody describes any more has the time that its own host gives it.
    #[test]
    fn what_is_swept_may_take_as_long_as_its_host_says() {
        let case = Case::new(TREE);
        let (timeouts, served) = (|_: &NodeName| Timeouts::default(), BTreeSet::new());
        let swept = BTreeSet::from(["attic".to_owned(), "cellar".to_owned()]);
        let own = |host: &str| match host {
            "attic" => Timeouts { delegate: 77, ..Timeouts::default() },
            _ => Timeouts::default(),
        };
        let made = Level::new(NodesVerb::Destroy, &case.manifest.value, &timeouts, &served);
        let level = Level { parallel: 8, swept: &swept, swept_timeouts: &own, ..made };
        let rows = case.plan(NodesVerb::Destroy, &Choice::default());
        let plan = to_plan(&level, case.forest(), &rows).unwrap();
        let seconds = |name: &str| {
            let task = plan.plan.tasks.iter().find(|task| task.name.as_str() == name).unwrap();
            task.settings.timeout.unwrap().as_secs()
        };
        assert_eq!(seconds("host_cellar.destroy") - seconds("host_attic.destroy"), 1800 - 77);
    }

    #[test]
    fn what_is_below_is_one_task_of_the_hosting_node() {
        let case = Case::new(TREE);
        let create = level(&case, NodesVerb::Create, &Choice::default(), OnNodeError::Stop);
        assert_eq!(
            shown(&create),
            [
                "quay.create node.make <- ",
                "quay.config node.push <- quay.create",
                "quay.hosting node.hosting <- quay.config",
                "buoy.create node.make <- server",
                "buoy.config node.await <- buoy.create",
                "quay.children.create node.delegate <- quay.hosting",
                "server node.server <- ",
            ]
        );
        let destroy = level(&case, NodesVerb::Destroy, &Choice::default(), OnNodeError::Stop);
        assert_eq!(
            shown(&destroy),
            [
                "quay.children.destroy node.delegate <- ",
                "buoy.destroy node.remove <- ",
                "quay.destroy node.remove <- quay.children.destroy",
                "server.release node.server <- buoy.destroy quay.destroy",
            ]
        );
        assert!(destroy.plan.tasks.iter().all(|task| task.settings.trigger_rule == TriggerRule::AllDone));
    }

    #[test]
    fn a_test_looks_only_at_what_was_made_and_removes_whatever_happened() {
        let case = Case::new("nodes: [{name: a, type: vm}]\n");
        let test = level(&case, NodesVerb::Test, &Choice::default(), OnNodeError::Rollback);
        assert_eq!(
            shown(&test),
            [
                "a.create node.make <- ",
                "a.verify node.verify <- a.create created",
                "verified node.milestone <- a.verify created",
                "created node.milestone <- a.create",
                "a.destroy node.remove <- ",
            ]
        );
        assert_eq!(test.plan.tasks.last().unwrap().section, Section::Finally);
        assert_eq!(test.plan.on_failure, OnFailure::Keep);
    }

    #[test]
    fn rollback_removes_what_the_run_made_and_no_other_policy_does() {
        let case = Case::new(TREE);
        let undone = |on_error| {
            let plan = level(&case, NodesVerb::Create, &Choice::default(), on_error);
            let undone = plan.plan.tasks.iter().filter(|task| task.settings.undo.is_some());
            (plan.plan.on_failure, undone.map(|task| task.name.to_string()).collect::<Vec<_>>())
        };
        let made = ["quay.create", "buoy.create", "quay.children.create"].map(str::to_owned);
        assert_eq!(undone(OnNodeError::Rollback), (OnFailure::Rollback, made.to_vec()));
        assert_eq!(undone(OnNodeError::Stop), (OnFailure::Keep, Vec::new()));
        assert_eq!(undone(OnNodeError::Continue), (OnFailure::Keep, Vec::new()));
    }

    #[test]
    fn links_across_trees_are_made_by_the_level_that_holds_both() {
        let long = "n".repeat(63);
        let other = "m".repeat(63);
        let case = Case::new(&format!(
            "nodes:\n- {{name: a, type: vm}}\n- {{name: {long}, type: vm, parent: a, peers: [{other}]}}\n\
             - {{name: b, type: vm}}\n- {{name: {other}, type: vm, parent: b}}\n"
        ));
        let plan = level(&case, NodesVerb::Create, &Choice::default(), OnNodeError::Stop);
        let last = shown(&plan).pop().unwrap();
        assert!(
            last.starts_with("link.") && last.ends_with("<- a.children.create b.children.create"),
            "{last}"
        );
    }

    proptest! {
        /// Section 6: whatever the forest, only this level is acted on, and everything below comes after its parent.
        #[test]
        fn any_forest_has_a_plan_of_its_first_level(
            parents in prop::collection::vec(prop::option::of(0_usize..40), 1..40),
            destroys in any::<bool>(),
        ) {
            let mut nodes = String::from("nodes:\n");
            for (index, parent) in parents.iter().enumerate() {
                let parent = parent.filter(|parent| *parent < index);
                let parent = parent.map_or_else(String::new, |parent| format!(", parent: n{parent}"));
                nodes.push_str(&format!("- {{name: n{index}, type: vm{parent}}}\n"));
            }
            let case = Case::new(&nodes);
            let verb = if destroys { NodesVerb::Destroy } else { NodesVerb::Create };
            let compiled = level(&case, verb, &Choice::default(), OnNodeError::Stop);
            let names: BTreeSet<&str> = compiled.plan.tasks.iter().map(|task| task.name.as_str()).collect();
            for root in case.forest().roots() {
                let node = &case.forest().nodes[root];
                let task = format!("{}.{}", node.name, verb.word());
                prop_assert!(names.contains(task.as_str()));
                let below = format!("{}.children.{}", node.name, verb.word());
                prop_assert_eq!(names.contains(below.as_str()), !node.children.is_empty());
                let waits = |task: &str| {
                    let task = compiled.plan.tasks.iter().find(|one| one.name.as_str() == task);
                    task.map(|task| task.depends_on.iter().map(ToString::to_string).collect::<Vec<_>>())
                };
                if destroys && !node.children.is_empty() {
                    prop_assert_eq!(waits(&format!("{}.destroy", node.name)), Some(vec![below]));
                } else if !node.children.is_empty() {
                    prop_assert_eq!(waits(&below), Some(vec![format!("{}.hosting", node.name)]));
                }
            }
            let deep = case.forest().nodes.iter().filter(|node| node.parent.is_some());
            let tasks = deep.into_iter().map(|node| format!("{}.{}", node.name, verb.word()));
            let planned: Vec<String> = tasks.filter(|task| names.contains(task.as_str())).collect();
            prop_assert!(planned.is_empty());
        }
    }
}
