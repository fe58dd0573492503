//! What is in `deploy/`: alerts fire, queries name metrics that there are, and units and manifests fit the program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postbox_core::telemetry::METRICS;
use postbox_testkit::skipped;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const RULES: &str = "deploy/prometheus/postbox.rules.yml";
const TESTS: &str = "deploy/prometheus/postbox.test.yml";

/// The names of metrics in a query, as far as they are ours.
fn metrics(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("outbox_")).map(str::to_owned).collect()
}

/// Every series that is exported.
fn exported() -> BTreeSet<String> {
    let series = METRICS.iter().flat_map(|metric| {
        let ends: &[&str] = if metric.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        ends.iter().map(move |end| format!("outbox_{}{end}", metric.name))
    });
    series.collect()
}

/// The alerts, and where each one's runbook is.
fn alerts() -> Vec<(String, String)> {
    let text = read(RULES);
    let parts = text.split("- alert: ").skip(1);
    parts
        .map(|part| {
            let name = part.lines().next().unwrap().trim().to_owned();
            let url = part.split("runbook_url: \"").nth(1).unwrap_or_else(|| panic!("{name} has no runbook"));
            (name, url.split('"').next().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn every_query_names_a_metric_that_is_exported() {
    let exported = exported();
    let rules = read(RULES);
    let mut asked = metrics(&rules);
    assert!(asked.len() >= 9, "{asked:?}");
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/postbox.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut queries = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty() && panel["description"].is_string(), "{panel:#}");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let names = metrics(query);
            assert!(!names.is_empty(), "no metric of ours: {query}");
            asked.extend(names);
            queries += 1;
        }
    }
    assert!(queries >= 20, "{queries}");
    asked.extend(metrics(&dashboard["templating"].to_string()));
    asked.extend(metrics(&dashboard["annotations"].to_string()));
    let unknown: Vec<&String> = asked.difference(&exported).collect();
    assert!(unknown.is_empty(), "nobody exports {unknown:?}");
    // And the other way round: the dashboard shows all that there is.
    for metric in METRICS {
        let name = format!("outbox_{}", metric.name);
        assert!(asked.iter().any(|asked| asked.starts_with(&name)), "nobody looks at {name}");
    }
}

#[test]
fn the_page_on_monitoring_names_metrics_and_alerts_that_there_are() {
    let page = read("docs/book/monitoring.md");
    let rules: BTreeSet<String> = alerts().into_iter().map(|(name, _)| name).collect();
    let words = page.split(|c: char| !c.is_ascii_alphanumeric());
    let named: BTreeSet<String> =
        words.filter(|word| word.starts_with("Outbox") && *word != "Outbox").map(str::to_owned).collect();
    assert_eq!(named, rules);
    // In the last table, our names are on the right.
    let (_, mapping) = page.split_once("| names that other outbox libraries use | here |").unwrap();
    let known: BTreeSet<String> = METRICS.iter().map(|metric| format!("outbox_{}", metric.name)).collect();
    let mut mapped = BTreeSet::new();
    for line in mapping.lines().filter(|line| line.starts_with("| `")) {
        let (there, here) = line.trim_matches('|').split_once(" | ").unwrap();
        let ours = if here.trim() == "the same" { metrics(there) } else { metrics(here) };
        assert!(!ours.is_empty(), "{line}");
        assert!(ours.is_subset(&known), "{line}");
        mapped.extend(ours);
    }
    assert!(mapped.len() >= 12, "{mapped:?}");
}

#[test]
fn every_alert_leads_to_a_section_that_there_is() {
    let page = read("docs/book/runbooks.md");
    let anchors: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_lowercase().replace(' ', "-"))
        .collect();
    for (name, url) in alerts() {
        let (place, anchor) = url.split_once('#').unwrap_or_else(|| panic!("{name}: {url}"));
        assert_eq!(place, "https://postbox.example/runbooks.html", "{name}");
        assert!(anchors.contains(anchor), "{name}: no section {anchor} in {anchors:?}");
        assert!(
            page.contains(&format!("`{name}`")) || name == "OutboxHotPathFull",
            "{name} is in no runbook"
        );
    }
}

