//! A store that several masters share: etcd, through its JSON gateway.
//!
//! etcd takes 128 operations and 1.5 MiB in one transaction. A larger one is written down first, in parts under `txn/`, and
//! is done with the one small transaction that writes `txn/pending` and has all its comparisons; then its parts are
//! applied, by whoever comes first, and the mark goes. Nobody sees a part of it: reads ask for the mark in the same
//! transaction and help when it is there, and a watch gives everything between mark and end at once.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_runner::clock;

use super::{
    Change, Committed, Entry, FleetStore, LeaseId, Range, Revision, StoreError, Txn, Watch, check, end_of,
};

mod http;
mod large;
mod watching;

pub use http::EtcdTls;
use http::{Again, Http};

/// Keys of one answer to a range.
const PAGE: usize = 2_000;

/// The most operations of one transaction; etcd takes 128.
const MOST_OPERATIONS: usize = 100;

/// The largest transaction; etcd takes 1.5 MiB, and bytes travel as base 64.
const LARGEST: usize = 1 << 20;

/// Where parts of large transactions are, hidden from everybody.
const PARTS: &str = "txn/";

/// The mark of a large transaction that is done and not yet applied.
const PENDING: &str = "txn/pending";

/// A store in etcd.
#[derive(Debug)]
pub struct Etcd {
    http: Http,
    prefix: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    revision: Number,
}

