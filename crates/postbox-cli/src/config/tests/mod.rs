//! Tests of the configuration as a whole; each brings its own directory, environment and command line.

mod databases;
mod errors;
mod fuzz;
mod output;
mod precedence;
mod routes;
mod sinks;
mod values;

use std::ffi::OsString;

use super::{Config, ConfigErrors, Env, Flags, Inputs, args};

/// The three layers of one start.
#[derive(Default)]
struct Start {
    file: Option<Vec<u8>>,
    env: Env,
    flags: Flags,
}

impl Start {
    fn file(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.file = Some(text.into());
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn flags<I: Into<OsString> + Clone>(mut self, given: impl IntoIterator<Item = I>) -> Self {
        self.flags = parse_flags(given);
        self
    }

    /// Runs `f` in a directory of its own that has the file, if any.
    fn run<T>(&self, f: impl FnOnce(&Inputs<'_>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        if let Some(file) = &self.file {
            std::fs::write(dir.path().join("postbox.toml"), file).unwrap();
        }
        f(&Inputs { dir: dir.path(), env: &self.env, flags: &self.flags })
    }

    fn load(&self) -> Result<Config, ConfigErrors> {
        self.run(Config::load)
    }

    fn config(&self) -> Config {
        self.load().unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The codes and texts of what is wrong, the temporary directory left out.
    fn errors(&self) -> Vec<(&'static str, String)> {
        self.run(|inputs| {
            let errors = Config::load(inputs).expect_err("this must be refused");
            let dir = format!("{}/", inputs.dir.display());
            errors.0.iter().map(|error| (error.code.as_str(), error.to_string().replace(&dir, ""))).collect()
        })
    }

    /// The text of the one thing that is wrong.
    fn error(&self, code: &str) -> String {
        let mut errors = self.errors();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        let (found, text) = errors.remove(0);
        assert_eq!(found, code, "{text}");
        text
    }
}

fn parse_flags<I: Into<OsString> + Clone>(given: impl IntoIterator<Item = I>) -> Flags {
    let given = std::iter::once("postbox".into()).chain(given.into_iter().map(Into::into));
    let matches = clap::Command::new("postbox").args(args()).try_get_matches_from(given);
    Flags::from_matches(&matches.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn nothing_given_is_the_defaults_of_the_contract() {
    let config = Start::default().config();
    assert!(config.warnings.is_empty());
    assert!(config.effective.iter().all(|effective| effective.origin == super::Origin::Default));
    let seen: Vec<(&str, String)> =
        config.effective.iter().map(|effective| (effective.setting.env, effective.items.join(","))).collect();
    let expected = [
        ("DATABASE_URL", "sqlite:postbox.db"),
        ("OUTBOX_DIRECT_URL", ""),
        ("OUTBOX_SINK", ""),
        ("OUTBOX_DEAD_LETTER", ""),
        ("OUTBOX_LISTEN", ""),
        ("OUTBOX_DEFAULT_TENANT_ID", "00000000-0000-0000-0000-000000000000"),
        ("OUTBOX_LAST_ERROR_MAX_BYTES", "2048"),
        ("OUTBOX_MASK_TENANTS", "false"),
        ("OUTBOX_RELAY_ENABLED", "true"),
        ("OUTBOX_RELAY_TABLES", ""),
        ("OUTBOX_RELAY_SINGLE_ACTIVE", "true"),
        ("OUTBOX_RELAY_POLL_INTERVAL", "1s"),
        ("OUTBOX_RELAY_BATCH_SIZE", "100"),
        ("OUTBOX_RELAY_LOCK_TTL", "60s"),
        ("OUTBOX_RELAY_MAX_ATTEMPTS", "25"),
        ("OUTBOX_RELAY_DISPATCH_TIMEOUT", "30s"),
        ("OUTBOX_RELAY_CONCURRENCY", "16"),
        ("OUTBOX_RELAY_DRAIN_TIMEOUT", "5s"),
        ("OUTBOX_RELAY_MAX_IN_FLIGHT_BYTES", "16MiB"),
        ("OUTBOX_RELAY_CLAIM", "auto"),
        ("OUTBOX_RELAY_TENANTS", ""),
        ("OUTBOX_RELAY_FAIR_TENANTS", "false"),
        ("OUTBOX_RELAY_HISTORY", "keep"),
        ("OUTBOX_RELAY_ORDERING", "none"),
        ("OUTBOX_RELAY_REDRIVE_AFTER", "0"),
        ("OUTBOX_RELAY_REDRIVE_MAX", "3"),
        ("OUTBOX_RELAY_ON_DEAD", "block"),
        ("OUTBOX_CLEANER_ENABLED", "true"),
        ("OUTBOX_CLEANER_TABLES", ""),
        ("OUTBOX_CLEANER_INTERVAL", "1m"),
        ("OUTBOX_CLEANER_RETENTION", "168h"),
        ("OUTBOX_CLEANER_DEAD_RETENTION", "0"),
        ("OUTBOX_CLEANER_IDEMPOTENCY_RETENTION", "24h"),
        ("OUTBOX_CLEANER_VACUUM", "true"),
        ("OUTBOX_INBOX_RETENTION", "0"),
        ("OUTBOX_INBOX_SOURCE_RETENTION", "0"),
        ("OUTBOX_DASHBOARD", "false"),
        ("OUTBOX_ADMIN_LISTEN", "127.0.0.1:8080"),
        ("OUTBOX_ADMIN_BASE_PATH", "/"),
        ("OUTBOX_ADMIN_READ_ONLY", "false"),
        ("OUTBOX_ADMIN_HOSTS", ""),
        ("OUTBOX_ADMIN_VIEWER_TOKENS", ""),
        ("OUTBOX_ADMIN_OPERATOR_TOKENS", ""),
        ("OUTBOX_ADMIN_VIEWER_TOKENS_FILE", ""),
        ("OUTBOX_ADMIN_OPERATOR_TOKENS_FILE", ""),
        ("OUTBOX_ADMIN_TRACE_URL", ""),
        ("PROMETHEUS_METRICS_ENABLED", "true"),
        ("PROMETHEUS_METRICS_PATH", "/debug/prometheus"),
        ("OUTBOX_METRICS_PREFIX", "outbox"),
        ("OUTBOX_MAX_TOPIC_LABELS", "200"),
    ];
    assert_eq!(seen, expected.map(|(env, value)| (env, value.to_owned())));
    assert_eq!(config.relay.max_in_flight_bytes, 16 * 1_024 * 1_024);
    assert_eq!(config.cleaner.retention, std::time::Duration::from_hours(168));
    assert_eq!(config.cleaner.dead_retention, None);
}

#[test]
fn the_table_is_consistent() {
    for (at, setting) in super::SETTINGS.iter().enumerate() {
        for other in &super::SETTINGS[..at] {
            assert_ne!(setting.path, other.path);
            assert_ne!(setting.env, other.env);
            assert_ne!(setting.flag, other.flag);
        }
        let default = (setting.canonical)(&super::settings::default_items(setting.default));
        default.unwrap_or_else(|reason| panic!("{}: default {reason}", setting.path));
        assert!(setting.doc.ends_with('.') && !setting.doc.contains('\n'), "{}", setting.doc);
        // "A flag of the same words" as the variable or the key.
        let words = |text: &str| text.to_ascii_lowercase().replace(['_', '.'], "-");
        let (path, env) = (words(setting.path), words(setting.env));
        assert!(
            env.ends_with(setting.flag) || path.ends_with(setting.flag) || setting.flag == "table",
            "{env} {path}"
        );
    }
}
