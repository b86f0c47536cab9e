//! The lines of `resolv.conf`: servers and search list are changed, options and comments stay. Pure.

use crate::file::edit::Lines;

/// Returns the content with these servers and this search list; what is not given stays.
pub(super) fn edit(content: &[u8], servers: Option<&[String]>, search: Option<&[String]>) -> Vec<u8> {
    let mut lines = Lines::new(content);
    if let Some(servers) = servers {
        let wanted: Vec<String> = servers.iter().map(|server| format!("nameserver {server}")).collect();
        replace(&mut lines, &["nameserver"], &wanted);
    }
    if let Some(search) = search {
        let wanted =
            if search.is_empty() { Vec::new() } else { vec![format!("search {}", search.join(" "))] };
        replace(&mut lines, &["search", "domain"], &wanted);
    }
    lines.into_bytes()
}

/// Puts `wanted` in the place of all lines that start with one of `words`; leaves them if they say the same.
fn replace(lines: &mut Lines, words: &[&str], wanted: &[String]) {
    let split = |text: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(text).split_whitespace().map(str::to_owned).collect()
    };
    let found = lines.find(|text| split(text).first().is_some_and(|word| words.contains(&word.as_str())));
    let same = found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(i, line)| split(lines.text(*i)) == split(line.as_bytes()));
    if same {
        return;
    }
    let at = found.first().copied().unwrap_or(lines.len());
    for i in found.into_iter().rev() {
        lines.remove(i..i + 1);
    }
    let wanted: Vec<&[u8]> = wanted.iter().map(String::as_bytes).collect();
    lines.insert(at.min(lines.len()), &wanted);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(content: &str, servers: Option<&[&str]>, search: Option<&[&str]>) -> String {
        let owned =
            |list: Option<&[&str]>| list.map(|list| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        let (servers, search) = (owned(servers), owned(search));
        let once = edit(content.as_bytes(), servers.as_deref(), search.as_deref());
        assert_eq!(edit(&once, servers.as_deref(), search.as_deref()), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn options_comments_and_what_is_not_given_stay() {
        let text = "# c\nsearch old\nnameserver 1.1.1.1\noptions edns0\nnameserver 2.2.2.2\n";
        assert_eq!(
            edited(text, Some(&["9.9.9.9", "fd00::1"]), None),
            "# c\nsearch old\nnameserver 9.9.9.9\nnameserver fd00::1\noptions edns0\n"
        );
        assert_eq!(edited(text, Some(&["1.1.1.1", "2.2.2.2"]), Some(&["old"])), text, "the same is kept");
        assert_eq!(edited(text, None, Some(&["a.b", "c"])), text.replace("search old", "search a.b c"));
        assert_eq!(edited(text, None, Some(&[])), text.replace("search old\n", ""));
        assert_eq!(edited("domain x\n", Some(&["1.1.1.1"]), Some(&["y"])), "search y\nnameserver 1.1.1.1\n");
        assert_eq!(edited("", Some(&["1.1.1.1"]), None), "nameserver 1.1.1.1\n");
    }
}