/// A number as the gateway writes it: as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Number(i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
            Value::Number(number) => Ok(Self(number.as_i64().unwrap_or(0))),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                Err(serde::de::Error::custom("no number"))
            }
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    key: String,
    value: String,
    mod_revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RangeAnswer {
    header: Header,
    kvs: Vec<KeyValue>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TxnAnswer {
    header: Header,
    succeeded: bool,
    responses: Vec<TxnPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TxnPart {
    response_range: Option<RangeAnswer>,
}

impl Etcd {
    /// Returns the store at `endpoints` (`HOST:PORT` or URLs), with `prefix` before every key. Nothing is asked yet.
    pub fn new(endpoints: &[String], prefix: &str, tls: Option<EtcdTls>) -> Result<Self, StoreError> {
        Ok(Self { http: Http::new(endpoints, tls)?, prefix: prefix.to_owned() })
    }

    fn coded(&self, key: &str) -> String {
        BASE64.encode(format!("{}{key}", self.prefix))
    }

    /// Returns the bounds of all keys that begin with `prefix`.
    fn bounds(&self, prefix: &str) -> (String, String) {
        let whole = format!("{}{prefix}", self.prefix);
        // After the whole space of keys comes nothing, which etcd writes as a zero byte.
        let end = end_of(&whole).map_or_else(|| BASE64.encode([0]), |end| BASE64.encode(end));
        let start = if whole.is_empty() { BASE64.encode([0]) } else { BASE64.encode(whole) };
        (start, end)
    }

    fn entry(&self, row: &KeyValue) -> Result<Entry, StoreError> {
        let garbled = |what: &str| StoreError::Unavailable(format!("etcd gave {what}"));
        let key = BASE64.decode(&row.key).ok().and_then(|key| String::from_utf8(key).ok());
        let key = key.ok_or_else(|| garbled("a key that is no text"))?;
        let key = key.strip_prefix(&self.prefix).ok_or_else(|| garbled("a key of others"))?.to_owned();
        let value = BASE64.decode(&row.value).map_err(|_| garbled("a value that is no base 64"))?;
        Ok(Entry { key, value, revision: row.mod_revision.0 })
    }

    async fn ask<T: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        body: &Value,
        again: Again,
    ) -> Result<T, StoreError> {
        let answer = self.http.ask(path, body, again).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| StoreError::Unavailable(format!("etcd answered {path} with no JSON: {error}")))
    }

    /// Asks for keys when nothing is pending; helps when something is.
    async fn settled(&self, request: &Value) -> Result<(RangeAnswer, Revision), StoreError> {
        loop {
            let body = json!({
                "compare": [self.compared(PENDING, 0)],
                "success": [{"request_range": request}],
                "failure": [{"request_range": {"key": self.coded(PENDING)}}],
            });
            let answer: TxnAnswer = self.ask("/v3/kv/txn", &body, Again::Always).await?;
            let revision = answer.header.revision.0;
            let part = answer.responses.into_iter().next().and_then(|part| part.response_range);
            let part = part.unwrap_or_default();
            if answer.succeeded {
                return Ok((part, revision));
            }
            if let Some(mark) = part.kvs.first() {
                self.apply(&self.entry(mark)?).await?;
            }
        }
    }

    fn compared(&self, key: &str, revision: Revision) -> Value {
        json!({"key": self.coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
    }

    fn operations(&self, txn: &Txn) -> Vec<Value> {
        let puts = txn.puts.iter().map(|put| {
            let mut request = json!({"key": self.coded(&put.key), "value": BASE64.encode(&put.value)});
            if let Some(LeaseId(lease)) = put.lease {
                request["lease"] = json!(lease.to_string());
            }
            json!({"request_put": request})
        });
        let deletes = txn.deletes.iter().map(|key| json!({"request_delete_range": {"key": self.coded(key)}}));
        puts.chain(deletes).collect()
    }

    /// Does a transaction that is small enough.
    async fn small(&self, txn: &Txn) -> Result<Committed, StoreError> {
        let compare: Vec<Value> =
            txn.compares.iter().map(|compare| self.compared(&compare.key, compare.revision)).collect();
        let body = json!({"compare": compare, "success": self.operations(txn)});
        let answer: TxnAnswer = self.ask("/v3/kv/txn", &body, Again::IfNotSent).await?;
        Ok(if answer.succeeded { Committed::Done(answer.header.revision.0) } else { Committed::Refused })
    }
}

/// Whether etcd takes a transaction at once.
fn is_small(txn: &Txn) -> bool {
    let bytes: usize = txn.puts.iter().map(|put| put.key.len() + put.value.len()).sum();
    txn.puts.len() + txn.deletes.len() <= MOST_OPERATIONS && bytes <= LARGEST
}

/// Whether a key is of the store itself.
fn is_hidden(key: &str) -> bool {
    key.starts_with(PARTS)
}

#[async_trait]
impl FleetStore for Etcd {
    fn kind(&self) -> &'static str {
        "distributed"
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let (answer, _) = self.settled(&json!({"key": self.coded(key)})).await?;
        answer.kvs.first().map(|row| self.entry(row)).transpose()
    }

    async fn range(&self, prefix: &str, at: Option<Revision>) -> Result<Range, StoreError> {
        let (start, end) = self.bounds(prefix);
        let mut request = json!({"key": start, "range_end": end, "limit": PAGE.to_string()});
        let (mut answer, revision) = match at {
            Some(at) => {
                request["revision"] = json!(at.to_string());
                let answer: RangeAnswer = self.ask("/v3/kv/range", &request, Again::Always).await?;
                (answer, at)
            }
            None => self.settled(&request).await?,
        };
        request["revision"] = json!(revision.to_string());
        let mut entries = Vec::new();
        loop {
            for row in &answer.kvs {
                entries.push(self.entry(row)?);
            }
            let Some(last) = answer.kvs.last().filter(|_| answer.more) else { break };
            let mut next = BASE64.decode(&last.key).unwrap_or_default();
            next.push(0);
            request["key"] = json!(BASE64.encode(next));
            answer = self.ask("/v3/kv/range", &request, Again::Always).await?;
        }
        entries.retain(|entry| !is_hidden(&entry.key));
        Ok(Range { entries, revision })
    }

    async fn txn(&self, txn: Txn) -> Result<Committed, StoreError> {
        check(&txn)?;
        if is_small(&txn) { self.small(&txn).await } else { self.large(txn).await }
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let watch = watching::Watching::new(
            Self { http: self.http.fork(), prefix: self.prefix.clone() },
            prefix.to_owned(),
            from,
        );
        Ok(Box::new(watch))
    }

    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "ID")]
            id: String,
        }
        let body = json!({"TTL": ttl.as_secs().max(1).to_string()});
        let answer: Answer = self.ask("/v3/lease/grant", &body, Again::Always).await?;
        let id = answer
            .id
            .parse()
            .map_err(|_| StoreError::Unavailable("etcd gave a lease without a name".into()))?;
        Ok(LeaseId(id))
    }

    async fn keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Answer {
            result: Kept,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Kept {
            #[serde(rename = "TTL")]
            ttl: Number,
        }
        let body = json!({"ID": lease.0.to_string()});
        let answer: Answer = self.ask("/v3/lease/keepalive", &body, Again::Always).await?;
        // A lease that is not there has no time left.
        if answer.result.ttl.0 == 0 { Err(StoreError::LeaseEnded) } else { Ok(()) }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let body = json!({"ID": lease.0.to_string()});
        self.ask::<Value>("/v3/lease/revoke", &body, Again::Always).await.map(drop)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.tidy().await?;
        let body = json!({"revision": revision.to_string()});
        match self.ask::<Value>("/v3/kv/compaction", &body, Again::Always).await {
            // It is done already.
            Ok(_) | Err(StoreError::Compacted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn snapshot(&self, file: &Path) -> Result<(), StoreError> {
        self.http.download("/v3/maintenance/snapshot", file).await
    }
}
