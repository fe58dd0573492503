//! What needs no server: which hosts, which URLs, which options.

mod addresses;
mod urls;

use super::config::Config;
use crate::options::{Options, Value};

fn options(value: Value) -> Options {
    let Value::Object(map) = value else { panic!("an object") };
    map.into_iter().collect()
}

fn config(url: &str, given: Value) -> Result<Config, String> {
    Config::new(url, options(given)).map_err(|error| error.to_string())
}