#[test]
fn every_alert_fires_and_stays_quiet() {
    let tests = read(TESTS);
    for (name, _) in alerts() {
        let asked: Vec<&str> =
            tests.split("- name: ").filter(|test| test.contains(&format!("alertname: {name}\n"))).collect();
        assert!(asked.iter().any(|test| test.contains("exp_labels:")), "{name} is not seen to fire");
        assert!(asked.iter().any(|test| test.contains("exp_alerts: []")), "{name} is not seen to be quiet");
    }
    for args in [["check", "rules", "postbox.rules.yml"], ["test", "rules", "postbox.test.yml"]] {
        let mut command = Command::new("promtool");
        let done = match command.args(args).current_dir(root().join("deploy/prometheus")).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return skipped("this machine has no promtool");
            }
            done => done.unwrap(),
        };
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "promtool {args:?}: {said}");
    }
}

/// The seconds behind a name.
fn seconds_behind(text: &str, name: &str) -> u64 {
    let value = text.split(name).nth(1).unwrap_or_else(|| panic!("no {name}"));
    let digits: String =
        value.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn whoever_ends_a_relay_waits_for_its_drain() {
    // The program's own default, as `config show` has it.
    let shown =
        Command::new(env!("CARGO_BIN_EXE_postbox")).args(["config", "show"]).env_clear().output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let default = seconds_behind(&shown, "drain_timeout");
    assert!(seconds_behind(&read("deploy/systemd/postbox-relay.service"), "TimeoutStopSec=") >= 2 * default);
    let manifest = read("deploy/kubernetes/postbox.yaml");
    let drain = seconds_behind(&manifest, "drain_timeout =");
    assert!(seconds_behind(&manifest, "terminationGracePeriodSeconds:") >= 2 * drain);
}

/// What the manifest gives the program, the program takes.
#[test]
fn the_configuration_of_the_manifest_can_be_used() {
    let manifest = read("deploy/kubernetes/postbox.yaml");
    let (_, config) = manifest.split_once("postbox.toml: |\n").unwrap();
    let lines = config.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let config: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let config = config.join("\n");
    // A build without Kafka knows no such sink; what else there is must be right.
    let config = config.replace("kafka://kafka:9092", "null:");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("postbox.toml"), &config).unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_postbox"))
        .args(["config", "check"])
        .current_dir(folder.path())
        .env_clear()
        .envs([
            ("OUTBOX_LISTEN", "0.0.0.0:9187"),
            ("DATABASE_URL", "postgres://db/shop"),
            ("OUTBOX_DIRECT_URL", ""),
        ])
        .output()
        .unwrap();
    assert!(done.status.success(), "{config}\n{}", String::from_utf8_lossy(&done.stderr));
    for needed in
        ["replicas: 2", "/healthz", "/readyz", "PodDisruptionBudget", "runAsNonRoot: true", "secretKeyRef"]
    {
        assert!(manifest.contains(needed), "no {needed}");
    }
}

/// No image can be built where there is no registry; what it refers to must be there.
#[test]
fn the_image_is_built_of_what_there_is_and_has_no_rights() {
    let image = read("deploy/docker/Dockerfile");
    let manifest = read("Cargo.toml");
    let version = manifest.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(image.contains(&format!("FROM rust:{version}-")), "another Rust than {version}");
    let last = image.rsplit_once("\nFROM ").unwrap().1;
    assert!(last.contains("\nUSER 65532:65532\n") && !image.contains("\nUSER root"), "{last}");
    assert!(read("deploy/kubernetes/postbox.yaml").contains("runAsUser: 65532"));
    // The build sees every member of the workspace, or cargo refuses.
    let ignored = read("deploy/docker/Dockerfile.dockerignore");
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let folder = member.split('/').next().unwrap();
        assert!(ignored.contains(&format!("!{folder}\n")), "{member} is not sent to the build");
    }
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let mut command = Command::new("systemd-analyze");
    let unit = root().join("deploy/systemd/postbox-relay.service");
    let done = match command.args(["verify", "--man=no"]).arg(&unit).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return skipped("this machine has no systemd-analyze");
        }
        done => done.unwrap(),
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    // The program itself is not installed where the unit has it.
    let ours = said
        .lines()
        .filter(|line| line.contains("postbox-relay.service") && !line.contains("is not executable"));
    let ours: Vec<&str> = ours.collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// The services of the compose file, each with its lines. Nothing here reads YAML: what the file has is plain enough.
