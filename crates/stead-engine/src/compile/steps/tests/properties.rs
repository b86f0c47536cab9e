//! Properties of selection and compiling, over random catalogues and requests.

use proptest::prelude::*;

use super::*;

/// A catalogue of some steps in some order, with needs on earlier ones, gates and numbers that several share.
fn any_catalogue() -> impl Strategy<Value = (String, usize)> {
    let step = (any::<bool>(), 0..4_u8, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
    (prop::collection::vec(step, 1..12), any::<bool>()).prop_map(|(steps, by_needs)| {
        let count = steps.len();
        let order = if by_needs { "needs" } else { "listed" };
        let mut text = format!(
            "api_version: v1\nlayers: []\norder: {{ apply: {order} }}\ncontrols: {{ OFF: {{ type: bool, default: false }} }}\nsteps:\n"
        );
        for (at, (gated, number, needs)) in steps.iter().enumerate() {
            let gate = if *gated && at % 3 == 0 { ", gate: OFF" } else { "" };
            let needs: Vec<String> =
                if at == 0 { vec![] } else { needs.iter().map(|need| format!("s{}", need.index(at))).collect() };
            let needs = needs.join(", ");
            text.push_str(&format!("  s{at}: {{ run: x/{number}_s{at}.sh, needs: {{ apply: [{needs}] }}{gate} }}\n"));
        }
        let ids: Vec<String> = (0..count).map(|at| format!("s{at}")).collect();
        text.push_str(&format!("apply: [ {{ steps: [{}] }} ]\n", ids.join(", ")));
        (text, count)
    })
}

fn any_selection(count: usize) -> impl Strategy<Value = SelectionRow> {
    let token = prop_oneof![
        4 => (0..count).prop_map(|at| format!("s{at}")),
        1 => (0..4_u8).prop_map(|number| number.to_string()),
        1 => Just("nosuch".to_owned()),
    ];
    let needs = prop_oneof![Just(None), Just(Some(NeedsChoice::With)), Just(Some(NeedsChoice::Skip))];
    let tokens = prop::collection::vec(token.clone(), 0..4);
    (tokens.clone(), tokens, prop::option::of(token.clone()), prop::option::of(token), needs)
        .prop_map(|(only, skip, from, until, needs)| SelectionRow { only, skip, from, until, needs })
}

fn any_request() -> impl Strategy<Value = (String, SelectionRow)> {
    any_catalogue().prop_flat_map(|(text, count)| (Just(text), any_selection(count)))
}

proptest! {
    /// What is selected is in listed order, each step once; selected and left out together are the list.
    #[test]
    fn selection_keeps_the_order_and_takes_each_step_once((text, selection) in any_request()) {
        let catalogue = catalogue(&text);
        let values = values(&catalogue, "");
        let listed: Vec<&StepId> = catalogue.listed(StepMode::Apply).map(|(_, step)| &step.id).collect();
        match selected(&catalogue, StepMode::Apply, &selection, &values) {
            Ok(selected) => {
                let places: Vec<usize> = selected
                    .steps
                    .iter()
                    .map(|(_, step)| listed.iter().position(|id| **id == step.id).unwrap())
                    .collect();
                prop_assert!(!places.is_empty());
                prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", places);
                prop_assert_eq!(places.len() + selected.left_out.len(), listed.len());
                let runs = |id: &StepId| selected.steps.iter().any(|(_, step)| step.id == *id);
                prop_assert!(selected.left_out.iter().all(|left| !runs(&left.id)));
                for token in &selection.skip {
                    prop_assert!(!selected.steps.iter().any(|(_, step)| step.answers_to(token)));
                }
                if selection.needs != Some(NeedsChoice::Skip) {
                    let gated = |id: &StepId| {
                        selected.left_out.iter().any(|left| left.id == *id && left.cause == LeftOutCause::Gate)
                    };
                    for (_, step) in &selected.steps {
                        for need in &step.needs.apply {
                            prop_assert!(runs(&need.value) || gated(&need.value));
                        }
                    }
                }
            }
            Err(problems) => {
                prop_assert!(problems.has_errors());
                prop_assert!(problems.iter().all(|problem| problem.code.starts_with("steps/")));
            }
        }
    }

    /// Equal inputs give equal bytes, and everything a task waits for comes from its needs or its place.
    #[test]
    fn equal_inputs_give_equal_bytes((text, selection) in any_request()) {
        let make = || {
            let catalogue = catalogue(&text);
            let values = values(&catalogue, "");
            let selected = selected(&catalogue, StepMode::Apply, &selection, &values).ok()?;
            let operations = super::super::super::Catalogue::new([&SCRIPT, &SYNC]);
            let files = BTreeMap::new();
            let around = Surroundings { values: &values, files: &files, target: "t", operations: &operations };
            let plan = compile(&selected, &around).unwrap();
            Some((plan.compiled.plan.to_json(), plan.compiled.hash, plan.text(), plan.problems))
        };
        prop_assert_eq!(make(), make());
    }
}
