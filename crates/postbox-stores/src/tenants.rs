//! What relays that claim tenants apart can be told, whatever the database.

use postbox_core::{Code, Order, StoreError, StoreErrorKind, TableName};

use crate::builder::Settings;

/// Refuses what such a relay cannot do on this table. `indexed` tells whether it has the index by tenant.
pub(crate) fn check(settings: &Settings, table: &TableName, indexed: bool) -> Result<(), StoreError> {
    let Settings { tenants, .. } = settings;
    let setting = if tenants.fair { "fair_tenants" } else { "tenants" };
    let (code, why) = if settings.order != Order::None {
        let why = format!("{setting} and ordering = \"aggregate\" do not go together: leave one of them out");
        (Code::ConfigInvalid, why)
    } else if !tenants.only.is_empty() && settings.single_active {
        let why =
            "tenants needs single_active = false: the active relay would keep those of other tenants out";
        (Code::ConfigInvalid, why.to_owned())
    } else if !indexed {
        let why = format!(
            "{setting} needs an index by tenant, which {table} does not have: `postbox migrate up --fair-tenants --table {table}` \
             adds it"
        );
        (Code::TenantsUnsupported, why)
    } else {
        return Ok(());
    };
    Err(StoreError::new(code, StoreErrorKind::Refused, why))
}
