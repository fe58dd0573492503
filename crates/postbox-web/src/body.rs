//! Bodies in memory, up to a limit.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

/// A body as far as it was read.
pub(crate) enum Collected {
    /// All of it.
    Whole(Bytes),
    /// It is larger than the limit, or did not end in time: all of it again.
    Larger(Body),
    /// It broke off: what came, and the error again.
    Broken(Body),
}

/// Reads a body, but not more than the limit, and not for longer than `patience`, if there is one.
pub(crate) async fn collect(body: Body, limit: usize, patience: Option<Duration>) -> Collected {
    if body.size_hint().lower() > limit as u64 {
        return Collected::Larger(body);
    }
    let mut chunks: Vec<Bytes> = Vec::new();
    let mut size = 0;
    let mut rest = body.into_data_stream();
    let until = patience.map(|patience| Instant::now() + patience);
    loop {
        let next = match until {
            Some(until) => timeout_at(until, rest.next()).await,
            None => Ok(rest.next().await),
        };
        let Ok(next) = next else { return Collected::Larger(again(chunks, rest)) };
        let Some(chunk) = next else { break };
        match chunk {
            Ok(chunk) => {
                size += chunk.len();
                chunks.push(chunk);
                if size > limit {
                    return Collected::Larger(again(chunks, rest));
                }
            }
            Err(error) => {
                let came = stream::iter(chunks.into_iter().map(Ok));
                return Collected::Broken(Body::from_stream(came.chain(stream::iter([Err(error)]))));
            }
        }
    }
    Collected::Whole(match <[Bytes; 1]>::try_from(chunks) {
        Ok([chunk]) => chunk,
        Err(chunks) => chunks.concat().into(),
    })
}

fn again(chunks: Vec<Bytes>, rest: BodyDataStream) -> Body {
    Body::from_stream(stream::iter(chunks.into_iter().map(Ok)).chain(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: &[&'static str]) -> Body {
        let pieces: Vec<Result<&str, std::io::Error>> = pieces.iter().copied().map(Ok).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn what_fits_is_read_and_what_does_not_is_still_whole() {
        let Collected::Whole(bytes) = collect(pieces(&["ab", "", "cd"]), 4, None).await else {
            panic!("it fits")
        };
        assert_eq!(bytes, "abcd");
        let Collected::Whole(bytes) = collect(Body::empty(), 0, None).await else { panic!("it fits") };
        assert!(bytes.is_empty());
        for body in [pieces(&["ab", "cd", "ef"]), Body::from("abcdef")] {
            let Collected::Larger(body) = collect(body, 3, None).await else { panic!("it does not fit") };
            assert_eq!(axum::body::to_bytes(body, 100).await.unwrap(), "abcdef");
        }
        let endless = Body::from_stream(pieces(&["ab"]).into_data_stream().chain(stream::pending()));
        let patience = Some(Duration::from_millis(1));
        let Collected::Larger(body) = collect(endless, 100, patience).await else { panic!("it has no end") };
        assert_eq!(body.into_data_stream().next().await.unwrap().unwrap(), "ab");
        let broken: [Result<&str, std::io::Error>; 2] = [Ok("ab"), Err(std::io::Error::other("gone"))];
        let Collected::Broken(body) = collect(Body::from_stream(stream::iter(broken)), 10, None).await else {
            panic!("it is broken")
        };
        let mut body = body.into_data_stream();
        assert_eq!(body.next().await.unwrap().unwrap(), "ab");
        assert!(body.next().await.unwrap().is_err());
    }
}
