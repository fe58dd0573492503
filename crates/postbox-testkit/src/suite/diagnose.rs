//! What is promised to a doctor: findings in words that scripts know, and never an error.

use std::time::Duration;

use postbox_core::{Diagnose, Examination, Finding, Level, TableName};

use super::{Subject, enqueue, events};

const EXAMINATION: Examination = Examination { long_transaction: Duration::from_mins(1), connections: 4 };

fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|finding| finding.check == check).collect()
}

/// Nothing is wrong, and what was looked at is named.
pub async fn a_table_that_is_well_is_found_well<S: Subject>(subject: &S) {
    enqueue(subject, events(3)).await;
    let findings = subject.admin().diagnose(EXAMINATION).await;
    let full = subject.features().full;
    let checks: &[&str] =
        if full { &["server", "table", "layout", "schema", "transactions"] } else { &["server", "table"] };
    for check in checks {
        assert!(!of(&findings, check).is_empty(), "no {check} in {findings:#?}");
    }
    for finding in &findings {
        assert!(finding.level < Level::Wrong, "{finding:?}");
        assert_eq!(finding.fix.is_some(), finding.level != Level::Good, "{finding:?}");
        assert_eq!(finding.code.is_some(), finding.level != Level::Good, "{finding:?}");
        assert!(!finding.what.is_empty() && !finding.what.contains('\n'), "{finding:?}");
    }
    assert!(of(&findings, "server").iter().chain(&of(&findings, "table")).all(|f| f.level == Level::Good));
    let bare = of(&findings, "layout").iter().any(|finding| finding.level == Level::Doubtful);
    assert_eq!(bare, !full, "{findings:#?}");
}

/// Two looks tell whether delivery goes on: what is due is named by its sequence, what is scheduled is not due, and what was
/// published is not either.
pub async fn two_looks_tell_how_far_delivery_has_come<S: Subject>(subject: &S) {
    let admin = subject.admin();
    assert_eq!(admin.flow().await.expect("a look").first_due, None);
    enqueue(subject, events(2)).await;
    let first = admin.flow().await.expect("a look");
    assert!(first.first_due.is_some(), "{first:?}");
    assert!(first.due_for < Duration::from_mins(1), "{first:?}");
    let again = admin.flow().await.expect("a look");
    assert_eq!((first.first_due, first.written), (again.first_due, again.written));
    // Several: where an event may draw two numbers, one alone need not show.
    enqueue(subject, events(4)).await;
    let more = admin.flow().await.expect("a look");
    assert_eq!(more.first_due, first.first_due);
    assert!(more.written > first.written || more.written.is_none(), "{more:?} after {first:?}");
}

/// With a name that is nearly right, and what to do.
pub async fn a_table_that_is_missing_is_a_finding<S: Subject>(subject: &S) {
    let there = subject.table();
    let name = there.to_string().replace("org", "ogr");
    let missing: TableName = name.parse().expect("a name");
    let findings = subject.admin_of(missing).diagnose(EXAMINATION).await;
    let table = of(&findings, "table");
    assert_eq!((table.len(), table[0].level), (1, Level::Wrong), "{findings:#?}");
    assert!(table[0].what.contains(&format!("Did you mean {there}?")), "{findings:#?}");
    let fix = table[0].fix.as_deref().unwrap_or_default();
    assert!(fix.contains(&format!("postbox migrate up --table {name}")), "{findings:#?}");
    assert!(of(&findings, "layout").is_empty() && of(&findings, "schema").is_empty(), "{findings:#?}");
}
