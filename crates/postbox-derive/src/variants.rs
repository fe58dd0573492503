//! The implementations that `#[derive(Event)]` writes for an enum of events.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{DataEnum, DeriveInput, Error, Fields, Ident, Type, Variant};

use crate::attributes::{Attributes, also, at};

pub(crate) fn events(input: &DeriveInput, data: &DataEnum) -> TokenStream {
    let (attributes, mut errors) = Attributes::read(&input.attrs);
    let own = [("topic", &attributes.topic), ("aggregate", &attributes.aggregate), ("id", &attributes.id)];
    for (key, text) in own.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?))) {
        let message = format!(
            "an enum has no `{key}` of its own: each variant holds a struct that derives `Event` and says it there"
        );
        also(&mut errors, at(text, message));
    }
    if !input.generics.params.is_empty() {
        also(&mut errors, Error::new(input.generics.span(), "an enum of events cannot be generic"));
    }
    if data.variants.is_empty() {
        also(&mut errors, Error::new(input.ident.span(), "an enum of events needs a variant that holds one"));
    }
    let mut variants = Vec::new();
    for variant in &data.variants {
        match held(variant) {
            Ok(event) => variants.push((&variant.ident, event)),
            Err(error) => also(&mut errors, error),
        }
    }
    let (name, krate) = (&input.ident, &attributes.krate);
    let Some(errors) = errors else { return implementations(name, krate, &variants) };
    let errors = errors.to_compile_error();
    if !input.generics.params.is_empty() {
        return errors;
    }
    // Whoever uses it is not told in addition that it is no event.
    quote! {
        #errors
        #[automatically_derived]
        impl #krate::IntoRecord for #name {
            fn into_builder(self) -> #krate::RecordBuilder {
                ::core::unreachable!()
            }
        }
        #[automatically_derived]
        impl #krate::Receive for #name {
            const TOPICS: &'static [#krate::Topic] = &[];
            fn receive(topic: &#krate::Topic, _: &#krate::Json) -> ::core::result::Result<Self, #krate::ReceiveError> {
                ::core::result::Result::Err(#krate::ReceiveError::topic(topic))
            }
        }
    }
}

fn implementations(name: &Ident, krate: &syn::Path, variants: &[(&Ident, &Type)]) -> TokenStream {
    // At the place of the type, so that one that is no event is reported there.
    let topics: Vec<TokenStream> = variants
        .iter()
        .map(|(_, event)| quote_spanned!(event.span() => <#event as #krate::Event>::TOPIC))
        .collect();
    let into = variants.iter().map(|(variant, event)| {
        quote_spanned!(event.span() => Self::#variant(event) => #krate::Record::of::<#event>(&event),)
    });
    let receive = variants.iter().zip(&topics).map(|((variant, event), own)| {
        quote_spanned! { event.span() =>
            if *topic == #own {
                return <#event as #krate::Receive>::receive(topic, payload).map(Self::#variant);
            }
        }
    });
    let distinct = quote_spanned! { name.span() =>
        const _: () = #krate::Topic::all_different(<#name as #krate::Receive>::TOPICS);
    };
    quote! {
        #[automatically_derived]
        impl #krate::IntoRecord for #name {
            fn into_builder(self) -> #krate::RecordBuilder {
                match self { #(#into)* }
            }
        }
        #[automatically_derived]
        impl #krate::Receive for #name {
            const TOPICS: &'static [#krate::Topic] = &[#(#topics),*];

            fn receive(
                topic: &#krate::Topic,
                payload: &#krate::Json,
            ) -> ::core::result::Result<Self, #krate::ReceiveError> {
                #(#receive)*
                ::core::result::Result::Err(#krate::ReceiveError::topic(topic))
            }
        }
        #distinct
    }
}

/// The type of the event that a variant holds.
fn held(variant: &Variant) -> Result<&Type, Error> {
    let name = &variant.ident;
    if let Some(attribute) = variant.attrs.iter().find(|attribute| attribute.path().is_ident("event")) {
        let message =
            format!("`{name}` takes no `event` attribute: put it on the struct that the variant holds");
        return Err(Error::new(attribute.span(), message));
    }
    match &variant.fields {
        Fields::Unnamed(fields) if fields.unnamed.len() == 1 => Ok(&fields.unnamed[0].ty),
        Fields::Unit | Fields::Unnamed(_) | Fields::Named(_) => {
            let message = format!(
                "`{name}` must hold one event: make a struct that derives `Event`, with a topic of its own, and write \
                 `{name}(TheStruct)`"
            );
            Err(Error::new(name.span(), message))
        }
    }
}
