//! Headers as every database keeps them: JSON text.

use postbox_core::Headers;

/// Headers are a map from text to text; anything else was written by hand.
pub(crate) fn parse_headers(text: Option<&str>) -> Result<Headers, String> {
    let Some(text) = text else { return Ok(Headers::new()) };
    let problem = |_| "headers are not an object of texts".to_owned();
    serde_json::from_str::<Option<Headers>>(text).map(Option::unwrap_or_default).map_err(problem)
}
