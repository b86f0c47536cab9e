//! Base64, as the model writes it.

pub(crate) use stead_model::base64::{decode, encode};
