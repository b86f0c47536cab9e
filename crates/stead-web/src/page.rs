//! The page: one document with its style and its program in it.

use stead_model::base64;
use stead_model::plan::Digest;

const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// A page, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The document.
    pub text: String,
    /// Its content security policy.
    pub policy: String,
}

/// Returns the page that asks for everything at `root`, which is a path relative to its own, or from `/` on.
pub fn page(root: &str) -> Page {
    let text = FRAME.replace("{root}", root).replace("{style}", STYLE).replace("{script}", SCRIPT);
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        source(STYLE),
        source(SCRIPT)
    );
    Page { text, policy }
}

/// Returns how a policy names a text.
fn source(text: &str) -> String {
    format!("'sha256-{}'", base64::encode(&Digest::of(text.as_bytes()).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_nothing_from_elsewhere_and_writes_no_html() {
        let Page { text, policy } = page("data/");
        for bad in [
            "http:",
            "https:",
            "src=",
            "@import",
            "url(",
            "innerHTML",
            "outerHTML",
            "eval(",
            "{root}",
            "{style}",
        ] {
            assert!(!text.contains(bad), "{bad}");
        }
        assert!(text.contains("data-root=\"data/\"") && text.contains("prefers-color-scheme: dark"));
        assert_eq!((text.matches("<script>").count(), text.matches("<style>").count()), (1, 1));
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
        assert_eq!(policy.matches("'sha256-").count(), 2);
        assert_ne!(source(STYLE), source(SCRIPT));
    }
}
