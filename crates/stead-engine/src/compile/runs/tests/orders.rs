//! Instances, needs and phases.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stead_model::plan::Section;
use stead_model::run_plan::RoleKind;

use super::*;
use crate::compile::runs::instances;

/// The phases of a server and a client are exactly these.
#[test]
fn the_phases_of_server_and_client() {
    let manifest =
        short("  client: {agent: local, scenario: s, duration_seconds: 1}\n  server: {agent: local}\n");
    let run = Wish { files: PUMP, ..Wish::of(&manifest) }.compile().unwrap();
    assert_eq!(
        names(&run),
        [
            "init",
            "stage",
            "server_start",
            "server_ready",
            "client_start",
            "client_done",
            "server_stop",
            "collect",
            "bundle",
            "analyze",
            "diff",
        ]
    );
    assert_eq!(run.run.analyze, Analyze::Auto);
}

/// Case 10: needs decide the order, ties are as written, stops are the other way round.
#[test]
fn three_services_and_two_tasks_start_in_order() {
    let manifest = general(
        "  last: {needs: [web, first], command: [x]}\n  web: {kind: service, needs: [db, log], command: [x]}\n  \
         log: {kind: service, command: [x]}\n  first: {command: [x]}\n  db: {kind: service, needs: [log], command: [x]}\n",
    );
    let run = Wish::of(&manifest).compile().unwrap();
    assert_eq!(run.run.start_order, ["log", "first", "db", "web", "last"]);
    let all = names(&run);
    let stops: Vec<&String> = all.iter().filter(|name| name.ends_with("_stop")).collect();
    assert_eq!(stops, ["web_stop", "db_stop", "log_stop"]);
    let task = |name: &str| run.compiled.plan.tasks.iter().find(|task| task.name.as_str() == name).unwrap();
    let before: Vec<&str> = task("last_start").depends_on.iter().map(|name| name.as_str()).collect();
    assert_eq!(before, ["web_ready", "first_done"]);
}

/// Case 10: roles that wait for each other, or for nobody.
#[test]
fn cycles_and_unknown_needs_are_refused() {
    let manifest = general(
        "  a: {needs: [b], command: [x]}\n  b: {needs: [c], command: [x]}\n  c: {needs: [b], command: [x]}\n",
    );
    let found = Wish::of(&manifest).problems();
    assert!(found.len() == 1 && found[0].contains("roles wait for each other: b -> c -> b"), "{found:?}");
    let own = Wish::of(&general("  a: {needs: a, command: [x]}\n")).problems();
    assert!(own[0].contains("a -> a"), "{own:?}");
    let unknown =
        Wish::of(&general("  a: {needs: [storee], command: [x]}\n  store: {command: [x]}\n")).problems();
    assert!(
        unknown[0].contains("roles.a.needs[0]: there is no role `storee` (help: did you mean `store`?)"),
        "{unknown:?}"
    );
}

/// Case 10: two values and three repetitions are six instances, in order.
#[test]
fn a_matrix_of_two_repeated_three_times_gives_six_instances() {
    let manifest = general(
        "  load: {command: [x, '{{ matrix.size }}', '{{ role.index }}'], matrix: {size: [1, 64]}, repeat: 3}\n  \
         after: {needs: [load], command: [x]}\n",
    );
    let run = Wish::of(&manifest).run();
    let lines: Vec<String> =
        run.in_start_order().map(|(name, role)| format!("{name}: {}", argv(role).join(" "))).collect();
    assert_eq!(
        lines,
        [
            "load-1: x 1 1",
            "load-2: x 1 2",
            "load-3: x 1 3",
            "load-4: x 64 4",
            "load-5: x 64 5",
            "load-6: x 64 6",
            "after: x",
        ]
    );
    assert_eq!(run.roles["after"].needs.len(), 6);
    assert_eq!(
        (run.roles["load-5"].repeat_index, &run.roles["load-5"].matrix["size"]),
        (Some(2), &json!(64))
    );
}

#[test]
fn the_last_key_of_a_matrix_varies_fastest() {
    let manifest =
        general("  a: {command: [x, '{{ matrix.z }}{{ matrix.b }}'], matrix: {z: [1, 2], b: [x, y]}}\n");
    let run = Wish::of(&manifest).run();
    let words: Vec<&str> = run.in_start_order().map(|(_, role)| argv(role)[1]).collect();
    assert_eq!(words, ["1x", "1y", "2x", "2y"]);
}

