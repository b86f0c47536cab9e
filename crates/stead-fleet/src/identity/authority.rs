//! The fleet's authority, as every master has it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rcgen::{Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use stead_model::WorkerName;
use stead_model::base64::url;
use stead_model::fleet::peer::{Peer, Role};
use stead_model::plan::Digest;
use stead_model::token::SigningKey;
use stead_model::token::join::{self, JoinClaims, JoinCode};
use stead_runner::clock;
use tokio::sync::watch;

use super::certificate::{self, random};
use super::ledger::{Enrolment, Issued, Ledger};
use super::{Identity, IdentityError, Member, Request, tls};
use crate::events::{Ev, Events, Fields};

/// The longest time a join token may hold.
const LONGEST_TOKEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How often a record that others change at the same time is tried.
const TRIES: u32 = 16;

/// What a join token should say.
#[derive(Clone, Debug)]
pub struct MintOrder {
    /// What its bearer will be.
    pub role: Role,
    /// What its bearer will be called; none: as it likes.
    pub name: Option<String>,
    /// How long it holds.
    pub lifetime: Duration,
    /// When it was made, in seconds since 1970; none: now.
    pub iat: Option<i64>,
    /// When it expires; none: after its lifetime.
    pub exp: Option<i64>,
    /// Its id; none: a new one.
    pub jti: Option<String>,
}

impl MintOrder {
    /// Returns an order with nothing but what is needed.
    pub fn new(role: Role, name: Option<String>, lifetime: Duration) -> Self {
        Self { role, name, lifetime, iat: None, exp: None, jti: None }
    }
}

/// What somebody gets who was admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who they are now.
    pub peer: Peer,
    /// Their certificate, in DER.
    pub certificate: Vec<u8>,
    /// The authority's, in DER.
    pub authority: Vec<u8>,
}

/// What of the ledger has to be at hand.
#[derive(Default)]
struct Known {
    /// Tokens that were minted and are not revoked.
    tokens: BTreeSet<String>,
    /// Tokens that certificates go back to.
    members: BTreeSet<String>,
    /// Workers of whom every enrolment is revoked.
    departed: BTreeSet<WorkerName>,
}

/// Serial numbers that count no more.
pub(crate) type Revoked = Arc<BTreeSet<String>>;

/// The fleet's authority: admits, renews, revokes. Masters of one fleet share the ledger and so the authority.
pub struct Authority {
    fleet: String,
    name: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    join_key: SigningKey,
    ledger: Arc<dyn Ledger>,
    revoked: watch::Sender<Revoked>,
    known: watch::Sender<Known>,
    own: Mutex<(Member, Arc<CertifiedKey>)>,
    events: OnceLock<Arc<Events>>,
}

impl Known {
    fn of<'r>(records: impl Iterator<Item = &'r Enrolment>) -> Self {
        let (mut known, mut present) = (Self::default(), BTreeSet::new());
        for record in records {
            if !record.revoked {
                known.tokens.insert(record.jti.clone());
            }
            if !record.certificates.is_empty() {
                known.members.insert(record.jti.clone());
            }
            let is_member = record.role == Role::Worker && !record.certificates.is_empty();
            let name = record.name.as_deref().filter(|_| is_member);
            let Some(Ok(name)) = name.map(WorkerName::parse) else { continue };
            if record.revoked {
                known.departed.insert(name)
            } else {
                present.insert(name)
            };
        }
        known.departed.retain(|name| !present.contains(name));
        known
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Authority");
        shown.field("fleet", &self.fleet).field("name", &self.name).finish_non_exhaustive()
    }
}

fn now() -> i64 {
    clock::now().as_micros().div_euclid(1_000_000)
}