fn services(compose: &str) -> Vec<(String, String)> {
    let (_, rest) = compose.split_once("\nservices:\n").unwrap();
    let (services, _) = rest.split_once("\nvolumes:").unwrap();
    let mut found: Vec<(String, String)> = Vec::new();
    for line in services.lines().filter(|line| !line.trim_start().starts_with('#')) {
        match line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) {
            Some(name) if !name.is_empty() => {
                let name = name.strip_suffix(':').unwrap_or_else(|| panic!("no service: {line:?}"));
                found.push((name.to_owned(), String::new()));
            }
            _ => found.last_mut().unwrap().1.extend([line, "\n"]),
        }
    }
    found
}

/// What stands in quotes behind a name, on its line.
fn quoted(service: &str, name: &str) -> Vec<String> {
    let line = service.lines().find_map(|line| line.trim().strip_prefix(name));
    line.into_iter().flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Whoever follows the book with these servers finds them where its pages look for them.
#[test]
fn the_compose_file_has_what_the_book_uses() {
    let compose = read("deploy/compose.yaml");
    assert!(!compose.contains('\t'), "no YAML");
    let services = services(&compose);
    let names: Vec<&str> = services.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["postgres", "nats", "rabbitmq", "redis", "kafka", "pulsar"]);
    let volumes = compose.lines().find(|line| line.starts_with("volumes: {")).unwrap();
    for (name, service) in &services {
        let count = |wanted: &str| service.lines().filter(|line| line.starts_with(wanted)).count();
        assert_eq!(count(&format!("    profiles: [{name}]")), 1, "{name}: {service}");
        assert_eq!(count("    image: "), 1, "{name}: {service}");
        assert_eq!(count("    ports: ["), 1, "{name}: {service}");
        for port in quoted(service, "ports: [") {
            // The passwords are for a desk: nobody else may reach it. Inside and outside, a port is the same.
            let numbers = port.strip_prefix("127.0.0.1:").unwrap_or_else(|| panic!("{name}: {port}"));
            let (outside, inside) = numbers.split_once(':').unwrap();
            assert_eq!(outside.parse::<u16>().unwrap(), inside.parse::<u16>().unwrap(), "{name}");
        }
        for volume in quoted(service, "volumes: [") {
            let (volume, path) = volume.split_once(':').unwrap();
            assert!(path.starts_with('/') && volumes.contains(&format!(" {volume}: ")), "{name}: {volume}");
        }
    }
    let has = |name: &str, part: &str| services.iter().any(|it| it.0 == name && it.1.contains(part));
    // A client goes where the broker says that it is.
    assert!(has("kafka", "KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://localhost:9092\n"));
    let mut looked = BTreeSet::new();
    for (scheme, name, port) in [
        ("postgres", "postgres", "5432"),
        ("nats", "nats", "4222"),
        ("amqp", "rabbitmq", "5672"),
        ("redis", "redis", "6379"),
        ("kafka", "kafka", "9092"),
        ("pulsar", "pulsar", "6650"),
    ] {
        let listens = |port: &str| has(name, &format!("\"127.0.0.1:{port}:{port}\""));
        assert!(listens(port), "{name} is not at its usual port");
        for page in
            ["sinks/kafka", "sinks/nats", "sinks/pulsar", "sinks/rabbitmq", "sinks/redis", "exactly-once"]
        {
            for rest in read(&format!("docs/book/{page}.md")).split(&format!("{scheme}://")).skip(1) {
                let place = rest.split(['/', '\'', '"', '`', ' ', '?', '\n']).next().unwrap();
                let (login, place) = place.rsplit_once('@').unwrap_or(("", place));
                let Some(given) = place.strip_prefix("localhost") else { continue };
                let given = given.strip_prefix(':').unwrap_or(port);
                assert!(listens(given), "{page}: {scheme}://{place}");
                if let Some((user, password)) = login.split_once(':') {
                    let known = format!("_USER: {user}, RABBITMQ_DEFAULT_PASS: {password} ");
                    assert!(has(name, &known), "{page}: {login}");
                }
                looked.insert(name);
            }
        }
    }
    assert_eq!(looked.len(), 5, "{looked:?}");
    for text in [read("docs/book/sinks.md"), compose] {
        let command =
            text.lines().find(|line| line.contains("docker compose -f deploy/compose.yaml")).unwrap();
        let profiles: Vec<&str> =
            command.split("--profile ").skip(1).map(|rest| rest.split(' ').next().unwrap()).collect();
        assert!(!profiles.is_empty() && profiles.iter().all(|profile| names.contains(profile)), "{command}");
    }
}
