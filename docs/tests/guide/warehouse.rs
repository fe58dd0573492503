use postbox::{Code, Delivery, DispatchError, Dispatcher, Payload, Receipts};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

/// A warehouse that is sent `<event id> <length>`, a line's end and the payload, and answers each with one line.
pub struct Warehouse {
    pub address: String,
}

impl Dispatcher for Warehouse {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await // as a batch of one
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        match TcpStream::connect(&self.address).await {
            // Nobody is there. No event is to blame, and none is charged.
            Err(error) => receipts.rest_failed(DispatchError::unavailable(error)),
            Ok(stream) => {
                if let Err(error) = exchange(stream, batch, receipts).await {
                    // It broke in the middle, perhaps because of an event: those without an answer are charged.
                    receipts.rest_failed(DispatchError::retry(error));
                }
            }
        }
    }

    fn batch_limit(&self) -> usize {
        100
    }

    fn check(&self) -> Result<(), DispatchError> {
        match self.address.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Ok(()),
            _ => Err(DispatchError::reject("the address is not host:port").with_code(Code::SinkInvalid)),
        }
    }
}

/// Sends a whole batch, then reads the answers, which come in the same order.
async fn exchange(stream: TcpStream, batch: &[Delivery], receipts: &mut Receipts) -> io::Result<()> {
    let mut stream = BufStream::new(stream);
    for delivery in batch {
        let payload: &[u8] = match &delivery.payload {
            Payload::Json(json) => json.as_str().as_bytes(),
            Payload::Bytes { bytes, .. } => bytes,
        };
        let head = format!("{} {}\n", delivery.meta.event_id, payload.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(payload).await?;
    }
    stream.flush().await?;
    for index in 0..batch.len() {
        let mut answer = String::new();
        if stream.read_line(&mut answer).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        receipts.record(index, judge(answer.trim_end())); // at once: a timeout keeps what was recorded
    }
    Ok(())
}

/// What an answer of the warehouse means for its event.
fn judge(answer: &str) -> Result<(), DispatchError> {
    match answer {
        "ok" => Ok(()),
        "busy" => Err(DispatchError::retry_after("the warehouse is busy", Duration::from_secs(30))),
        "closed" => Err(DispatchError::unavailable("the warehouse is closed")),
        "unknown" => Err(DispatchError::reject("the warehouse does not have this")),
        _ => Err(DispatchError::retry("the warehouse gave an answer that nobody knows")),
    }
}
