//! Who may do what: tokens, sessions, and the names that browsers may call this server by.

mod token;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use postbox_core::Code;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use self::token::{Token, from_file, token};
use crate::config::{Admin as Settings, Config, Hidden};
use crate::report::{Failure, Problem};

/// The cookie of a session.
pub(super) const COOKIE: &str = "postbox_session";

/// The header that a change in a session carries.
pub(super) const CSRF_HEADER: &str = "x-postbox-csrf";

/// How long a session lasts.
pub(super) const SESSION: Duration = Duration::from_hours(12);

/// Sessions that were ended before their time; more than these are not remembered.
const MOST_ENDED: usize = 10_000;

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Viewer,
    Operator,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) role: Role,
    pub(super) name: String,
    /// What a change must carry; none where the token itself was sent, which no other site can do.
    pub(super) csrf: Option<String>,
    /// When the session ends, in seconds since 1970.
    pub(super) expires: Option<u64>,
}

impl Who {
    /// For the audit log.
    pub(super) fn label(&self) -> String {
        if self.name == self.role.as_str() || self.name == LOCAL {
            return self.name.clone();
        }
        format!("{} ({})", self.name, self.role.as_str())
    }
}

/// Who asks, as the audit log names them. The guard lets nobody through who is nobody.
pub(super) struct By(pub(super) String);

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let who = parts.extensions.get::<Option<Who>>().and_then(Option::as_ref);
        Ok(Self(who.map_or_else(|| "unknown".to_owned(), Who::label)))
    }
}

/// Who works where there are no tokens.
const LOCAL: &str = "local";

/// A session that lasts.
struct Session<'a> {
    token: &'a Token,
    /// What the token has signed.
    payload: &'a str,
    nonce: &'a str,
    expires: u64,
}

/// Tokens and names.
pub(super) struct Access {
    tokens: Vec<Token>,
    /// Of this process.
    key: hmac::Key,
    /// What changes carry where there are no tokens.
    local_csrf: String,
    random: SystemRandom,
    /// Nonces of sessions that were ended, and until when they would have lasted.
    ended: Mutex<BTreeMap<String, u64>>,
    listen: SocketAddr,
    hosts: Vec<String>,
    pub(super) read_only: bool,
    /// Where traces can be looked at.
    pub(super) trace_url: Option<String>,
    /// Without a slash at its end.
    pub(super) base: String,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Access({} tokens)", self.tokens.len())
    }
}

fn invalid(message: impl Into<String>, next: &str) -> Failure {
    Problem::new(Code::ConfigInvalid, message.into()).next(next).into()
}

impl Access {
    /// What the configuration says; everything that is wrong with it is refused before anything is served.
    pub(super) fn of(config: &Config) -> Result<Self, Failure> {
        let settings = &config.admin;
        let listen = settings.listen.ok_or_else(|| {
            invalid("admin.listen is empty", "give an address such as 127.0.0.1:8080, or leave it out")
        })?;
        let access = Self::with(settings, listen)?;
        if !access.tokens.is_empty() {
            return Ok(access);
        }
        let from = |path| config.origin(path).map(|origin| format!(" (from {origin})")).unwrap_or_default();
        if !listen.ip().is_loopback() {
            let message = format!(
                "admin.listen = {listen}{} can be reached by others, and there is no token: anybody could discard events",
                from("admin.listen")
            );
            let next =
                "set OUTBOX_ADMIN_OPERATOR_TOKENS and OUTBOX_ADMIN_VIEWER_TOKENS, or listen on 127.0.0.1";
            return Err(invalid(message, next));
        }
        // Who has another name for it has a proxy, and whatever comes through that comes from this machine.
        if let Some(host) = access.hosts.iter().find(|host| !is_this_machine(host)) {
            let message = format!(
                "admin.hosts has {host}{}, a name that others can call, and there is no token: anybody could discard events",
                from("admin.hosts")
            );
            let next =
                "set OUTBOX_ADMIN_OPERATOR_TOKENS and OUTBOX_ADMIN_VIEWER_TOKENS, or leave the name out";
            return Err(invalid(message, next));
        }
        Ok(access)
    }

    /// For the demo: this machine only, no tokens.
    pub(super) fn local(listen: SocketAddr) -> Result<Self, Failure> {
        let settings = Settings {
            enabled: true,
            listen: Some(listen),
            base_path: "/".to_owned(),
            read_only: false,
            hosts: Vec::new(),
            viewer_tokens: Vec::new(),
            operator_tokens: Vec::new(),
            viewer_tokens_file: None,
            operator_tokens_file: None,
            trace_url: None,
        };
        Self::with(&settings, listen)
    }

    fn with(settings: &Settings, listen: SocketAddr) -> Result<Self, Failure> {
        let random = SystemRandom::new();
        let key = bytes::<32>(&random)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let mut tokens: Vec<Token> = Vec::new();
        for (role, setting, given, file) in [
            (Role::Viewer, "admin.viewer_tokens", &settings.viewer_tokens, &settings.viewer_tokens_file),
            (
                Role::Operator,
                "admin.operator_tokens",
                &settings.operator_tokens,
                &settings.operator_tokens_file,
            ),
        ] {
            let mut all: Vec<Hidden> = given.clone();
            if let Some(file) = file {
                all.extend(from_file(&format!("{setting}_file"), file)?);
            }
            for given in &all {
                let token = token(&key, role, setting, given.reveal())?;
                if tokens.iter().any(|other| other.tag.as_ref() == token.tag.as_ref()) {
                    let message = format!("a token of {setting} is there twice: whose it is cannot be told");
                    return Err(invalid(message, "give each its own"));
                }
                tokens.push(token);
            }
        }
        let local_csrf = BASE64.encode(bytes::<24>(&random)?);
        let base = settings.base_path.trim_end_matches('/').to_owned();
        let (hosts, read_only, ended) = (settings.hosts.clone(), settings.read_only, Mutex::default());
        let trace_url = settings.trace_url.clone();
        Ok(Self { tokens, key, local_csrf, random, ended, listen, hosts, read_only, trace_url, base })
    }

