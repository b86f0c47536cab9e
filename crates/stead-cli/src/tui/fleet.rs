//! The Fleet view's state: what `stead fleet status` tells, as rows that can be chosen and opened.

use serde_json::Value;
use stead_model::time::Timestamp;

use super::filter::Filter;
use super::key::Key;
use super::pace::Pace;
use super::scroll::Scroll;
use super::trouble::Trouble;
use crate::commands::fleet::shown::{list, text, why};
use crate::render::one_line;

/// How long after an answer a master is asked again.
const BETWEEN_QUESTIONS_MILLIS: u64 = 2_000;

/// A part of the view, in the order they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    /// Instances that are not as they should be.
    Wrong,
    /// Groups.
    Groups,
    /// Rollouts that are not done.
    Rollouts,
    /// Workers.
    Workers,
    /// Instances that are as they should be.
    Instances,
}

impl Section {
    /// Every part, in order.
    pub(crate) const ALL: [Self; 5] =
        [Self::Wrong, Self::Groups, Self::Rollouts, Self::Workers, Self::Instances];

    /// Returns what it is called.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Wrong => "Not as they should be",
            Self::Groups => "Groups",
            Self::Rollouts => "Rollouts",
            Self::Workers => "Workers",
            Self::Instances => "Instances",
        }
    }

    /// Returns where its items are in a status, and which word of theirs is their name.
    const fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Wrong | Self::Instances => ("instances", "key"),
            Self::Groups => ("groups", "group"),
            Self::Rollouts => ("rollouts", "vm"),
            Self::Workers => ("workers", "id"),
        }
    }

    /// Whether an item of a status stands in this part.
    fn has(self, item: &Value) -> bool {
        let is_wrong = !text(item, "code").is_empty();
        match self {
            Self::Wrong => is_wrong,
            Self::Instances => !is_wrong,
            Self::Rollouts => text(item, "state") != "done",
            Self::Groups | Self::Workers => true,
        }
    }
}

/// A row of the view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    /// In which part it stands.
    pub(crate) section: Section,
    /// What the status tells of it.
    pub(crate) told: &'a Value,
}

impl<'a> Item<'a> {
    /// Returns its name.
    pub(crate) fn name(self) -> &'a str {
        text(self.told, self.section.keys().1)
    }

    /// Returns the word for how it stands.
    pub(crate) fn word(self) -> String {
        let told = self.told;
        match self.section {
            Section::Groups => {
                let is = |key: &str| told.get(key).is_some_and(|value| !value.is_null());
                let failed = told.pointer("/evaluated/error").is_some();
                match (failed, is("held"), told.get("suspended") == Some(&Value::Bool(true)), is("active")) {
                    (true, ..) => "failed",
                    (_, true, ..) => "held",
                    (_, _, true, _) => "suspended",
                    (_, _, _, true) => "active",
                    (_, _, _, false) => "nothing active",
                }
                .to_owned()
            }
            Section::Wrong | Section::Instances => match (text(told, "state"), told.get("ready")) {
                ("running", Some(Value::Bool(true))) => "ready".to_owned(),
                (state, _) => state.replace('_', " "),
            },
            Section::Rollouts | Section::Workers => text(told, "state").replace('_', " "),
        }
    }

    /// Returns what is wrong with it and what to do; empty if nothing is.
    pub(crate) fn why(self) -> String {
        let told = self.told;
        let held = || told.get("held").map(why).unwrap_or_default();
        let error =
            || told.pointer("/evaluated/error").and_then(Value::as_str).unwrap_or_default().to_owned();
        let ways = [why(told), held(), error(), text(told, "why").to_owned()];
        one_line(ways.iter().find(|why| !why.is_empty()).map_or("", String::as_str))
    }

    /// Returns the code of what is wrong with it.
    pub(crate) fn code(self) -> Option<&'a str> {
        let held = self.told.get("held").map(|held| text(held, "code"));
        [Some(text(self.told, "code")), held].into_iter().flatten().find(|code| !code.is_empty())
    }
}

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where it stands; an instance that gets well stays what it is.
    pub(crate) section: Section,
    /// Its name.
    pub(crate) name: String,
}

impl Place {
    fn means(&self, item: Item<'_>) -> bool {
        self.section.keys() == item.section.keys() && self.name == item.name()
    }
}

/// Something that is looked at.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What.
    pub(crate) place: Place,
    /// Why an instance is where it is, line by line; none while that is asked for.
    pub(crate) explained: Option<Result<Vec<String>, Trouble>>,
    /// Which part is on the screen.
    pub(crate) scroll: Scroll,
}

/// The Fleet view.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// What was told last.
    pub(crate) status: Option<Value>,
    /// Why nothing newer was told.
    pub(crate) trouble: Option<Trouble>,
    /// When a master is asked.
    pub(crate) pace: Pace,
    /// What narrows the list.
    pub(crate) filter: Filter,
    at: usize,
    /// What is open.
    pub(crate) open: Option<Opened>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            status: None,
            trouble: None,
            pace: Pace::every(BETWEEN_QUESTIONS_MILLIS),
            filter: Filter::default(),
            at: 0,
            open: None,
        }
    }
}