impl Authority {
    /// Returns the authority that `ledger` keeps, for the master called `name`; the fleet's first master makes it.
    pub async fn open(ledger: Arc<dyn Ledger>, name: &str) -> Result<Arc<Self>, IdentityError> {
        let founding = ledger.founding(certificate::found(ledger.fleet().await?, now())?).await?;
        let issuer = certificate::issuer(&founding)?;
        let certificate = CertificateDer::from(founding.certificate.clone());
        let peer = Peer { fleet: founding.fleet.clone(), role: Role::Master, name: name.to_owned() };
        if !peer.role.names(name) {
            return Err(IdentityError::refused("bad-name", format!("`{name}` is not a name of a master")));
        }
        let own = own_key(&issuer, &certificate, &peer)?;
        let authority = Arc::new(Self {
            fleet: founding.fleet,
            name: name.to_owned(),
            certificate,
            issuer,
            join_key: founding.join_key,
            ledger,
            revoked: watch::Sender::new(Revoked::default()),
            known: watch::Sender::new(Known::default()),
            own: Mutex::new(own),
            events: OnceLock::new(),
        });
        authority.refresh().await?;
        Ok(authority)
    }

    /// Has what is refused to members and to bearers of real tokens written down. The first log given is the one.
    pub fn log_to(&self, events: Arc<Events>) {
        self.events.get_or_init(|| events);
    }

    /// Writes down that something was refused.
    pub(crate) fn note_refused(&self, by: &str, code: &str, reason: &str) {
        if let Some(events) = self.events.get() {
            let (by, code, reason) = (by.to_owned(), code.to_owned(), reason.to_owned());
            // A log that cannot be written to stops nobody.
            drop(events.write(Ev::Refused, Fields { by, code, reason, ..Fields::default() }));
        }
    }

    /// Returns the fleet's name in certificates.
    pub fn fleet(&self) -> &str {
        &self.fleet
    }

