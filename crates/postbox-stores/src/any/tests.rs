use super::{AnyDatabase, Dialect};

#[test]
fn only_this_machine_is_local() {
    let local = |url: &str| AnyDatabase::from_url(url).unwrap().is_local();
    for url in [
        "postgres://127.0.0.1/a",
        "postgres://localhost/a",
        "postgres://[::1]/a",
        "postgres:///a?host=/run/pg",
        "sqlite:a.db",
        "mysql://localhost/a",
        "mariadb://me@127.0.0.1:3307/a",
        "mysql://db-1/a?socket=/run/mysqld/mysqld.sock",
    ] {
        assert!(local(url), "{url}");
    }
    for url in [
        "postgres://db-1/a",
        "postgres://10.0.0.1/a",
        "postgres://localhost.example.org/a",
        "postgres://a@[fe80::1]/a",
        "mysql://db-1/a",
    ] {
        assert!(!local(url), "{url}");
    }
}

#[test]
fn a_url_chooses_the_database() {
    let file = AnyDatabase::from_url("sqlite:some/app.db").unwrap();
    assert_eq!((file.dialect(), file.place().as_str()), (Dialect::Sqlite, "some/app.db"));
    assert_eq!(file.name(), "app.db");
    assert!(file.is_missing_file());
    let hidden = AnyDatabase::from_url("sqlite:/dev/null/app.db").unwrap();
    assert!(!hidden.is_missing_file(), "nobody can say");
    let server = AnyDatabase::from_url("postgresql://me@db-1/app").unwrap();
    assert_eq!((server.dialect(), server.place().as_str()), (Dialect::Postgres, "db-1/app"));
    assert!(file.direct("postgres://db/a").unwrap_err().to_string().contains("leave it out"));
    let other = AnyDatabase::from_url("mariadb://me@db-2/app").unwrap();
    assert_eq!((other.dialect(), other.place().as_str()), (Dialect::MySql, "db-2/app"));
    assert!(other.direct("mysql://db/a").unwrap_err().to_string().contains("leave it out"));
    for url in ["oracle://a:secret@b/c", "a.db", ""] {
        let error = AnyDatabase::from_url(url).unwrap_err().to_string();
        assert!(error.starts_with("OUTBOX_DB_URL") && error.contains("sqlite:"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
