//! Values of TOML as settings and options take them.

use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use crate::config::kind::Shape;

/// A TOML value as an option of a sink. Dates and the like are none.
pub(super) fn option(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::from(text.as_ref())),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(Value::from)
        }
        DeValue::Float(float) => float.as_str().parse::<f64>().ok().map(Value::from),
        DeValue::Boolean(switch) => Some(Value::from(*switch)),
        DeValue::Array(array) => array.iter().map(|item| option(item.get_ref())).collect(),
        DeValue::Table(table) => {
            let entries = table
                .iter()
                .map(|(name, value)| Some((name.get_ref().to_string(), option(value.get_ref())?)));
            entries.collect::<Option<_>>().map(Value::Object)
        }
        DeValue::Datetime(_) => None,
    }
}

/// A TOML value as items, if it is written in the setting's shape.
pub(super) fn items(shape: Shape, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match (shape, value) {
        (Shape::Text | Shape::Duration | Shape::Size, DeValue::String(text)) => {
            Ok(vec![text.trim().to_owned()])
        }
        (Shape::Number | Shape::Duration | Shape::Size, DeValue::Integer(integer)) => {
            let decimal = i128::from_str_radix(integer.as_str(), integer.radix());
            Ok(vec![decimal.map_or_else(|_| integer.as_str().to_owned(), |number| number.to_string())])
        }
        (Shape::Switch, DeValue::Boolean(value)) => Ok(vec![value.to_string()]),
        (Shape::List, DeValue::Array(array)) => array.iter().map(Spanned::get_ref).map(item).collect(),
        (Shape::Number, DeValue::String(_)) => Err("is a string: write the number without quotes".to_owned()),
        (Shape::Switch, DeValue::String(_)) => {
            Err("is a string: write true or false without quotes".to_owned())
        }
        (Shape::List, DeValue::String(_)) => Err("is a string: write it as an array, [\"…\"]".to_owned()),
        (_, value) => Err(format!("has the wrong type, {}", value.type_str())),
    }
}

fn item(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.trim().to_owned()),
        _ => Err(format!("has an item of the wrong type, {}", value.type_str())),
    }
}
