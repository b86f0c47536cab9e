//! Files that nodes fetch: clones of repositories, programs and images by hash.

use std::fs::File;

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::plan::Digest;
use stead_model::token::{Endpoint, bearer};

use super::{Asked, Refused};
use crate::answer::{self, Answer, AnswerBody, with};
use crate::artifacts::offered;

fn missing(what: &str) -> WireError {
    WireError::new(WireCode::E200, what)
}

impl Asked<'_> {
    /// A file of a clone. Git asks again with a password if it is told that one is wanted.
    pub(super) fn repo(&mut self, name: &str, path: &[String]) -> Result<Answer, Refused> {
        let token = match self.basic_token() {
            Some(token) => Ok(token),
            None => {
                let header = self.one_header(&header::AUTHORIZATION);
                bearer(header.as_deref()).map(str::to_owned).map_err(WireError::from)
            }
        };
        self.authorize_token(token, Endpoint::Spec, None).map_err(|refused| {
            let wants_basic = refused.error.code == WireCode::E300;
            Refused { wants_basic, ..refused }
        })?;
        let path = self.snapshot.repos.file(name, path).ok_or_else(|| missing("there is no such file"))?;
        let file = File::open(path).map_err(|_| missing("there is no such file"))?;
        let size = file.metadata().map_err(|_| missing("there is no such file"))?.len();
        let answer = Response::new(AnswerBody::file(file, 0, size));
        Ok(with(answer, header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")))
    }

    pub(super) async fn artifact(&mut self, digest: &Digest) -> Result<Answer, Refused> {
        self.authorize(Endpoint::Spec, None)?;
        let offered = offered(&self.server.sources.place.state, digest);
        let (file, size) = match offered {
            Some(offered) => offered,
            None => {
                let mut indexes = self.server.artifacts.clone();
                // Hashing goes on beside serving; who comes first waits for it.
                let index = match indexes.wait_for(Option::is_some).await {
                    Ok(index) => index.clone(),
                    Err(_) => None,
                };
                let found = index.and_then(|index| index.open(digest));
                found.ok_or_else(|| missing("there is no file with this hash"))?
            }
        };
        let range = match self.one_header(&header::RANGE) {
            Some(text) => range(&text, size),
            None => Range::Whole,
        };
        let octets = HeaderValue::from_static("application/octet-stream");
        let (status, from, end) = match range {
            Range::Whole => (StatusCode::OK, 0, size),
            Range::Part { from, end } => (StatusCode::PARTIAL_CONTENT, from, end),
            Range::Beyond => {
                let error = WireError::new(WireCode::E100, format!("the file has {size} bytes"));
                let mut answer = answer::refusal(&error);
                *answer.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                return Ok(content_range(answer, &format!("bytes */{size}")));
            }
        };
        let mut answer = Response::new(AnswerBody::file(file, from, end));
        *answer.status_mut() = status;
        let answer = with(answer, header::CONTENT_TYPE, octets);
        let answer = with(answer, header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        Ok(match range {
            Range::Part { from, end } => content_range(answer, &format!("bytes {from}-{}/{size}", end - 1)),
            Range::Whole | Range::Beyond => answer,
        })
    }
}

fn content_range(answer: Answer, text: &str) -> Answer {
    match HeaderValue::from_str(text) {
        Ok(value) => with(answer, header::CONTENT_RANGE, value),
        Err(_) => answer,
    }
}

/// The part of a file that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    /// All of it; also where more than one part is asked for, or something unknown.
    Whole,
    /// From here to before there.
    Part { from: u64, end: u64 },
    /// Nothing of it is there.
    Beyond,
}

fn range(text: &str, size: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Whole;
    };
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(from), _) if from >= size => Range::Beyond,
        (Ok(from), Ok(last)) if last >= from => Range::Part { from, end: size.min(last.saturating_add(1)) },
        (Ok(from), Err(_)) if last.is_empty() => Range::Part { from, end: size },
        (Err(_), Ok(0)) if first.is_empty() => Range::Beyond,
        (Err(_), Ok(_)) if first.is_empty() && size == 0 => Range::Beyond,
        (Err(_), Ok(count)) if first.is_empty() => {
            Range::Part { from: size.saturating_sub(count), end: size }
        }
        (Ok(_), _) | (Err(_), _) => Range::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parts_of_what_is_there() {
        for (text, expected) in [
            ("bytes=0-4", Range::Part { from: 0, end: 5 }),
            ("bytes=5-", Range::Part { from: 5, end: 10 }),
            ("bytes=-3", Range::Part { from: 7, end: 10 }),
            ("bytes=-30", Range::Part { from: 0, end: 10 }),
            ("bytes=8-99", Range::Part { from: 8, end: 10 }),
            ("bytes=10-", Range::Beyond),
            ("bytes=-0", Range::Beyond),
            ("bytes=4-2", Range::Whole),
            ("bytes=0-1,3-4", Range::Whole),
            ("lines=0-1", Range::Whole),
            ("bytes=a-b", Range::Whole),
        ] {
            assert_eq!(range(text, 10), expected, "{text}");
        }
        assert_eq!(range("bytes=-1", 0), Range::Beyond);
    }
}