#[test]
fn names_of_instances_must_be_free_and_few() {
    let taken = Wish::of(&general("  a: {command: [x], repeat: 2}\n  a-2: {command: [x]}\n")).problems();
    assert!(taken.len() == 1 && taken[0].contains("an instance of `a` is called `a-2`"), "{taken:?}");
    let many = general("  a: {command: [x], repeat: 1000, matrix: {a: [1, 2, 3, 4, 5]}}\n");
    let many = Wish::of(&many).problems();
    assert!(many[0].contains("5000 role instances; at most 4000"), "{many:?}");
    let several = general(
        "  s: {kind: service, command: [x], repeat: 2}\n  a: {needs: [s], command: ['{{ roles.s.ready.x }}']}\n",
    );
    let several = Wish::of(&several).problems();
    assert!(several[0].contains("say which one: `roles['s-1']`"), "{several:?}");
}

fn any_needs() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    (1_usize..12).prop_flat_map(|count| {
        let needs = prop::collection::btree_set(0..count, 0..3);
        prop::collection::vec(needs, count)
    })
}

/// Needs without a cycle: of roles that come earlier in some order.
fn needs_without_cycle() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    let ranks = Just((0..12).collect::<Vec<usize>>()).prop_shuffle();
    (any_needs(), ranks).prop_map(|(mut all, ranks)| {
        for (role, needs) in all.iter_mut().enumerate() {
            needs.retain(|need| ranks[*need] < ranks[role]);
        }
        all
    })
}

proptest! {
    /// Every role starts after those it needs, once; roles in no cycle and behind none are never left out.
    #[test]
    fn start_orders_keep_needs(needs in any_needs()) {
        let order = instances::start_order(&needs);
        for (at, role) in order.iter().enumerate() {
            prop_assert!(needs[*role].iter().all(|need| order[..at].contains(need)));
        }
        match instances::cycle(&needs) {
            None => prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), needs.len()),
            Some(cycle) => {
                prop_assert_eq!(cycle.first(), cycle.last());
                prop_assert!(cycle.windows(2).all(|pair| needs[pair[0]].contains(&pair[1])));
                prop_assert!(order.len() < needs.len());
            }
        }
    }

    /// Phases of a plan: every role has its own, in start order; services stop the other way round; then the last four.
    #[test]
    fn phases_follow_the_start_order(
        needs in needs_without_cycle(),
        kinds in prop::collection::vec(any::<bool>(), 12),
        repeats in prop::collection::vec(1_u32..3, 12),
    ) {
        let roles: String = needs.iter().enumerate().map(|(at, needs)| {
            let needs: Vec<String> = needs.iter().map(|need| format!("r{need}")).collect();
            let kind = if kinds[at] { "service" } else { "task" };
            format!("  r{at}: {{kind: {kind}, repeat: {}, needs: [{}], command: [x]}}\n", repeats[at], needs.join(", "))
        }).collect();
        let run = Wish::of(&general(&roles)).compile().unwrap();
        let of = |section: Section| -> Vec<String> {
            let tasks = run.compiled.plan.tasks.iter().filter(|task| task.section == section);
            tasks.map(|task| task.name.to_string()).collect()
        };
        let mut main = vec!["init".to_owned(), "stage".to_owned()];
        let mut last = Vec::new();
        for (name, role) in run.run.in_start_order() {
            let reached = match role.kind { RoleKind::Service => "ready", RoleKind::Task => "done" };
            main.extend([format!("{name}_start"), format!("{name}_{reached}")]);
            if role.kind == RoleKind::Service {
                last.insert(0, format!("{name}_stop"));
            }
        }
        if run.run.until != Until::Tasks {
            main.push("until".to_owned());
        }
        last.extend(["collect", "bundle", "analyze", "diff"].map(str::to_owned));
        prop_assert_eq!(of(Section::Main), main);
        prop_assert_eq!(of(Section::Finally), last);
        prop_assert_eq!(run.run.roles.len(), repeats[..needs.len()].iter().sum::<u32>() as usize);
    }
}
