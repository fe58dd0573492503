//! URLs of sinks: every build knows some, and has a word for the others.

use postbox_sinks::AnySink;
use postbox_testkit::Fuzz;

/// No address is looked up and no file opened before a sink is used.
#[tokio::test(flavor = "multi_thread")]
async fn fuzz_urls() {
    let runtime = tokio::runtime::Handle::current();
    let words = [
        "file:", "kafka://", "nats://", "amqps://", "redis://", "https://", "?", "&", "=", "@", "[::1]", "%",
        "${",
    ];
    let fuzz = Fuzz::new(env!("CARGO_MANIFEST_DIR"), "urls").words(&words);
    tokio::task::spawn_blocking(move || {
        fuzz.run(|input| {
            // Clients of some brokers want to be made inside of a runtime.
            let _inside = runtime.enter();
            match AnySink::from_url(&String::from_utf8_lossy(input)) {
                Ok(sink) => sink.to_string().chars().take(8).collect(),
                Err(error) => error.to_string().chars().filter(|c| !c.is_ascii_digit()).take(60).collect(),
            }
        });
    })
    .await
    .unwrap();
}
