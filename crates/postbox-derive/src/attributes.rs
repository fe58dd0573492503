//! What `#[event(…)]` says.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, ExprLit, Lit, LitStr, Path, parse_quote};

const KEYS: &str = "the known ones are `topic`, `aggregate`, `id` and `crate`";

/// The values of all `#[event(…)]` attributes of a struct.
pub(crate) struct Attributes {
    pub(crate) topic: Option<LitStr>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) id: Option<LitStr>,
    /// The path to Postbox.
    pub(crate) krate: Path,
}

impl Attributes {
    /// Reads as much as can be understood; the error, if any, is about the rest.
    pub(crate) fn read(attributes: &[Attribute]) -> (Self, Option<Error>) {
        let mut read = Self { topic: None, aggregate: None, id: None, krate: parse_quote!(::postbox) };
        let (mut krate, mut errors) = (None, None);
        for attribute in attributes.iter().filter(|a| a.path().is_ident("event")) {
            let parsed = attribute.parse_nested_meta(|meta| {
                let key = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                let slot = match key.as_str() {
                    "topic" => &mut read.topic,
                    "aggregate" => &mut read.aggregate,
                    "id" => &mut read.id,
                    "crate" => &mut krate,
                    _ => return Err(meta.error(format!("`{key}` is not a key of `event`; {KEYS}"))),
                };
                fill(slot, &key, &meta)
            });
            if let Err(error) = parsed {
                also(&mut errors, error);
            }
        }
        if let Some(text) = krate {
            match text.parse() {
                Ok(path) => read.krate = path,
                Err(_) => also(&mut errors, at(&text, "`crate` must be a path, such as \"postbox_core\"")),
            }
        }
        (read, errors)
    }
}

/// Puts the text of `key = "text"` into its place.
fn fill(slot: &mut Option<LitStr>, key: &str, meta: &ParseNestedMeta<'_>) -> Result<(), Error> {
    let Ok(value) = meta.value() else {
        return Err(meta.error(format!("`{key}` needs a value: {key} = \"…\"")));
    };
    match value.parse()? {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => match slot.replace(text) {
            None => Ok(()),
            Some(_) => Err(meta.error(format!("`{key}` is given twice"))),
        },
        other => Err(Error::new_spanned(other, format!("`{key}` must be a text in quotes: {key} = \"…\""))),
    }
}

/// Adds an error to those before it.
pub(crate) fn also(errors: &mut Option<Error>, error: Error) {
    match errors {
        Some(errors) => errors.combine(error),
        None => *errors = Some(error),
    }
}

/// An error that points at a text.
pub(crate) fn at(text: &LitStr, message: impl std::fmt::Display) -> Error {
    Error::new(text.span(), message)
}

/// An error that points at the derive.
pub(crate) fn at_derive(message: impl std::fmt::Display) -> Error {
    Error::new(Span::call_site(), message)
}
