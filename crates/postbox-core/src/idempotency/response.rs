//! [`StoredResponse`]: the answer that repeats get.

/// The answer to a call, as far as it is kept.
///
/// ```
/// use postbox_core::idempotency::StoredResponse;
///
/// let response = StoredResponse::new(201).header("location", "/orders/7").body("done");
/// assert_eq!((response.status, response.body.as_deref()), (201, Some(&b"done"[..])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredResponse {
    /// The HTTP status.
    pub status: u16,
    /// Headers in their order: names in lower case, values as they were sent.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body; none if it was too large to be kept.
    pub body: Option<Vec<u8>>,
}

impl StoredResponse {
    /// An answer without headers and without a body that was kept.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: None }
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same with a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The headers as tables hold them: as HTTP/1 sends them, so that any value survives and people can read it.
    pub fn header_block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in &self.headers {
            block.extend_from_slice(name.as_bytes());
            block.extend_from_slice(b": ");
            block.extend_from_slice(value);
            block.extend_from_slice(b"\r\n");
        }
        block
    }

    /// An answer from what a table holds. Lines that are no header are left out.
    pub fn from_table(status: u16, header_block: &[u8], body: Option<Vec<u8>>) -> Self {
        let lines = header_block.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
        let headers = lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            let name = String::from_utf8(name.to_vec()).ok()?;
            Some((name, value[1..].trim_ascii_start().to_vec()))
        });
        Self { status, headers: headers.collect(), body }
    }
}

#[cfg(test)]
mod tests {
    use super::StoredResponse;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_the_table(
            headers in proptest::collection::vec(("[a-z][a-z-]{0,10}", "([!-~\u{e9}]([ -~\u{e9}]{0,10}[!-~])?)?"), 0..5),
        ) {
            let response = headers.iter().fold(StoredResponse::new(200), |response, (name, value)| {
                response.header(name.clone(), value.as_bytes())
            });
            let read = StoredResponse::from_table(200, &response.header_block(), None);
            prop_assert_eq!(read, response);
        }
    }

    #[test]
    fn what_somebody_else_wrote_into_the_column_is_no_header() {
        let read = StoredResponse::from_table(200, b"nonsense\r\n\xff: x\r\na: b\r\n", None);
        assert_eq!(read.headers, [("a".to_owned(), b"b".to_vec())]);
    }
}
