//! Stead's record: the bundle format, sealing, verification and listing.