    /// Where it really listens: the port may have been any.
    pub(super) fn listens_on(&mut self, address: SocketAddr) {
        self.listen = address;
    }

    /// Whether somebody has to say who they are.
    pub(super) fn needs_login(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Whether this server may be called so. A name that somebody else's DNS has made point here is not on the list; an
    /// address cannot be made to.
    pub(super) fn knows_host(&self, host: &str) -> bool {
        let host = without_port(host).to_ascii_lowercase();
        if self.hosts.contains(&host) || host == "localhost" {
            return true;
        }
        let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else { return false };
        let listens = self.listen.ip();
        address == listens || listens.is_unspecified() || (address.is_loopback() && listens.is_loopback())
    }

    /// Whether a page of this origin is ours: it has the name that the request went to, or one of the list, which a proxy
    /// may have changed on the way.
    pub(super) fn knows_origin(&self, origin: &str, host: &str) -> bool {
        let Some(authority) = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"))
        else {
            return false;
        };
        authority.eq_ignore_ascii_case(host)
            || self.hosts.contains(&without_port(authority).to_ascii_lowercase())
    }

    fn token(&self, given: &str) -> Option<&Token> {
        // All of them, so that how long it takes says nothing about which it was.
        self.tokens.iter().fold(None, |found, token| {
            let same = hmac::verify(&self.key, given.as_bytes(), token.tag.as_ref()).is_ok();
            if same { Some(token) } else { found }
        })
    }

    /// Who has this token.
    pub(super) fn by_token(&self, given: &str) -> Option<Who> {
        let known = self.token(given)?;
        Some(Who { role: known.role, name: known.name.clone(), csrf: None, expires: None })
    }

    /// Begins a session for a token: the cookie's value.
    pub(super) fn begin(&self, given: &str) -> Option<String> {
        // Signed with this one and no other: several may have the same name, and to take one away ends its sessions.
        let token = self.token(given)?;
        let nonce = BASE64.encode(bytes::<18>(&self.random).ok()?);
        let payload = format!("1.{}.{nonce}", now() + SESSION.as_secs());
        let tag = hmac::sign(&token.sessions, payload.as_bytes());
        Some(format!("{payload}.{}", BASE64.encode(tag.as_ref())))
    }

    fn session<'a>(&'a self, cookie: &'a str) -> Option<Session<'a>> {
        let (payload, tag) = cookie.rsplit_once('.')?;
        let tag = BASE64.decode(tag).ok()?;
        let token = self
            .tokens
            .iter()
            .find(|token| hmac::verify(&token.sessions, payload.as_bytes(), &tag).is_ok())?;
        let mut parts = payload.split('.').skip(1);
        let (expires, nonce) = (parts.next()?.parse::<u64>().ok()?, parts.next()?);
        let lasts = expires > now() && !self.lock().contains_key(nonce);
        lasts.then_some(Session { token, payload, nonce, expires })
    }

    /// Whose session it is, if it lasts.
    pub(super) fn by_cookie(&self, cookie: &str) -> Option<Who> {
        let Session { token, payload, expires, .. } = self.session(cookie)?;
        let csrf = hmac::sign(&token.sessions, format!("csrf {payload}").as_bytes());
        let csrf = Some(BASE64.encode(csrf.as_ref()));
        Some(Who { role: token.role, name: token.name.clone(), csrf, expires: Some(expires) })
    }

    /// Ends a session before its time. What is none is not remembered: anybody can make up cookies that never end.
    pub(super) fn end(&self, cookie: &str) {
        let Some(Session { nonce, expires, .. }) = self.session(cookie) else { return };
        let (mut ended, now) = (self.lock(), now());
        ended.retain(|_, until| *until > now);
        if ended.len() < MOST_ENDED {
            ended.insert(nonce.to_owned(), expires);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever can reach the loopback, where there are no tokens.
    pub(super) fn local_user(&self) -> Option<Who> {
        let csrf = Some(self.local_csrf.clone());
        let who = Who { role: Role::Operator, name: LOCAL.to_owned(), csrf, expires: None };
        self.tokens.is_empty().then_some(who)
    }

    /// Whether two texts are the same, in a time that does not depend on where they differ.
    pub(super) fn same(&self, one: &str, other: &str) -> bool {
        let tag = hmac::sign(&self.key, one.as_bytes());
        hmac::verify(&self.key, other.as_bytes(), tag.as_ref()).is_ok()
    }
}

fn bytes<const N: usize>(random: &SystemRandom) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    random.fill(&mut bytes).map_err(|_| {
        invalid("this machine gives no random numbers, and sessions need them", "check /dev/urandom")
    })?;
    Ok(bytes)
}

/// Whether nobody else can call it so.
fn is_this_machine(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
