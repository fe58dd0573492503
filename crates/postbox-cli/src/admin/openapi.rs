//! The description of the API, kept by hand beside the code and held against it by a test.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::Shared;
use super::answer::json_text;

/// The document.
const DOCUMENT: &str = include_str!("openapi.json");

/// Shows it, with the path that everything is below.
pub(super) async fn show(State(admin): Shared) -> Response {
    let document = match admin.access.base.as_str() {
        "" => DOCUMENT.to_owned(),
        base => DOCUMENT.replacen(SERVER, &format!("\"url\": \"{base}\""), 1),
    };
    json_text(StatusCode::OK, document)
}

/// The place of the base path in the document.
const SERVER: &str = "\"url\": \"/\"";

#[cfg(test)]
mod tests {
    use super::super::guard::Need;
    use super::super::routes;
    use super::DOCUMENT;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        assert_eq!(DOCUMENT.matches(super::SERVER).count(), 1);
        let paths = document["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
                methods.map(move |method| (method.clone(), path.clone()))
            })
            .collect();
        let served: BTreeSet<(String, String)> =
            routes().iter().map(|(method, path, ..)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(described, served);
        for (method, path, need, _) in routes() {
            let operation = &paths[path][method];
            assert!(operation["summary"].is_string() && operation["operationId"].is_string(), "{path}");
            let said = operation["x-postbox-needs"].as_str();
            let needs = match need {
                Need::Nothing => "nothing",
                Need::View => "viewer",
                Need::Own => "session",
                Need::Change => "operator",
            };
            assert_eq!(said, Some(needs), "{method} {path}");
        }
    }
}
