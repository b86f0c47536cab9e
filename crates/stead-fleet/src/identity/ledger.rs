//! What an authority keeps: the fleet's founding, and who was enrolled with which token.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use stead_model::base64;
use stead_model::fleet::peer::{Role, is_fleet_id};
use stead_model::token::SigningKey;
use zeroize::Zeroizing;

/// Why something could not be kept or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the authority keeps is not to be had: {0}")]
pub struct LedgerError(pub String);

/// What a fleet begins with. All of it but the certificate is secret.
#[derive(Clone)]
pub struct Founding {
    /// The fleet's name in certificates.
    pub fleet: String,
    /// The authority's certificate, in DER.
    pub certificate: Vec<u8>,
    /// Its key, in PKCS #8.
    pub key: Zeroizing<Vec<u8>>,
    /// What signs join tokens.
    pub join_key: SigningKey,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    fleet: String,
    certificate: String,
    key: String,
    join_key: String,
}

impl Founding {
    /// Returns the form in which it is kept, as secret as the keys in it.
    pub fn to_json(&self) -> Zeroizing<String> {
        let written = Written {
            fleet: self.fleet.clone(),
            certificate: base64::encode(&self.certificate),
            key: base64::encode(&self.key),
            join_key: self.join_key.to_hex(),
        };
        Zeroizing::new(serde_json::to_string(&written).unwrap_or_default())
    }

    /// Returns what was kept.
    pub fn from_json(text: &str) -> Result<Self, LedgerError> {
        let bad = || LedgerError("the fleet's founding cannot be read".to_owned());
        let written: Written = serde_json::from_str(text).map_err(|_| bad())?;
        if !is_fleet_id(&written.fleet) {
            return Err(bad());
        }
        Ok(Self {
            fleet: written.fleet,
            certificate: base64::decode(&written.certificate).ok_or_else(bad)?,
            key: Zeroizing::new(base64::decode(&written.key).ok_or_else(bad)?),
            join_key: SigningKey::parse(&written.join_key).ok_or_else(bad)?,
        })
    }
}

impl fmt::Debug for Founding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Founding").field("fleet", &self.fleet).finish_non_exhaustive()
    }
}

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Its serial number, in hex.
    pub serial: String,
    /// When it expires, in seconds since 1970.
    pub not_after: i64,
}

/// One join token and what became of it. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// The token's id.
    pub jti: String,
    /// What its bearer is.
    pub role: Role,
    /// What its bearer is called; none: it has not been used, and may be called anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When the token was made, in seconds since 1970.
    pub iat: i64,
    /// When the token expires, in seconds since 1970.
    pub exp: i64,
    /// The certificates that came of it and have not expired; none: it has not been used.
    #[serde(default)]
    pub certificates: Vec<Issued>,
    /// Whether neither token nor certificates count any more.
    #[serde(default)]
    pub revoked: bool,
}

impl Enrolment {
    /// Whether somebody may still call with a certificate of this enrolment at `now`.
    pub fn is_live(&self, now: i64) -> bool {
        !self.revoked && self.certificates.iter().any(|issued| issued.not_after > now)
    }
}

/// Where an authority keeps what it must not forget. Every write is durable when it returns.
///
/// [`crate::store::StoreLedger`] is the one of masters, in their store.
#[async_trait]
pub trait Ledger: Send + Sync + fmt::Debug {
    /// Returns the fleet's name, the same every time.
    async fn fleet(&self) -> Result<String, LedgerError>;

    /// Returns the fleet's founding: the one that is kept, or `first` if there was none, which then is. Of two masters
    /// that start at once both get the same.
    async fn founding(&self, first: Founding) -> Result<Founding, LedgerError>;

    /// Returns the record of a token, with a number that changes with it.
    async fn enrolment(&self, jti: &str) -> Result<Option<(Enrolment, u64)>, LedgerError>;

    /// Returns every record with its number.
    async fn enrolments(&self) -> Result<Vec<(Enrolment, u64)>, LedgerError>;

    /// Keeps a record if the one there still has the number `seen` (none: if there is none), in one transaction.
    /// Returns whether it did.
    async fn record(&self, enrolment: &Enrolment, seen: Option<u64>) -> Result<bool, LedgerError>;

    /// Returns when another master may have changed a record; at the latest after a few seconds.
    async fn changed(&self) {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// A ledger that forgets, for fleets that do not outlive their process.
#[derive(Debug, Default)]
pub struct MemoryLedger(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    fleet: Option<String>,
    founding: Option<Founding>,
    records: BTreeMap<String, (Enrolment, u64)>,
    writes: u64,
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn fleet(&self) -> Result<String, LedgerError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| LedgerError(error.to_string()))?;
        let fresh = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).fleet.get_or_insert(fresh).clone())
    }

    async fn founding(&self, first: Founding) -> Result<Founding, LedgerError> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(memory.founding.get_or_insert(first).clone())
    }

    async fn enrolment(&self, jti: &str) -> Result<Option<(Enrolment, u64)>, LedgerError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).records.get(jti).cloned())
    }

    async fn enrolments(&self) -> Result<Vec<(Enrolment, u64)>, LedgerError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).records.values().cloned().collect())
    }

    async fn record(&self, enrolment: &Enrolment, seen: Option<u64>) -> Result<bool, LedgerError> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.records.get(&enrolment.jti).map(|(_, number)| *number) != seen {
            return Ok(false);
        }
        memory.writes += 1;
        let number = memory.writes;
        memory.records.insert(enrolment.jti.clone(), (enrolment.clone(), number));
        Ok(true)
    }
}
