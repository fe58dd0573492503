//! A server of an operator, and a file of credentials for it, made by hand.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// Lines for the server's configuration, and the file that opens it.
pub(crate) struct Operator {
    pub(crate) settings: String,
    pub(crate) creds: PathBuf,
    _dir: tempfile::TempDir,
}

impl Operator {
    pub(crate) fn make() -> Self {
        let (operator, account, system, user) =
            (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account(), KeyPair::new_user());
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let of_operator = token(&operator, &operator, &json!({ "type": "operator", "version": 2 }));
        let of_account = |key: &KeyPair, limits: &Value| {
            token(&operator, key, &json!({ "type": "account", "version": 2, "limits": limits }))
        };
        let no_storage = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        });
        let settings = format!(
            "operator: {of_operator}\nsystem_account: {sys}\nresolver: MEMORY\nresolver_preload: {{ {acc}: {}, {sys}: {} }}",
            of_account(&account, &limits),
            of_account(&system, &no_storage),
            acc = account.public_key(),
            sys = system.public_key(),
        );
        let of_user = token(
            &account,
            &user,
            &json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} }),
        );
        let dir = tempfile::tempdir().unwrap();
        let creds = dir.path().join("user.creds");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        );
        std::fs::write(&creds, text).unwrap();
        Self { settings, creds, _dir: dir }
    }
}

/// A token about `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let claims = part(&json!({
        "jti": "test", "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": "test",
        "nats": nats,
    }));
    let signed = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}
