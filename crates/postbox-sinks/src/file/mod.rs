//! The file sink: JSON lines that are on disk before an event counts as delivered.
//!
//! - **Durable.** A batch is one write and one `sync_data`; only then is it acknowledged. The directory is synced
//!   when the file is opened, so that a new file's name survives a power cut too.
//! - **Several writers**, also in other processes: an exclusive lock on the file is held around each batch. Writers
//!   that take no such lock are not kept out. The lock goes with the process; nothing is left to clean up.
//! - **Whole lines only.** What a crash left half written was never acknowledged and is cut off before the next
//!   batch; a write that fails half-way (disk full) is taken back.
//! - **Rotation** by rename or delete is noticed before each batch, and the file is made anew.
//! - **Outages.** Whatever the operating system refuses is "unavailable": the events wait and spend no attempt.

mod append;
mod sink;

pub use sink::FileSink;
