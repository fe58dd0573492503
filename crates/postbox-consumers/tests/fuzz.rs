//! Messages that somebody else has put into a broker.

use postbox_consumers::Envelope;
use postbox_testkit::Fuzz;
use serde_json::Value;

/// Lines of headers, an empty line, the payload.
fn envelope(input: &[u8]) -> Envelope {
    let at = input.windows(2).position(|two| two == b"\n\n").unwrap_or(0);
    let (head, payload) = input.split_at(at);
    let head = String::from_utf8_lossy(head);
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let payload = payload.strip_prefix(b"\n\n").unwrap_or(payload).to_vec();
    Envelope { source: "orders".to_owned(), headers, payload, ..Envelope::default() }
}

#[test]
fn fuzz_envelopes() {
    let words = [
        "ce-",
        "ce_",
        "cloudEvents:",
        "content-type: application/cloudevents+json",
        "\"data_base64\":",
        "\n\n",
        "%",
    ];
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), "envelopes").words(&words).run(|input| {
        let envelope = envelope(input);
        let attributes = ["id", "type", "source"].map(|name| envelope.attribute(name).is_some());
        let json = envelope.json::<Value>().map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        let json: String = json.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
        format!(
            "{attributes:?} {:?} {} {} {json}",
            envelope.content_type(),
            envelope.topic().is_some(),
            envelope.data().len() == envelope.payload.len(),
        )
    });
}
