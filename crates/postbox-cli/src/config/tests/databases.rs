//! `[[database]]`: several databases, and how one is chosen.

use super::super::{Config, Scope, show_json, show_text};
use super::Start;

const INVALID: &str = "OUTBOX_CONFIG_INVALID";
const MISSING: &str = "OUTBOX_CONFIG_MISSING";
const UNKNOWN: &str = "OUTBOX_CONFIG_UNKNOWN_KEY";

const TWO: &str = "[[database]]\nname = \"orders\"\nurl = \"postgres://app:Zq9@db-1/app\"\ntables = [\"public.a_outbox\"]\n\
                   [[database]]\nname = \"old-billing\"\nurl = \"sqlite:b.db\"\ntables = [\"b_outbox\", \"c_outbox\"]\n\
                   cleaner_tables = [\"c_outbox\"]\n";

fn file(text: &str) -> Start {
    Start::default().file(text)
}

fn chosen(config: &Config, names: &[&str], scope: Scope) -> Result<Vec<Config>, String> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    config.choose(&names, scope).map_err(|errors| errors.to_string())
}

#[test]
fn each_database_has_what_is_its_own_and_shares_the_rest() {
    let config = file(&format!("sink = \"stdout:\"\n[relay]\nbatch_size = 7\n{TWO}")).config();
    assert_eq!(config.database, None);
    let each = config.each();
    let seen: Vec<_> = each
        .iter()
        .map(|config| {
            let name = config.database.clone().unwrap();
            (name, config.general.database_url.reveal().to_owned(), config.relay.tables.clone())
        })
        .collect();
    let expected = [
        ("orders", "postgres://app:Zq9@db-1/app", vec!["public.a_outbox"]),
        ("old-billing", "sqlite:b.db", vec!["b_outbox", "c_outbox"]),
    ];
    let expected = expected
        .map(|(name, url, tables)| (name.into(), url.into(), tables.into_iter().map(Into::into).collect()));
    assert_eq!(seen, expected);
    assert_eq!(each[0].cleaner_tables(), ["public.a_outbox"]);
    assert_eq!(each[1].cleaner_tables(), ["c_outbox"]);
    assert!(each.iter().all(|config| config.relay.batch_size == 7 && config.routes.len() == 1));
    let from = each[1].origin("relay.tables").unwrap().to_string();
    assert!(from.ends_with("postbox.toml:11"), "{from}");
}

#[test]
fn the_plain_form_is_one_database_without_a_name() {
    let config = file("database_url = \"sqlite:a.db\"\n[relay]\ntables = [\"a_outbox\"]").config();
    let one = chosen(&config, &[], Scope::One).unwrap();
    assert_eq!((one.len(), &one[0].database), (1, &None));
    assert_eq!(one[0].general.database_url.reveal(), "sqlite:a.db");
    let error = chosen(&config, &["a"], Scope::One).unwrap_err();
    assert!(
        error.contains("the configuration has no [[database]]") && error.contains("(from --database)"),
        "{error}"
    );
}

#[test]
fn a_variable_with_the_databases_name_goes_before_the_file() {
    let start = file(TWO).env("DATABASE_URL_OLD_BILLING", "mysql://app:Zq9@db-2/b\n");
    let config = start.config();
    let billing = chosen(&config, &["old-billing"], Scope::One).unwrap().remove(0);
    assert_eq!(billing.general.database_url.reveal(), "mysql://app:Zq9@db-2/b");
    assert_eq!(billing.origin("database_url").unwrap().to_string(), "DATABASE_URL_OLD_BILLING");
    assert!(config.warnings.is_empty());
    let start = file("[[database]]\nname = \"a\"\ntables = [\"a_outbox\"]");
    let error = start.error(MISSING);
    assert!(
        error.contains("the database a has no url") && error.contains("set DATABASE_URL_A, or"),
        "{error}"
    );
    let start = file("[[database]]\nname = \"a\"\n").env("DATABASE_URL_A", "postgres://pooler/a");
    let config = start.env("OUTBOX_DIRECT_URL_A", "postgres://db/a").config();
    assert_eq!(config.each()[0].general.direct_url.as_ref().unwrap().reveal(), "postgres://db/a");
    // One that was mistyped would be ignored in silence.
    let warnings = file(TWO).env("DATABASE_URL_ORDRES", "x").config().warnings;
    assert_eq!(
        warnings,
        ["the variable DATABASE_URL_ORDRES belongs to no [[database]]: orders, old-billing"]
    );
    assert!(
        Start::default().env("DATABASE_URL_OTHERS", "x").config().warnings.is_empty(),
        "none of our business"
    );
}

