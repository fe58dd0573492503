//! What a test may want of its broker.

use std::net::SocketAddr;

/// How a private broker is to be; what is not said is as the broker has it, and nobody has to log in.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    pub(crate) login: Option<(String, String)>,
    pub(crate) token: Option<String>,
    pub(crate) max_message: Option<usize>,
    pub(crate) tls: bool,
    pub(crate) settings: Vec<String>,
    /// Where clients are told to come to, by brokers that tell: see their `try_behind`.
    pub(crate) advertised: Option<SocketAddr>,
}

impl ServerOptions {
    /// Nothing in particular.
    pub fn new() -> Self {
        Self::default()
    }

    /// Clients must log in by this name and password, of letters and digits.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Clients must show this token, of letters and digits: for brokers that know such.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Messages of more bytes are refused.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = Some(bytes);
        self
    }

    /// The broker speaks TLS, with a certificate for `127.0.0.1` and `localhost` of the authority in
    /// [`Broker::authority`](super::Broker::authority): for NATS, Redis and RabbitMQ.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A line for the broker's configuration file, in the broker's own words.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push(line.to_owned());
        self
    }

    /// What stands before the host in a URL: `user:password@`, `token@` or nothing.
    pub(crate) fn userinfo(&self) -> String {
        match (&self.login, &self.token) {
            (Some((user, password)), _) => format!("{user}:{password}@"),
            (None, Some(token)) => format!("{token}@"),
            (None, None) => String::new(),
        }
    }

    /// Refuses what this kind of broker does not have: a test must not pass because a wish was not heard.
    pub(crate) fn without_token(&self, broker: &str) -> Result<(), String> {
        if self.token.is_some() { Err(format!("{broker} here has no login by token")) } else { Ok(()) }
    }

    /// Likewise.
    pub(crate) fn without_tls(&self, broker: &str) -> Result<(), String> {
        if self.tls { Err(format!("{broker} here does not speak TLS")) } else { Ok(()) }
    }
}
