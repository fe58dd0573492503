//! Links that lead nowhere: in the Markdown that people read on the web, and in the book that is built from it.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// Broken links of every Markdown page, a line each.
pub(crate) fn of_pages(root: &Path) -> Result<Vec<String>, String> {
    let mut pages = files(root, "md", false)?;
    pages.extend(files(&root.join("docs"), "md", true)?);
    let mut broken = Vec::new();
    let mut seen = Texts::default();
    for page in pages {
        for (words, link) in markdown_links(&seen.of(&page)?) {
            let Some((path, anchor)) = inside(&link) else { continue };
            let to = if path.is_empty() { page.clone() } else { resolve(&page, &path) };
            let fault = fault(&mut seen, &to, &anchor, slugs).or_else(|| {
                // A link from a promise to its test names the test.
                let test = words.trim_matches('`');
                let named = words.starts_with('`') && to.extension().is_some_and(|kind| kind == "rs");
                let there = named && seen.of(&to).is_ok_and(|text| text.contains(&format!("fn {test}")));
                (named && !there).then(|| format!("it has no fn {test}"))
            });
            broken.extend(fault.map(|fault| format!("{}: {link}: {fault}", shown(root, &page))));
        }
    }
    Ok(broken)
}

/// Broken links of the built book, a line each. A link that leaves the book means a file of the workspace: the book's
/// sources are as deep in it as the book is in `target`, so that such links work in both.
pub(crate) fn of_book(root: &Path, book: &Path) -> Result<Vec<String>, String> {
    let mut broken = Vec::new();
    let mut seen = Texts::default();
    for page in files(book, "html", true)? {
        // The page for what is not found is shown at any depth.
        if page.ends_with("404.html") {
            continue;
        }
        let text = seen.of(&page)?;
        let links: Vec<String> = ["href", "src"].iter().flat_map(|name| attributes(&text, name)).collect();
        for link in links {
            let Some((path, anchor)) = inside(&link) else { continue };
            let to = if path.is_empty() { page.clone() } else { resolve(&page, &path) };
            let to = if to.starts_with(book) { to } else { resolve(&source(root, book, &page), &path) };
            let fault = fault(&mut seen, &to, &anchor, |text| attributes(text, "id"));
            broken.extend(fault.map(|fault| format!("{}: {link}: {fault}", shown(book, &page))));
        }
    }
    Ok(broken)
}

/// Where a built page's source is.
fn source(root: &Path, book: &Path, page: &Path) -> PathBuf {
    root.join("docs/book").join(page.strip_prefix(book).unwrap_or(page))
}

/// Path and anchor of a link that stays on this side.
fn inside(link: &str) -> Option<(String, String)> {
    let outside = ["http:", "https:", "mailto:", "data:", "javascript:"];
    if link.is_empty() || outside.iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    Some((path.to_owned(), anchor.to_owned()))
}

fn fault(seen: &mut Texts, to: &Path, anchor: &str, anchors: fn(&str) -> Vec<String>) -> Option<String> {
    if !to.exists() {
        return Some("there is no such file".to_owned());
    }
    // Lines of source files and the like are not looked for.
    let page = to.extension().is_some_and(|kind| kind == "md" || kind == "html");
    if anchor.is_empty() || !page {
        return None;
    }
    let there = seen.of(to).is_ok_and(|text| anchors(&text).iter().any(|there| there == anchor));
    (!there).then(|| "there is no such heading".to_owned())
}

/// Files that have been read.
#[derive(Default)]
struct Texts(HashMap<PathBuf, Rc<str>>);

impl Texts {
    fn of(&mut self, path: &Path) -> Result<Rc<str>, String> {
        if let Some(text) = self.0.get(path) {
            return Ok(Rc::clone(text));
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text: Rc<str> = text.into();
        self.0.insert(path.to_owned(), Rc::clone(&text));
        Ok(text)
    }
}

/// The files of a folder with this ending, in order; `deep` looks into its folders too.
pub(crate) fn files(folder: &Path, ending: &str, deep: bool) -> Result<Vec<PathBuf>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            if deep {
                found.extend(files(&path, ending, true)?);
            }
        } else if path.extension().is_some_and(|kind| kind == ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Where a relative link on a page leads.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().map(PathBuf::from).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::Prefix(_) => path = PathBuf::from(part.as_os_str()),
        }
    }
    path
}