#[test]
fn what_contradicts_itself_is_refused() {
    let two = |names: [&str; 2]| {
        let each = names.map(|name| format!("[[database]]\nname = \"{name}\"\nurl = \"sqlite:{name}.db\"\n"));
        file(&each.concat())
    };
    let error = two(["a", "a"]).error(INVALID);
    assert!(error.contains("two databases are named a (the other from postbox.toml:1)"), "{error}");
    let error = two(["a-b", "A_b"]).error(INVALID);
    assert!(error.contains("too much alike") && error.contains("DATABASE_URL_A_B"), "{error}");
    for name in ["", "a b", "ü", "a.b"] {
        assert!(two(["x", name]).error(INVALID).contains("cannot be the name of a database"), "{name}");
    }
    assert!(file("[[database]]\nurl = \"sqlite:a.db\"").error(INVALID).contains("the database has no name"));
    // Of which database would that be?
    for (start, from) in [
        (file(&format!("database_url = \"sqlite:x.db\"\n{TWO}")), "postbox.toml:1"),
        (file(TWO).env("DATABASE_URL", "postgres://x:Zq9@db/x"), "DATABASE_URL"),
        (file(TWO).env("OUTBOX_DIRECT_URL", "postgres://x:Zq9@db/x"), "OUTBOX_DIRECT_URL"),
        (file(TWO).flags(["--database-url", "postgres://x:Zq9@db/x"]), "--database-url"),
        (file(TWO).env("OUTBOX_RELAY_TABLES", "x_outbox"), "OUTBOX_RELAY_TABLES"),
        (file(&format!("[cleaner]\ntables = [\"x\"]\n{TWO}")), "postbox.toml:2"),
    ] {
        let error = start.error(INVALID);
        assert!(
            error.contains("is given beside [[database]]") && error.contains(&format!("(from {from})")),
            "{error}"
        );
        assert!(!error.contains("Zq9"), "{error}");
    }
    let twice = "[[database]]\nname = \"a\"\nurl = \"sqlite:x.db\"\ntables = [\"t\"]\n";
    let error = file(&format!("{twice}{}", twice.replace("\"a\"", "\"b\""))).error(INVALID);
    assert!(
        error.contains("the databases b and a (from postbox.toml:1) are one, and both have the table"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_with_one_names_it() {
    let error = file("[[database]]\nname = \"a\"\nurl = \"Zq9\"").error(INVALID);
    assert!(error.contains("database a: url = \"***\" is not a URL (from postbox.toml:3)"), "{error}");
    assert!(error.contains("set its url to a URL such as"), "{error}");
    let error = file("[[database]]\nname = \"a\"\nurl = \"sqlite:a.db\"\ntables = \"t\"").error(INVALID);
    assert!(error.contains("database a: tables is a string: write it as an array"), "{error}");
    let error = file("[[database]]\nname = \"a\"\nurl = \"sqlite:a.db\"\ntabels = []").error(UNKNOWN);
    assert!(error.contains("database.tabels. Did you mean tables?"), "{error}");
    for text in ["database = 1", "[database]\nname = \"a\"", "database = [1]"] {
        assert!(file(text).error(INVALID).contains("[[database]] and then name"), "{text}");
    }
    assert!(file("[[databases]]\nname = \"a\"").error(UNKNOWN).contains("Did you mean database?"));
}

#[test]
fn which_one_is_meant_must_be_said_where_it_matters() {
    let config = file(TWO).config();
    let names =
        |configs: Vec<Config>| configs.into_iter().filter_map(|config| config.database).collect::<Vec<_>>();
    assert_eq!(names(chosen(&config, &[], Scope::Every).unwrap()), ["orders", "old-billing"]);
    assert_eq!(names(chosen(&config, &["old-billing"], Scope::Every).unwrap()), ["old-billing"]);
    let error = chosen(&config, &[], Scope::One).unwrap_err();
    assert!(
        error.contains("there are 2: orders, old-billing") && error.contains("give --database orders"),
        "{error}"
    );
    let error = chosen(&config, &["ordres"], Scope::One).unwrap_err();
    assert!(error.contains("there is no database \"ordres\". Did you mean orders?"), "{error}");
    assert!(chosen(&config, &["orders", "orders"], Scope::Every).unwrap_err().contains("named twice"));
    // Tables of the command line are those of the one that is named.
    let config = file(TWO).flags(["--table", "x_outbox"]).config();
    assert!(chosen(&config, &[], Scope::Every).unwrap_err().contains("--table is about one database"));
    let one = chosen(&config, &["orders"], Scope::Every).unwrap().remove(0);
    assert_eq!(one.relay.tables, ["x_outbox"]);
    assert_eq!(one.origin("relay.tables").unwrap().to_string(), "--table");
    let alone = file("[[database]]\nname = \"a\"\nurl = \"sqlite:a.db\"").config();
    assert_eq!(names(chosen(&alone, &[], Scope::One).unwrap()), ["a"], "there is no other");
}

#[test]
fn they_are_shown_without_their_passwords() {
    let config = file(TWO).env("OUTBOX_DIRECT_URL_ORDERS", "postgres://app:Zq9@db-1/app").config();
    let text = show_text(&config);
    assert!(!text.contains("Zq9"), "{text}");
    let line = |name: &str, key: &str| {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        text.lines().map(words).find(|words| words.len() > 2 && words[0] == name && words[1] == key).unwrap()
    };
    assert_eq!(line("orders", "url")[2], "postgres://app:***@db-1/app");
    assert_eq!(line("orders", "direct_url")[3], "OUTBOX_DIRECT_URL_ORDERS");
    assert_eq!(line("old-billing", "tables")[2], "b_outbox,c_outbox");
    assert!(
        !text.contains("sqlite:postbox.db") && !text.contains("relay.tables"),
        "no default that nobody uses: {text}"
    );
    let json = show_json(&config);
    assert!(!json.to_string().contains("Zq9"), "{json}");
    assert_eq!(json["databases"][1]["name"], "old-billing");
    assert_eq!(json["databases"][1]["tables"][1], "c_outbox");
    let one = chosen(&config, &["orders"], Scope::One).unwrap().remove(0);
    let text = show_text(&one);
    assert!(text.contains("postgres://app:***@db-1/app") && text.contains("public.a_outbox"), "{text}");
    assert_eq!(show_json(&one)["database"], "orders");
}
