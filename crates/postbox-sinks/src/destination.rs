//! [`Destination`]: where at a broker an event goes.

use std::borrow::Cow;

use postbox_core::{Delivery, DispatchError, Template};

use crate::address::Address;
use crate::options::Reader;

/// The subject, topic, stream or queue of each event: what its route says, else the sink's own template, which is `{topic}`
/// unless the URL's path or the option `destination` says otherwise.
#[derive(Debug, Clone, Default)]
pub struct Destination(Template);

impl Destination {
    /// From the option `destination`, or the URL's path.
    pub fn from_options(address: &Address, options: &mut Reader) -> Self {
        let option = options.template("destination");
        let path = address.path.as_str();
        match (path, option) {
            ("", option) => Self(option.unwrap_or_default()),
            (_, Some(option)) => {
                options.problem("destination", "is given, and a path in the URL too", "keep one of the two");
                Self(option)
            }
            (path, None) => match path.parse::<Template>() {
                Ok(template) => Self(template),
                Err(error) => {
                    options.problem(
                        "destination",
                        &format!("(the URL's path) {}", error.problem()),
                        "correct it",
                    );
                    Self::default()
                }
            },
        }
    }

    /// Where this event goes.
    ///
    /// # Errors
    /// A reject, when the event lacks a value that the template needs.
    pub fn of<'a>(&'a self, delivery: &'a Delivery) -> Result<Cow<'a, str>, DispatchError> {
        match &delivery.destination {
            Some(destination) => Ok(Cow::Borrowed(destination)),
            None => self.0.render(&delivery.meta).map_err(DispatchError::reject),
        }
    }
}

impl From<Template> for Destination {
    fn from(template: Template) -> Self {
        Self(template)
    }
}
