//! Serde forms of values that `plan.json` writes in its own words.

/// A run's name, or `auto`.
pub(super) mod auto {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::id::RunId;

    pub(crate) const AUTO: &str = "auto";

    pub(in crate::run_plan) fn serialize<S: Serializer>(
        id: &Option<RunId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(id.as_ref().map_or(AUTO, RunId::as_str))
    }

    pub(in crate::run_plan) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<RunId>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == AUTO { Ok(None) } else { RunId::parse(&text).map(Some).map_err(serde::de::Error::custom) }
    }
}

/// A limit in seconds: whole where it is, null if there is none.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::run_plan) fn serialize<S: Serializer>(
        limit: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match limit {
            None => serializer.serialize_none(),
            Some(limit) if limit.subsec_nanos() == 0 => serializer.serialize_u64(limit.as_secs()),
            Some(limit) => serializer.serialize_f64(limit.as_secs_f64()),
        }
    }

    pub(in crate::run_plan) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)).transpose()
    }
}
