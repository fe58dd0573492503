//! Looks at all tables of all databases, side by side, and finds out what has come in since the last look.

use std::time::Instant;

use futures_util::future::join_all;
use postbox_core::{
    DeadCause, DeadFilter, DeadLetters as _, Diagnose as _, Inspect as _, Layout, TableCounts, TableName,
    TableRelay,
};
use postbox_stores::any::AnyAdmin;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cli::Call;
use crate::cmd::{tables, within_patience};
use crate::database::Database;
use crate::report::{Failure, Problem};

/// What there is to look at.
pub(super) struct Tables(Vec<Watched>);

struct Watched {
    /// The name of its database, where there are several.
    database: Option<String>,
    table: TableName,
    admin: AnyAdmin,
    /// Whether one relay is to lead.
    single_active: bool,
    /// What had been written at the last look, and when that was.
    written: Option<(Instant, i64)>,
}

/// What was seen at one look.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// None before the first look has ended.
    pub(super) at: Option<OffsetDateTime>,
    pub(super) rows: Vec<Row>,
}

/// One table.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) state: Result<State, String>,
}

/// What it holds, and who works on it.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) counts: TableCounts,
    pub(super) relay: TableRelay,
    /// Whether nobody is seen to lead, whoever relays: others share the table, or it has no place for a name.
    pub(super) unled: bool,
    /// Events written per second, as far as the database tells.
    pub(super) written_per_second: Option<f64>,
    /// What events died of, where somebody wants to know.
    pub(super) causes: Vec<DeadCause>,
}

impl Tables {
    /// Nothing is connected yet.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for call in call.each() {
            let database = Database::of(&call.config)?;
            // To look at a file must not make it.
            if database.is_missing_file() {
                let message = format!("{} does not exist", database.place());
                return Err(Problem::new(postbox_core::Code::DatabaseFile, message).into());
            }
            let single_active = call.config.relay.single_active;
            for table in tables(&call.config)? {
                let admin = database.admin(&table, &call.config);
                let database = call.config.database.clone();
                all.push(Watched { database, table, admin, single_active, written: None });
            }
        }
        Ok(Self(all))
    }

    /// Looks at all of them. One that does not answer keeps nobody waiting for the others.
    pub(super) async fn look(&mut self, causes: bool) -> Seen {
        let rows = join_all(self.0.iter_mut().map(|table| table.look(causes))).await;
        Seen { at: Some(OffsetDateTime::now_utc()), rows }
    }
}

impl Watched {
    async fn look(&mut self, causes: bool) -> Row {
        let name = match &self.database {
            Some(database) => format!("{database}/{}", self.table),
            None => self.table.to_string(),
        };
        let (admin, table) = (&self.admin, &self.table);
        let asked = async {
            let (layout, counts) = (admin.layout().await?, admin.counts().await?);
            let (relay, flow) = (admin.relay().await?, admin.flow().await?);
            let causes = if causes && counts.dead > 0 {
                admin.causes(&DeadFilter::default()).await?
            } else {
                Vec::new()
            };
            Ok((layout, counts, relay, flow, causes))
        };
        let asked = async { asked.await.map_err(|error| Failure::from(Problem::about(table, &error))) };
        let (layout, counts, relay, flow, causes) = match Box::pin(within_patience(asked)).await {
            Ok(answers) => answers,
            Err(failure) => return Row { name, state: Err(failure.first().0) },
        };
        let now = flow.written.map(|written| (Instant::now(), written));
        let before = std::mem::replace(&mut self.written, now);
        let written_per_second = before.zip(now).map(|((then, before), (now, written))| {
            #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
            let events = (written - before).max(0) as f64;
            events / now.duration_since(then).as_secs_f64().max(0.001)
        });
        let unled = !self.single_active || layout == Layout::Bare;
        Row { name, state: Ok(State { counts, relay, unled, written_per_second, causes }) }
    }
}

impl Seen {
    /// Whether there was nothing to see at all.
    pub(super) fn all_failed(&self) -> bool {
        self.rows.iter().all(|row| row.state.is_err())
    }

    /// One line for another program.
    pub(super) fn to_json(&self) -> Value {
        let at = self.at.and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok());
        let rows = self.rows.iter().map(|row| match &row.state {
            Ok(state) => json!({
                "table": row.name, "counts": state.counts, "relay": state.relay,
                "written_per_second": state.written_per_second, "dead_causes": state.causes,
            }),
            Err(error) => json!({ "table": row.name, "error": error }),
        });
        json!({ "at": at, "tables": rows.collect::<Vec<_>>() })
    }
}
