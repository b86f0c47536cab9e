//! Transactions that etcd does not take at once.

use super::*;

/// The mark of a large transaction.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    id: String,
    parts: usize,
}

/// An operation as it is written down.
#[derive(Debug, Serialize, Deserialize)]
struct Operation {
    key: String,
    /// In base 64; none: the key goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<i64>,
}

/// How large a part becomes before the next begins.
const PART: usize = 512 << 10;

fn part_key(id: &str, number: usize) -> String {
    format!("{PARTS}{id}/{number:06}")
}

impl Etcd {
    /// Does a transaction of any size.
    pub(super) async fn large(&self, txn: Txn) -> Result<Committed, StoreError> {
        // One at a time: what somebody else left is applied first.
        self.settled(&json!({"key": self.coded(PENDING)})).await?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let id = format!("{}-{:016x}", clock::now().as_micros(), u64::from_le_bytes(random));
        let parts = parts_of(&txn)?;
        for (number, part) in parts.iter().enumerate() {
            self.small(&Txn::default().put(&part_key(&id, number), part.as_slice())).await?;
        }
        let mark = Mark { id: id.clone(), parts: parts.len() };
        let text = serde_json::to_vec(&mark).unwrap_or_default();
        let begin =
            Txn { compares: txn.compares, ..Txn::default() }.when(PENDING, 0).put(PENDING, text.clone());
        match self.small(&begin).await? {
            Committed::Refused => {
                self.forget(&id).await?;
                Ok(Committed::Refused)
            }
            Committed::Done(revision) => {
                self.apply(&Entry { key: PENDING.to_owned(), value: text, revision }).await?;
                let (_, revision) = self.settled(&json!({"key": self.coded(PENDING)})).await?;
                Ok(Committed::Done(revision))
            }
        }
    }

    /// Applies what is done: every step as long as the mark is there, so that two who do it change nothing twice.
    pub(super) async fn apply(&self, mark: &Entry) -> Result<(), StoreError> {
        let garbled = || StoreError::Unavailable("etcd has a transaction that cannot be read".to_owned());
        let Mark { id, parts } = serde_json::from_slice(&mark.value).map_err(|_| garbled())?;
        for number in 0..parts {
            let request = json!({"key": self.coded(&part_key(&id, number))});
            let answer: RangeAnswer = self.ask("/v3/kv/range", &request, Again::Always).await?;
            // Without its part the transaction is applied by now.
            let Some(row) = answer.kvs.first() else { return Ok(()) };
            let operations: Vec<Operation> =
                serde_json::from_slice(&self.entry(row)?.value).map_err(|_| garbled())?;
            for some in operations.chunks(MOST_OPERATIONS) {
                let step =
                    some.iter().try_fold(Txn::default().when(PENDING, mark.revision), |txn, operation| {
                        let Some(value) = &operation.value else { return Some(txn.delete(&operation.key)) };
                        let value = BASE64.decode(value).ok()?;
                        Some(match operation.lease {
                            Some(lease) => txn.put_with(&operation.key, value, LeaseId(lease)),
                            None => txn.put(&operation.key, value),
                        })
                    });
                if self.small(&step.ok_or_else(garbled)?).await? == Committed::Refused {
                    return Ok(());
                }
            }
        }
        let (start, end) = self.bounds(&format!("{PARTS}{id}/"));
        let body = json!({
            "compare": [self.compared(PENDING, mark.revision)],
            "success": [
                {"request_delete_range": {"key": self.coded(PENDING)}},
                {"request_delete_range": {"key": start, "range_end": end}},
            ],
        });
        self.ask::<Value>("/v3/kv/txn", &body, Again::IfNotSent).await.map(drop)
    }

    async fn forget(&self, id: &str) -> Result<(), StoreError> {
        let (start, end) = self.bounds(&format!("{PARTS}{id}/"));
        let body = json!({"key": start, "range_end": end});
        self.ask::<Value>("/v3/kv/deleterange", &body, Again::Always).await.map(drop)
    }

    /// Removes parts that a master left who died before their transaction was done. Only a leader may, between two
    /// transactions of its own.
    pub(super) async fn tidy(&self) -> Result<(), StoreError> {
        let (start, end) = self.bounds(PARTS);
        let body = json!({
            "compare": [self.compared(PENDING, 0)],
            "success": [{"request_delete_range": {"key": start, "range_end": end}}],
        });
        self.ask::<Value>("/v3/kv/txn", &body, Again::Always).await.map(drop)
    }
}

/// Writes a transaction's operations down, in parts.
fn parts_of(txn: &Txn) -> Result<Vec<Vec<u8>>, StoreError> {
    let puts = txn.puts.iter().map(|put| Operation {
        key: put.key.clone(),
        value: Some(BASE64.encode(&put.value)),
        lease: put.lease.map(|LeaseId(lease)| lease),
    });
    let deletes = txn.deletes.iter().map(|key| Operation { key: key.clone(), value: None, lease: None });
    let mut parts = Vec::new();
    let mut part: Vec<u8> = Vec::new();
    for operation in puts.chain(deletes) {
        let text = serde_json::to_vec(&operation)
            .map_err(|error| StoreError::Unfit { key: operation.key.clone(), why: error.to_string() })?;
        if !part.is_empty() && part.len() + text.len() > PART {
            part.push(b']');
            parts.push(std::mem::take(&mut part));
        }
        part.push(if part.is_empty() { b'[' } else { b',' });
        part.extend(text);
    }
    if !part.is_empty() {
        part.push(b']');
        parts.push(part);
    }
    Ok(parts)
}
