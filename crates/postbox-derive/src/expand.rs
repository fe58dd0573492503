//! The implementation that `#[derive(Event)]` writes.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Data, DeriveInput, Error, Field, Fields, Index, LitStr, Member};

use crate::attributes::{Attributes, also, at, at_derive};
use crate::{topic, variants};

/// The topic of a struct whose own one is wrong, for the code that would otherwise be told that it is no event.
const STAND_IN: &str = "topic.that.is-wrong.v1";

pub(crate) fn event(input: &DeriveInput) -> TokenStream {
    if let Data::Enum(data) = &input.data {
        return variants::events(input, data);
    }
    let (attributes, mut errors) = Attributes::read(&input.attrs);
    let fields = match fields(&input.data, &input.ident) {
        Ok(fields) => Some(fields),
        Err(error) => {
            also(&mut errors, error);
            None
        }
    };
    let topic = topic(&attributes, errors.is_some()).unwrap_or_else(|error| {
        also(&mut errors, error);
        STAND_IN.to_owned()
    });
    let aggregate = match fields.map(|fields| aggregate(&attributes, &input.ident, fields)) {
        Some(Ok(aggregate)) => aggregate,
        Some(Err(error)) => {
            also(&mut errors, error);
            None
        }
        None => None,
    };

    let (name, krate) = (&input.ident, &attributes.krate);
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let errors = errors.map(|errors| errors.to_compile_error());
    quote! {
        #errors
        #[automatically_derived]
        impl #generics #krate::Event for #name #arguments #bounds {
            const TOPIC: #krate::Topic = #krate::Topic::from_static(#topic);
            #aggregate
        }
    }
}

fn fields<'a>(data: &'a Data, name: &Ident) -> Result<&'a Fields, Error> {
    match data {
        Data::Struct(data) => Ok(&data.fields),
        Data::Enum(_) | Data::Union(_) => {
            let message =
                format!("an event must be a struct, or an enum of such structs, and `{name}` is neither");
            Err(Error::new(name.span(), message))
        }
    }
}

/// The topic, checked. Whether it is missing is only said when nothing else is wrong, which may be why.
fn topic(attributes: &Attributes, silent: bool) -> Result<String, Error> {
    match &attributes.topic {
        Some(text) => match topic::problem(&text.value()) {
            None => Ok(text.value()),
            Some(problem) => Err(at(text, problem)),
        },
        None if silent => Ok(STAND_IN.to_owned()),
        None => Err(at_derive(
            "an event needs a topic: add #[event(topic = \"<module>.<aggregate>.<event>.v1\")] to the struct",
        )),
    }
}

/// The method that names the aggregate, for a struct that has one.
fn aggregate(attributes: &Attributes, name: &Ident, fields: &Fields) -> Result<Option<TokenStream>, Error> {
    let (kind, id) = match (&attributes.aggregate, &attributes.id) {
        (Some(kind), Some(id)) => (kind, id),
        (None, None) => return Ok(None),
        (Some(kind), None) => {
            return Err(at(
                kind,
                "`aggregate` needs `id` beside it: the name of the field that holds its id",
            ));
        }
        (None, Some(id)) => {
            return Err(at(id, "`id` needs `aggregate` beside it: the kind of thing that the id is of"));
        }
    };
    if kind.value().is_empty() || kind.value().chars().any(char::is_control) {
        return Err(at(kind, "`aggregate` must be a name, such as \"organization\""));
    }
    let field = find(id, name, fields)?;
    let krate = &attributes.krate;
    // At the place of the text, so that a field without `Display` is reported there.
    let value = quote_spanned!(id.span() => &self.#field);
    Ok(Some(quote! {
        fn aggregate(&self) -> ::core::option::Option<#krate::AggregateKey> {
            ::core::option::Option::Some(#krate::AggregateKey::new(#kind, #value))
        }
    }))
}

/// The field that `id` names.
fn find(id: &LitStr, name: &Ident, fields: &Fields) -> Result<Member, Error> {
    let wanted = id.value();
    for (index, field) in fields.iter().enumerate() {
        match &field.ident {
            Some(ident) if ident.unraw() == wanted => {
                let mut ident = ident.clone();
                ident.set_span(id.span());
                return Ok(Member::Named(ident));
            }
            None if index.to_string() == wanted => {
                return Ok(Member::Unnamed(Index { span: id.span(), ..Index::from(index) }));
            }
            Some(_) | None => {}
        }
    }
    let label = |(index, field): (usize, &Field)| match &field.ident {
        Some(ident) => format!("`{}`", ident.unraw()),
        None => format!("`{index}`"),
    };
    let known: Vec<String> = fields.iter().enumerate().map(label).collect();
    let known =
        if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
    Err(at(id, format!("`{name}` has no field `{wanted}`: {known}")))
}
