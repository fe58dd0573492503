//! Every setting in each of its layers, and the layers over one another.

use super::super::kind::Shape;
use super::super::{Effective, Origin, SETTINGS, Setting, file, layers};
use super::{Start, parse_flags};

/// Values among which every kind finds at least two of its own.
const POOL: [&str; 28] = [
    "true",
    "false",
    "7",
    "77",
    "777",
    "45s",
    "2m",
    "50m",
    "70KiB",
    "1MiB",
    "63KiB",
    "4096",
    "auto",
    "lease",
    "owner",
    "keep",
    "move",
    "aggregate",
    "none",
    "block",
    "skip",
    "postgres://app:pw@db/one",
    "postgres://app:pw@db/two",
    "127.0.0.1:9001",
    "127.0.0.1:9002",
    "/one",
    "/two",
    "11111111-1111-4111-8111-111111111111",
];

/// Values that the setting accepts, the default excepted.
fn samples(setting: &Setting) -> Vec<&'static str> {
    let pool = POOL.into_iter().chain([
        "22222222-2222-4222-8222-222222222222",
        "public.a",
        "public.b,public.c",
        "https://one.example/{trace_id}",
        "https://two.example/{trace_id}",
    ]);
    let fits = |value: &&str| {
        let items: Vec<String> = match setting.shape {
            Shape::List => value.split(',').map(str::to_owned).collect(),
            _ => vec![(*value).to_owned()],
        };
        (setting.canonical)(&items).is_ok_and(|canonical| canonical.join(",") == **value)
    };
    pool.filter(|value| *value != setting.default).filter(fits).collect()
}

fn toml(setting: &Setting, value: &str) -> String {
    let value = match setting.shape {
        Shape::Number | Shape::Switch => value.to_owned(),
        Shape::List => format!("{:?}", value.split(',').collect::<Vec<_>>()),
        Shape::Text | Shape::Duration | Shape::Size => format!("{value:?}"),
    };
    match setting.path.split_once('.') {
        Some((section, key)) => format!("# one\n\n[{section}]\n{key} = {value}\n"),
        None => format!("# one\n\n\n{} = {value}\n", setting.path),
    }
}

/// What is in force, whether this version can do it or not.
fn effective(setting: &Setting, start: &Start) -> Effective {
    start.run(|inputs| {
        let mut errors = Vec::new();
        let file = file::read(inputs.dir, None, &mut errors);
        let all = layers::resolve(inputs.flags, inputs.env, file.as_ref(), &mut errors);
        assert!(errors.iter().all(|error| error.code == postbox_core::Code::ConfigUnsupported), "{errors:?}");
        let others = all.iter().filter(|effective| effective.setting.path != setting.path);
        assert!(others.clone().all(|effective| effective.origin == Origin::Default), "{all:#?}");
        all.into_iter().find(|effective| effective.setting.path == setting.path).unwrap()
    })
}

#[test]
fn every_setting_in_every_layer_and_their_order() {
    for setting in SETTINGS {
        let samples = samples(setting);
        assert!(!samples.is_empty(), "the pool has no value for {}", setting.path);
        let sample = |at: usize| samples[at % samples.len()];
        let (in_file, in_env, in_flag) = (sample(0), sample(1), sample(2));
        for given in 0..8_u8 {
            let (file, env, flag) = (given & 1 != 0, given & 2 != 0, given & 4 != 0);
            let mut start = Start::default();
            if file {
                start = start.file(toml(setting, in_file));
            }
            if env {
                start = start.env(setting.env, in_env);
            }
            if flag {
                start = start.flags([format!("--{}={in_flag}", setting.flag)]);
            }
            let found = effective(setting, &start);
            let value = found.items.join(",");
            let expected = match (flag, env, file) {
                (true, _, _) => in_flag,
                (_, true, _) => in_env,
                (_, _, true) => in_file,
                _ => setting.default,
            };
            assert_eq!(value, expected, "{} {given}", setting.path);
            match (&found.origin, flag, env, file) {
                (Origin::Flag(name), true, _, _) => assert_eq!(*name, setting.flag),
                (Origin::Env(name), false, true, _) => assert_eq!(*name, setting.env),
                (Origin::File { path, line }, false, false, true) => {
                    assert!(path.ends_with("postbox.toml"));
                    assert_eq!(*line, 4);
                }
                (Origin::Default, false, false, false) => {}
                (origin, ..) => panic!("{} {given}: {origin}", setting.path),
            }
        }
    }
}

#[test]
fn what_is_overridden_is_not_checked() {
    // So that an operator can get past a broken layer with a flag.
    let start = Start::default().env("OUTBOX_RELAY_BATCH_SIZE", "many").flags(["--batch-size", "5"]);
    assert_eq!(start.config().relay.batch_size, 5);
    let start =
        Start::default().file("[relay]\nfair_tenants = true").env("OUTBOX_RELAY_FAIR_TENANTS", "false");
    start.config();
}

#[test]
fn flags_read_as_people_write_them() {
    let config = Start::default().flags(["--table", "a.x", "--table", "a.y,a.z"]).config();
    assert_eq!(config.relay.tables, ["a.x", "a.y", "a.z"]);
    assert_eq!(config.cleaner_tables(), ["a.x", "a.y", "a.z"]);
    let config = Start::default().flags(["--tables=a.x, a.y", "--cleaner-tables", "a.y"]).config();
    assert_eq!(config.relay.tables, ["a.x", "a.y"]);
    assert_eq!(config.cleaner_tables(), ["a.y"]);
    assert!(Start::default().flags(["--mask-tenants"]).config().general.mask_tenants);
    assert!(!Start::default().flags(["--single-active=false"]).config().relay.single_active);
    let config = Start::default().flags(["--mask-tenants", "--batch-size", "9"]).config();
    assert!(config.general.mask_tenants && config.relay.batch_size == 9);
}

#[test]
fn an_empty_variable_is_unset_and_values_are_trimmed() {
    for setting in SETTINGS {
        for empty in ["", "  ", "\n"] {
            let config = Start::default().env(setting.env, empty).config();
            assert_eq!(config.origin(setting.path), Some(&Origin::Default));
        }
    }
    let config = Start::default().env("DATABASE_URL", "postgres://db/app\n").config();
    assert_eq!(config.general.database_url.reveal(), "postgres://db/app");
}

#[test]
fn a_file_can_be_named() {
    let start = Start::default().file("relay.batch_size = 1");
    start.run(|inputs| {
        std::fs::write(inputs.dir.join("env.toml"), "relay.batch_size = 2").unwrap();
        std::fs::write(inputs.dir.join("flag.toml"), "relay.batch_size = 3").unwrap();
        let load = |env: &super::Env, flags: &super::Flags| {
            let config = super::Config::load(&super::Inputs { dir: inputs.dir, env, flags }).unwrap();
            (config.relay.batch_size, config.file.unwrap().file_name().unwrap().to_owned())
        };
        let env = [("POSTBOX_CONFIG".to_owned(), "env.toml".to_owned())].into();
        let flags = parse_flags(["--config", "flag.toml"]);
        assert_eq!(load(inputs.env, inputs.flags), (1, "postbox.toml".into()));
        assert_eq!(load(&env, inputs.flags), (2, "env.toml".into()));
        assert_eq!(load(&env, &flags), (3, "flag.toml".into()));
    });
}