impl Fleet {
    /// Returns everything that can be chosen, part by part.
    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let status = self.status.as_ref();
        Section::ALL.into_iter().flat_map(move |section| {
            let all = status.into_iter().flat_map(move |status| list(status, section.keys().0));
            all.filter(move |told| section.has(told)).map(move |told| Item { section, told })
        })
    }

    /// Returns what fits the filter.
    pub(crate) fn shown(&self) -> Vec<Item<'_>> {
        let words = self.filter.words();
        let fits = |item: &Item<'_>| {
            let (word, why) = (item.word(), item.why());
            let more = [text(item.told, "worker"), text(item.told, "group")];
            words
                .fit([item.name(), item.section.title(), word.as_str(), why.as_str()].into_iter().chain(more))
        };
        self.items().filter(fits).collect()
    }

    /// Returns which of the items that are shown is at the cursor.
    pub(crate) fn at(&self) -> usize {
        self.at.min(self.shown().len().saturating_sub(1))
    }

    fn chosen(&self) -> Option<Place> {
        let shown = self.shown();
        let item = shown.get(self.at())?;
        Some(Place { section: item.section, name: item.name().to_owned() })
    }

    /// Takes what a master told; the cursor stays at its item.
    pub(crate) fn take(&mut self, told: Result<Value, Trouble>, now: Timestamp) {
        self.pace.answer(now);
        let chosen = self.chosen();
        match told {
            Ok(status) => (self.status, self.trouble) = (Some(status), None),
            Err(trouble) => self.trouble = Some(trouble),
        }
        let stays = |item: &Item<'_>| chosen.as_ref().is_some_and(|chosen| chosen.means(*item));
        if let Some(at) = self.shown().iter().position(stays) {
            self.at = at;
        }
    }

    /// Takes why an instance is where it is; one that is not looked at any more is forgotten.
    pub(crate) fn take_explained(&mut self, instance: &str, explained: Result<Vec<String>, Trouble>) {
        if let Some(open) = self.open.as_mut().filter(|open| open.place.name == instance) {
            open.explained = Some(explained);
        }
    }

    /// Returns what is open, if it is still there.
    pub(crate) fn opened(&self) -> Option<Item<'_>> {
        let place = &self.open.as_ref()?.place;
        self.items().find(|item| place.means(*item))
    }

    /// Opens what is at the cursor; returns the instance to ask about, if it is one.
    pub(crate) fn open(&mut self) -> Option<String> {
        let place = self.chosen()?;
        let name = place.name.clone();
        let is_instance = place.section.keys() == Section::Instances.keys();
        self.open = Some(Opened { place, explained: None, scroll: Scroll::default() });
        is_instance.then_some(name)
    }

    /// Takes a key that moves the cursor of the list by `page` rows at most.
    pub(crate) fn step(&mut self, key: Key, page: usize) {
        self.at = super::scroll::moved(self.at(), self.shown().len(), key, page);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tui::testing::fleet_status;

    fn names(fleet: &Fleet) -> Vec<String> {
        fleet.shown().iter().map(|item| format!("{} {}", item.name(), item.word())).collect()
    }

    #[test]
    fn what_is_wrong_stands_first_and_words_narrow() {
        let mut fleet = Fleet::default();
        fleet.take(Ok(fleet_status()), Timestamp::from_micros(0));
        let all = ["web/1 backoff", "lab held", "web held", "w1 ready", "w2 lost", "web/0 ready"];
        assert_eq!(names(&fleet), all);
        fleet.filter.begin();
        "lost".chars().for_each(|c| fleet.filter.press(Key::Char(c)));
        assert_eq!(names(&fleet), ["w2 lost"]);
        fleet.filter.clear();
        "w1".chars().for_each(|c| fleet.filter.press(Key::Char(c)));
        assert_eq!(names(&fleet), ["w1 ready", "web/0 ready"], "what is on it, too");
    }

    #[test]
    fn an_instance_that_gets_well_stays_chosen_and_open() {
        let mut fleet = Fleet::default();
        let now = Timestamp::from_micros(0);
        fleet.take(Ok(fleet_status()), now);
        assert_eq!(fleet.open().as_deref(), Some("web/1"));
        let mut well = fleet_status();
        well["instances"][1] = json!({"key": "web/1", "worker": "w1", "state": "running", "ready": true});
        fleet.take(Ok(well), now);
        assert_eq!(fleet.opened().map(Item::word).as_deref(), Some("ready"));
        assert_eq!(fleet.chosen().map(|place| place.name).as_deref(), Some("web/1"));
        fleet.take_explained("web/0", Ok(Vec::new()));
        assert!(fleet.open.as_ref().is_some_and(|open| open.explained.is_none()), "that was another");
        fleet.step(Key::Home, 5);
        assert_eq!(fleet.open(), None, "a group is not an instance");
    }

    #[test]
    fn whatever_a_master_says_is_borne() {
        let mut fleet = Fleet::default();
        for odd in [json!(null), json!([]), json!({"instances": [1, {}, {"key": 7}], "workers": "x"})] {
            fleet.take(Ok(odd), Timestamp::from_micros(0));
            fleet.shown();
            fleet.open();
        }
    }
}
