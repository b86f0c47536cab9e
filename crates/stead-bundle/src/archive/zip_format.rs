//! The numbers of the ZIP format.

/// Begins an entry.
pub(super) const LOCAL: u32 = 0x0403_4b50;
/// Begins an entry of the directory.
pub(super) const CENTRAL: u32 = 0x0201_4b50;
/// Begins the end.
pub(super) const END: u32 = 0x0605_4b50;
/// Begins the end of a large archive.
pub(super) const END_64: u32 = 0x0606_4b50;
/// Says where the end of a large archive is.
pub(super) const LOCATOR_64: u32 = 0x0706_4b50;

/// How long each is without what varies.
pub(super) const LOCAL_LEN: usize = 30;
pub(super) const CENTRAL_LEN: usize = 46;
pub(super) const END_LEN: usize = 22;
pub(super) const END_64_LEN: usize = 56;
pub(super) const LOCATOR_64_LEN: usize = 20;

/// Compression: none.
pub(super) const STORED: u16 = 0;
/// Compression: deflate.
pub(super) const DEFLATED: u16 = 8;
/// What a number is that stands elsewhere in full.
pub(super) const ELSEWHERE: u32 = u32::MAX;
/// The field that has such numbers in full.
pub(super) const FIELD_64: u16 = 1;

/// The entry is encrypted.
pub(super) const FLAG_ENCRYPTED: u16 = 1;
/// Lengths and checksum follow the content.
pub(super) const FLAG_DESCRIPTOR: u16 = 1 << 3;
/// The name is UTF-8.
pub(super) const FLAG_UTF8: u16 = 1 << 11;
