//! Stead's record: the bundle format, sealing, verification and listing.
//!
//! A bundle is the directory of one run. [`RunDirectory`] makes and fills it, [`seal`] closes it with
//! hashes, [`sign`] vouches for them, [`export`] makes an archive of it, of which
//! [`attest`](attest()) says what passed in a form that others read. [`verify`] checks it, [`list`], [`info`] and
//! [`resolve`] find and show it, in either form. [`analysis`] reads the captures in it, and [`diff`] compares two of
//! them. Failing to record is a value here, never a failed run: the caller decides what it means. The event log inside is
//! written by `stead-runner`.

pub mod analysis;
mod archive;
mod attest;
pub mod diff;
mod directory;
mod error;
mod export;
mod hashes;
mod known_hashes;
mod layout;
mod list;
mod lock;
mod log_file;
mod open_file;
mod report;
mod resolve;
mod roles;
mod seal;
mod sections;
mod signature;
mod source;
mod stored;
mod unpacked;
mod verify;

pub use archive::ArchiveFormat;
pub use attest::{AttestError, attest, attestation_path};
pub use directory::{
    CreateError, NewRun, OpenError, RunDirectory, WriteBytes, make_directory, replace_file, replace_json,
};
pub use error::RecordError;
pub use export::{ExportError, Exported, archive_path, export};
pub use hashes::{HashLine, HashLineError, hash_file};
pub use known_hashes::KnownHashes;
pub use layout::{
    ARRIVING, ARTIFACTS, EVENTS, HASHES, LOCK, LOGS, PLAN, REPORT, RUN_META, SIGNATURE, VERSIONS, file_name,
    locks_directory, runs_directory, state_directory,
};
pub use list::{Bundle, Listed, Lister, Listing, info, list};
pub use lock::{FileLock, Holder, LockError, holder_of};
pub use log_file::LogFile;
pub use open_file::{open_inside, open_regular};
pub use report::{PhaseRow, ReportError, ReportWarning, RoleRow, RunReport, report};
pub use resolve::{ResolveError, resolve};
pub use seal::{SealError, is_sealed, seal, seal_knowing, unseal};
pub use sections::Style;
pub use signature::{
    AgentError, AllowedSigners, NAMESPACE, SignError, Signature, SignerProblem, SignersError, SigningKey,
    sign,
};
pub use source::{Form, Source};
pub use stored::{LoadError, load_meta, load_plan};
pub use unpacked::Unpacked;
pub use verify::{Finding, Verification, VerifyError, VerifyOptions, verify};