    /// Returns the name of the master that this is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the authority's certificate, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns what join tokens say of the authority.
    pub fn pin(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// Returns a join token, and keeps that it was made.
    pub async fn mint(&self, order: &MintOrder) -> Result<String, IdentityError> {
        let bad = |message: String| IdentityError::refused("bad-token", message);
        if let Some(name) = &order.name
            && !order.role.names(name)
        {
            return Err(bad(format!("`{}` is not a name of a {}", name.escape_debug(), order.role)));
        }
        if order.lifetime > LONGEST_TOKEN || order.lifetime.as_secs() == 0 {
            return Err(bad("a join token holds for 1 second to 30 days".to_owned()));
        }
        let iat = order.iat.unwrap_or_else(now);
        let lifetime = i64::try_from(order.lifetime.as_secs()).unwrap_or(i64::MAX);
        let exp = order.exp.unwrap_or_else(|| join::expiry(iat, lifetime));
        if !(0..=stead_model::token::LATEST).contains(&iat)
            || !(iat..=stead_model::token::LATEST).contains(&exp)
        {
            return Err(bad("a join token expires after it was made".to_owned()));
        }
        if order.exp.is_some() && exp.saturating_sub(now()) > LONGEST_TOKEN.as_secs().cast_signed() {
            return Err(bad("a join token holds for 1 second to 30 days".to_owned()));
        }
        let jti = match &order.jti {
            Some(jti) if join::is_join_id(jti) => jti.clone(),
            Some(_) => return Err(bad("the id is 1 to 64 letters, digits, `-` and `_`".to_owned())),
            None => url::encode(&random::<16>()?[..]),
        };
        let claims = JoinClaims { role: order.role, name: order.name.clone(), iat, exp, jti, ca: self.pin() };
        let enrolment = unused(&claims);
        if !self.ledger.record(&enrolment, None).await? {
            return Err(bad(format!("there is a token with the id {} already", claims.jti)));
        }
        self.known.send_if_modified(|known| known.tokens.insert(claims.jti.clone()));
        Ok(join::mint(&self.join_key, &claims))
    }

    /// Returns a certificate for the bearer of `token`, which then is used up: both in one write.
    pub async fn join(&self, token: &str, csr: &[u8]) -> Result<Admitted, IdentityError> {
        let now = now();
        // What nobody of this fleet signed is not written down: anybody could fill the log.
        let claims = join::verify(token, &self.join_key, now)?;
        let admitted = self.admit(&claims, csr, now).await;
        if let Err(error) = &admitted {
            self.note_refused(&claims.jti, error.code(), &error.to_string());
        }
        admitted
    }

    async fn admit(&self, claims: &JoinClaims, csr: &[u8], now: i64) -> Result<Admitted, IdentityError> {
        if claims.ca != self.pin() {
            return Err(IdentityError::join(JoinCode::Signature, "the token is for another authority"));
        }
        let asked = certificate::read_request(csr)?;
        let name = self.name_for(claims, asked.name, now).await?;
        let peer = Peer { fleet: self.fleet.clone(), role: claims.role, name };
        let seen = self.ledger.enrolment(&claims.jti).await?;
        let Some((mut enrolment, number)) = seen else {
            // Every token is written down when it is made. What was lost may have been used, or revoked.
            return Err(IdentityError::join(JoinCode::Used, "nobody here knows this token; mint another"));
        };
        if enrolment.revoked {
            return Err(IdentityError::join(JoinCode::Used, "the token is revoked; mint another"));
        }
        let used = || IdentityError::join(JoinCode::Used, "the token was used already; mint another");
        if !enrolment.certificates.is_empty() {
            return Err(used());
        }
        let der = certificate::issue(&self.issuer, &asked.key, &peer, &claims.jti, now)?;
        enrolment.name = Some(peer.name.clone());
        enrolment.certificates.push(issued(&der)?);
        if !self.ledger.record(&enrolment, Some(number)).await? {
            return Err(used());
        }
        self.known.send_if_modified(|known| known.members.insert(claims.jti.clone()));
        Ok(self.admitted(peer, &der))
    }

    /// Returns what the bearer of a token will be called: what the token says, else what they ask for, unless that is
    /// somebody else's.
    async fn name_for(
        &self,
        claims: &JoinClaims,
        asked: Option<String>,
        now: i64,
    ) -> Result<String, IdentityError> {
        let refuse = |message: String| Err(IdentityError::join(JoinCode::Name, message));
        match (&claims.name, asked) {
            (Some(name), Some(asked)) if asked != *name => {
                refuse(format!("the token is for {name}, not for {}", asked.escape_debug()))
            }
            (Some(name), Some(_) | None) => Ok(name.clone()),
            (None, None) => refuse("neither token nor request says a name".to_owned()),
            (None, Some(asked)) if !claims.role.names(&asked) => {
                refuse(format!("`{}` is not a name of a {}", asked.escape_debug(), claims.role))
            }
            (None, Some(asked)) => {
                let records = self.ledger.enrolments().await?;
                let is_taken = records.iter().any(|(record, _)| {
                    record.role == claims.role
                        && record.name.as_deref() == Some(asked.as_str())
                        && record.is_live(now)
                });
                if is_taken {
                    return refuse(format!(
                        "there is a {} called {asked} already; revoke it, or mint a token with this name",
                        claims.role
                    ));
                }
                Ok(asked)
            }
        }
    }

    /// Returns the next certificate of somebody whose present one was checked. Only the key of the request counts.
    pub async fn renew(&self, member: &Member, csr: &[u8]) -> Result<Admitted, IdentityError> {
        let asked = certificate::read_request(csr)?;
        let revoked = || IdentityError::refused("revoked", "the certificate is revoked; join anew");
        for _ in 0..TRIES {
            let now = now();
            let Some((mut enrolment, number)) = self.ledger.enrolment(&member.jti).await? else {
                return Err(revoked());
            };
            let is_known = enrolment.certificates.iter().any(|issued| issued.serial == member.serial);
            if enrolment.revoked || !is_known {
                return Err(revoked());
            }
            let der = certificate::issue(&self.issuer, &asked.key, &member.peer, &member.jti, now)?;
            enrolment.certificates.retain(|issued| issued.not_after > now);
            enrolment.certificates.push(issued(&der)?);
            if self.ledger.record(&enrolment, Some(number)).await? {
                return Ok(self.admitted(member.peer.clone(), &der));
            }
        }
        Err(IdentityError::refused("busy", "others changed the record all the time; try again"))
    }

    /// Returns a new identity without a token, for who has the ledger itself: the master's own account.
    pub async fn enrol(&self, role: Role, name: &str) -> Result<Identity, IdentityError> {
        let token = self.mint(&MintOrder::new(role, Some(name.to_owned()), Duration::from_secs(60))).await?;
        let request = Request::new(name)?;
        let admitted = self.join(&token, request.der()).await?;
        request.admitted(&admitted, Vec::new())
    }

    /// Returns an identity of this master's own, to call other masters with. It is not kept, and lives as long as one.
    pub fn as_caller(&self, masters: Vec<String>) -> Result<Identity, IdentityError> {
        let peer = Peer { fleet: self.fleet.clone(), role: Role::Master, name: self.name.clone() };
        let request = Request::new(&self.name)?;
        let der = certificate::issue(&self.issuer, request.key(), &peer, "", now())?;
        request.admitted(&self.admitted(peer, &der), masters)
    }

    /// Returns every token that was minted, with what became of it.
    pub async fn enrolments(&self) -> Result<Vec<Enrolment>, IdentityError> {
        let mut records: Vec<Enrolment> =
            self.ledger.enrolments().await?.into_iter().map(|(record, _)| record).collect();
        records.sort_by(|a, b| (a.iat, &a.jti).cmp(&(b.iat, &b.jti)));
        Ok(records)
    }

    /// Revokes a token by its id, or everything of somebody by name: tokens that were not used are refused, certificates
    /// count no more, live connections are cut. Returns what it was.
    pub async fn revoke(&self, what: &str) -> Result<Vec<Enrolment>, IdentityError> {
        let mut revoked = Vec::new();
        let is_meant = |record: &Enrolment| record.jti == what || record.name.as_deref() == Some(what);
        for (record, _) in self.ledger.enrolments().await?.into_iter().filter(|(record, _)| is_meant(record))
        {
            revoked.extend(self.revoke_token(&record.jti).await?);
        }
        self.refresh().await?;
        if revoked.is_empty() {
            let what = what.escape_debug();
            let message = format!("nobody is called `{what}`, and no token has this id");
            return Err(IdentityError::refused("unknown", message));
        }
        Ok(revoked)
    }

    async fn revoke_token(&self, jti: &str) -> Result<Option<Enrolment>, IdentityError> {
        for _ in 0..TRIES {
            let Some((mut enrolment, number)) = self.ledger.enrolment(jti).await? else { return Ok(None) };
            enrolment.revoked = true;
            if self.ledger.record(&enrolment, Some(number)).await? {
                return Ok(Some(enrolment));
            }
        }
        Err(IdentityError::refused("busy", "others changed the record all the time; try again"))
    }

    /// Reads again what is revoked, and renews the master's own certificate at its half life.
    pub async fn refresh(&self) -> Result<(), IdentityError> {
        self.refresh_at(now()).await
    }

    /// As [`Self::refresh`], at `now`.
    pub(super) async fn refresh_at(&self, now: i64) -> Result<(), IdentityError> {
        let records = self.ledger.enrolments().await?;
        self.known.send_replace(Known::of(records.iter().map(|(record, _)| record)));
        let serials: BTreeSet<String> = records
            .into_iter()
            .filter(|(record, _)| record.revoked)
            .flat_map(|(record, _)| record.certificates)
            .map(|issued| issued.serial)
            .collect();
        self.revoked.send_if_modified(|kept| {
            let is_new = **kept != serials;
            if is_new {
                *kept = Arc::new(serials);
            }
            is_new
        });
        let due = self.own.lock().unwrap_or_else(PoisonError::into_inner).0.wants_renewal(now);
        if due {
            let peer = Peer { fleet: self.fleet.clone(), role: Role::Master, name: self.name.clone() };
            let fresh = own_key(&self.issuer, &self.certificate, &peer)?;
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        Ok(())
    }

    /// Keeps what is revoked as the ledger has it. Never returns; cancel safe.
    pub(crate) async fn follow(&self) {
        loop {
            self.ledger.changed().await;
            // A ledger that is away says nothing new; what was revoked stays so.
            if self.refresh().await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Returns what is revoked, now and later.
    pub(crate) fn revocations(&self) -> watch::Receiver<Revoked> {
        self.revoked.subscribe()
    }

    /// Returns the workers of whom every enrolment is revoked, as soon as they are others than `known`. Cancel safe.
    pub async fn departed(&self, known: &BTreeSet<WorkerName>) -> BTreeSet<WorkerName> {
        let mut watch = self.known.subscribe();
        // The sender is this authority's own, so that there is always an answer.
        let changed = watch.wait_for(|now| now.departed != *known).await;
        changed.map(|now| now.departed.clone()).unwrap_or_default()
    }

    /// Returns the role of who shows a join token, used or not, that holds and is not revoked.
    pub fn bearer(&self, token: &str) -> Option<Role> {
        let claims = join::verify(token, &self.join_key, now()).ok()?;
        let counts = claims.ca == self.pin() && self.known.borrow().tokens.contains(&claims.jti);
        counts.then_some(claims.role)
    }

    /// Whether it is written down whom a certificate was given to. Of a master's own it is not.
    pub(crate) fn knows(&self, member: &Member) -> bool {
        member.peer.role == Role::Master && member.jti.is_empty()
            || self.known.borrow().members.contains(&member.jti)
    }

    /// Whether a certificate counts no more.
    pub fn is_revoked(&self, serial: &str) -> bool {
        self.revoked.borrow().contains(serial)
    }

    /// Returns the certificate and key that this master serves with.
    pub(super) fn own_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.own.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Returns how connections are taken: TLS 1.3, with a certificate of this fleet that is not revoked, or with none.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, IdentityError> {
        tls::server_config(self)
    }

    /// Returns how visitors of the page are taken: as [`Self::server_config`], for HTTP.
    pub fn page_config(self: &Arc<Self>) -> Result<ServerConfig, IdentityError> {
        tls::page_config(self)
    }

    fn admitted(&self, peer: Peer, der: &CertificateDer<'_>) -> Admitted {
        Admitted { peer, certificate: der.to_vec(), authority: self.certificate.to_vec() }
    }
}

/// Returns the record of a token that nobody has used.
fn unused(claims: &JoinClaims) -> Enrolment {
    Enrolment {
        jti: claims.jti.clone(),
        role: claims.role,
        name: claims.name.clone(),
        iat: claims.iat,
        exp: claims.exp,
        certificates: Vec::new(),
        revoked: false,
    }
}

fn issued(der: &[u8]) -> Result<Issued, IdentityError> {
    let member = Member::read(der)?;
    Ok(Issued { serial: member.serial, not_after: member.not_after })
}

/// Returns a key and certificate for a master, which live as long as its process.
fn own_key(
    issuer: &Issuer<'static, KeyPair>,
    authority: &CertificateDer<'static>,
    peer: &Peer,
) -> Result<(Member, Arc<CertifiedKey>), IdentityError> {
    let request = Request::new(&peer.name)?;
    let der = certificate::issue(issuer, request.key(), peer, "", now())?;
    let member = Member::read(&der)?;
    // The authority's certificate goes along, for joiners know only its hash.
    let chain = vec![der, authority.clone()];
    let key = tls::certified_key(chain, request.key())?;
    Ok((member, Arc::new(key)))
}
