//! Transactions of deadpool-postgres: those of tokio-postgres on connections that remember prepared statements.

use deadpool_postgres::Transaction;
use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sqlx::Postgres;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::tokio_postgres::{TokioPostgres, event, sql, trouble};
use super::{Columns, EventRow, Session, Statement};
use crate::postgres::{inbox, tx};

impl Session<Postgres> for &Transaction<'_> {
    type Error = Error;

    async fn events(
        &mut self,
        statement: Statement<'_, Postgres>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, Error> {
        rows(self, &statement).await?.iter().map(|row| event(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, Postgres>) -> Result<i64, Error> {
        Session::sequence(&mut &***self, statement).await
    }

    async fn texts(&mut self, statement: Statement<'_, Postgres>) -> Result<Vec<String>, Error> {
        rows(self, &statement).await?.iter().map(|row| row.try_get(0)).collect()
    }
}

/// By a statement that the connection has prepared, unless it must not.
async fn rows(tx: &Transaction<'_>, statement: &Statement<'_, Postgres>) -> Result<Vec<Row>, Error> {
    let (values, types): (Vec<&(dyn ToSql + Sync)>, Vec<Type>) = statement.values.iter().map(sql).unzip();
    if !statement.prepared {
        let both: Vec<_> = values.into_iter().zip(types).collect();
        return tx.query_typed(&statement.sql, &both).await;
    }
    let prepared = tx.prepare_typed_cached(&statement.sql, &types).await?;
    tx.query(&prepared, &values).await
}

super::by_reference!(TokioPostgres, Transaction<'_>, Error, tx::insert, inbox::record, trouble);
