//! Pages whose examples run with something longer that the page shows once: it is kept beside this file.

#[test]
fn the_page_shows_the_service_that_its_examples_use() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let page = std::fs::read_to_string(format!("{folder}/book/testing.md")).unwrap();
    assert!(
        page.contains(include_str!("guide/checkout.rs")),
        "book/testing.md and tests/guide/checkout.rs differ"
    );
}

#[test]
fn the_page_shows_the_sink_that_its_tests_use() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let page = std::fs::read_to_string(format!("{folder}/book/sinks/own.md")).unwrap();
    assert!(
        page.contains(include_str!("guide/warehouse.rs")),
        "book/sinks/own.md and tests/guide/warehouse.rs differ"
    );
}
