//! Tokens, as the configuration gives them.

use ring::hmac;

use super::{Role, invalid};
use crate::config::{Hidden, Secret};
use crate::report::Failure;

/// A shorter token could be guessed.
const SHORTEST_TOKEN: usize = 16;
const LONGEST_TOKEN: usize = 512;

/// A token, and what is made of it.
pub(super) struct Token {
    pub(super) name: String,
    pub(super) role: Role,
    /// What the token becomes under the key of this process: compared in constant time, whatever its length.
    pub(super) tag: hmac::Tag,
    /// Signs its sessions. It is made of the token alone: every relay that has the token knows them, and none does once it was
    /// taken away.
    pub(super) sessions: hmac::Key,
}

/// One of a setting, as `alice:TOKEN` or `TOKEN`.
pub(super) fn token(key: &hmac::Key, role: Role, setting: &str, given: &str) -> Result<Token, Failure> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
    };
    let (name, token) = match given.split_once(':') {
        Some((name, token)) if is_name(name) => (name, token),
        _ => (role.as_str(), given),
    };
    let accepted =
        "give tokens of at least 16 characters without spaces, such as alice:$(openssl rand -hex 32)";
    if token.len() < SHORTEST_TOKEN || token.len() > LONGEST_TOKEN {
        let message = format!(
            "a token of {setting} has less than {SHORTEST_TOKEN} characters, or more than {LONGEST_TOKEN}"
        );
        return Err(invalid(message, accepted));
    }
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(invalid(
            format!("a token of {setting} has a space or a special character in it"),
            accepted,
        ));
    }
    let secret = format!("postbox admin session\0{}\0{name}\0{token}", role.as_str());
    Ok(Token {
        name: name.to_owned(),
        role,
        tag: hmac::sign(key, token.as_bytes()),
        sessions: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
    })
}

/// The tokens of a file, one on each line; what follows a `#` at the start of one is for people.
pub(super) fn from_file(setting: &str, file: &Secret) -> Result<Vec<Hidden>, Failure> {
    let text = std::fs::read_to_string(file.reveal()).map_err(|error| {
        invalid(format!("{setting} = {file} cannot be read: {error}"), "name a file that this user may read")
    })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let tokens: Vec<Hidden> = lines.map(Hidden::new).collect();
    if tokens.is_empty() {
        return Err(invalid(format!("{setting} = {file} has no token in it"), "write one on each line"));
    }
    Ok(tokens)
}
