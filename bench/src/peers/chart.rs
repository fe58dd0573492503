//! The drains as horizontal bars, in SVG by hand.

use std::fmt::Write as _;

use super::report::{Results, thousands};

const WIDTH: f64 = 760.0;
/// Where the bars begin and how far they may go; names are left of them, figures right.
const LEFT: f64 = 170.0;
const LONGEST: f64 = 500.0;
const STEP: f64 = 26.0;
const TOP: f64 = 44.0;

/// Middle tones: an image knows nothing of the page, which may be light or dark.
const TEXT: &str = "#808080";
const OURS: &str = "#2a9d8f";
const THEIRS: &str = "#9aa5b1";

/// Who was skipped has no bar.
pub(crate) fn svg(results: &Results) -> String {
    let bars: Vec<_> = results.entries.iter().filter_map(|entry| Some((entry, entry.drain()?))).collect();
    let most = bars.iter().map(|(_, drain)| *drain).fold(1.0, f64::max);
    let height = bars.iter().fold(TOP, |height, _| height + STEP) + 12.0;
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("a line");
    line(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">"#
    ));
    line("<title>Events drained per second, by Postbox and by others</title>".to_owned());
    line(format!(r#"<text x="{LEFT}" y="24" font-weight="600">events drained per second, median</text>"#));
    let mut y = TOP;
    for (entry, drain) in bars {
        let colour = if entry.ours { OURS } else { THEIRS };
        let length = (drain / most * LONGEST).max(1.0);
        let (name, middle) = (escaped(&entry.name), y + 14.0);
        line(format!(r#"<text x="{:.0}" y="{middle}" text-anchor="end">{name}</text>"#, LEFT - 10.0));
        line(format!(r#"<rect x="{LEFT}" y="{y}" width="{length:.1}" height="18" rx="2" fill="{colour}"/>"#));
        line(format!(r#"<text x="{:.1}" y="{middle}">{}</text>"#, LEFT + length + 8.0, thousands(drain)));
        y += STEP;
    }
    line("</svg>".to_owned());
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::results;
    use super::{escaped, svg};

    #[test]
    fn the_longest_bar_is_the_fastest_and_who_was_skipped_has_none() {
        let svg = svg(&results());
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains(r##"width="500.0" height="18" rx="2" fill="#2a9d8f""##), "{svg}");
        assert!(svg.contains(r##"width="250.0" height="18" rx="2" fill="#9aa5b1""##), "{svg}");
        assert!(svg.contains(">140,000</text>") && !svg.contains("absent"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn names_are_text() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