fn shown(from: &Path, path: &Path) -> String {
    path.strip_prefix(from).unwrap_or(path).display().to_string()
}

/// The text without fenced blocks, and with the brackets of code spans made harmless.
fn prose(text: &str) -> String {
    let mut fence: Option<usize> = None;
    let mut kept = String::new();
    for line in text.lines() {
        let ticks = line.trim_start().bytes().take_while(|byte| *byte == b'`').count();
        match fence {
            Some(open) if ticks >= open => fence = None,
            Some(_) => {}
            None if ticks >= 3 => fence = Some(ticks),
            None => kept.extend([line, "\n"]),
        }
    }
    let spans = kept.split('`').enumerate();
    let harmless =
        spans.map(
            |(at, part)| if at % 2 == 0 { part.to_owned() } else { part.replace(['[', ']', '(', ')'], " ") },
        );
    harmless.collect::<Vec<_>>().join("`")
}

/// Words and address of every inline link.
fn markdown_links(text: &str) -> Vec<(String, String)> {
    let prose = prose(text);
    let mut links = Vec::new();
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        let words = rest[..at].rsplit_once('[').map_or("", |(_, words)| words);
        rest = &rest[at + 2..];
        let Some(end) = rest.find(')') else { break };
        links.push((words.to_owned(), rest[..end].trim().to_owned()));
        rest = &rest[end..];
    }
    links
}

/// The anchors of a Markdown page's headings, as GitHub and mdBook make them.
fn slugs(text: &str) -> Vec<String> {
    let mut slugs: Vec<String> = Vec::new();
    for line in prose(text).lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept =
            title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        let slug: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let same = slugs.iter().filter(|other| **other == slug).count();
        slugs.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    slugs
}

/// The values of an attribute wherever it occurs.
fn attributes(html: &str, name: &str) -> Vec<String> {
    let start = format!(" {name}=\"");
    let values = html.split(start.as_str()).skip(1).filter_map(|rest| rest.split_once('"'));
    values.map(|(value, _)| value.replace("&amp;", "&")).collect()
}

#[cfg(test)]
mod tests {
    use super::{attributes, markdown_links, of_pages, resolve, slugs};
    use std::path::Path;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) `[no](x)` [`d`](../e.rs)\n```\n[no](y)\n```\n[two\nlines](f)";
        let links = markdown_links(text);
        let to: Vec<&str> = links.iter().map(|(_, to)| to.as_str()).collect();
        assert_eq!(to, ["b.md#c", "../e.rs", "f"]);
        assert_eq!(links[1].0, "`d`");
        assert_eq!(attributes("<a id=\"x\" href=\"y?a&amp;b\">", "href"), ["y?a&b"]);
    }

    #[test]
    fn headings_have_the_anchors_that_others_give_them() {
        let text = "# `postbox dead list`\n## What, why?\n```sh\n# no\n```\n## What, why?";
        assert_eq!(slugs(text), ["postbox-dead-list", "what-why", "what-why-1"]);
        assert_eq!(resolve(Path::new("a/b/c.md"), "../d/./e.md#"), Path::new("a/d/e.md#"));
    }

    #[test]
    fn faults_are_named() {
        let folder = std::env::temp_dir().join(format!("postbox-links-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("docs")).unwrap();
        std::fs::write(folder.join("a.rs"), "fn there() {}").unwrap();
        let page =
            "# Here\n[1](docs) [2](#here) [3](b.md) [4](#gone) [`there`](a.rs) [`gone`](a.rs) [5](https://x)";
        std::fs::write(folder.join("a.md"), page).unwrap();
        let broken = of_pages(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            broken.unwrap(),
            [
                "a.md: b.md: there is no such file",
                "a.md: #gone: there is no such heading",
                "a.md: a.rs: it has no fn gone"
            ]
        );
    }
}
