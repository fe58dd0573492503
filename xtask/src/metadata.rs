//! What cargo knows of the workspace.

use std::path::PathBuf;

use serde_json::Value;

use crate::run::{cargo, output};

/// The parts of `cargo metadata` that are of use here.
pub(crate) struct Metadata {
    /// Where builds go.
    pub(crate) target: PathBuf,
    /// The crates with a library, by name.
    pub(crate) libraries: Vec<Library>,
}

/// A crate with a library.
pub(crate) struct Library {
    pub(crate) name: String,
    /// All but `default`.
    pub(crate) features: Vec<String>,
}

/// Asks cargo, for this workspace's own packages only.
pub(crate) fn read() -> Result<Metadata, String> {
    let text = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    parse(&text).ok_or_else(|| "cargo metadata has a form that xtask does not know".to_owned())
}

fn parse(text: &str) -> Option<Metadata> {
    let value: Value = serde_json::from_str(text).ok()?;
    let target = PathBuf::from(value.get("target_directory")?.as_str()?);
    let mut libraries = Vec::new();
    for package in value.get("packages")?.as_array()? {
        let kinds =
            package.get("targets")?.as_array()?.iter().filter_map(|target| target.get("kind")?.as_array());
        if kinds.flatten().any(|kind| matches!(kind.as_str(), Some("lib" | "proc-macro"))) {
            let features = package.get("features")?.as_object()?.keys().filter(|name| *name != "default");
            libraries.push(Library {
                name: package.get("name")?.as_str()?.to_owned(),
                features: features.cloned().collect(),
            });
        }
    }
    Some(Metadata { target, libraries })
}

#[cfg(test)]
mod tests {
    use super::{parse, read};

    #[test]
    fn libraries_and_their_features_are_found() {
        let text = r#"{"target_directory": "/t", "packages": [
            {"name": "lib", "features": {"default": ["a"], "a": []}, "targets": [{"kind": ["test"]}, {"kind": ["lib"]}]},
            {"name": "bin", "features": {}, "targets": [{"kind": ["bin"]}]}]}"#;
        let metadata = parse(text).unwrap();
        assert_eq!(metadata.target.to_str(), Some("/t"));
        assert_eq!(metadata.libraries.len(), 1);
        assert_eq!(
            (metadata.libraries[0].name.as_str(), &*metadata.libraries[0].features),
            ("lib", &["a".to_owned()][..])
        );
        assert!(parse("{}").is_none());
    }

    #[test]
    fn this_workspace_is_understood() {
        let names: Vec<String> = read().unwrap().libraries.into_iter().map(|library| library.name).collect();
        for name in ["postbox", "postbox-core", "postbox-derive", "postbox-testkit"] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|found| found == "postbox-cli"));
    }
}
