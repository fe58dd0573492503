//! [`Fuzz`]: what users and the network can send to a parser, and what nobody would: nothing may panic, nothing may hang.
//!
//! The inputs are the files of a corpus, which is kept with the code, and changed copies of them. What a target says about an
//! input steers the search: an answer that was not heard before makes its input one of those that are changed further. That
//! is less than a fuzzer with eyes in the compiled code knows, but it runs on stable Rust, in every `cargo test`.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// For how long, instead of a number of inputs.
pub const SECONDS_ENV: &str = "POSTBOX_FUZZ_SECONDS";
/// Another way through the inputs than that of every other run.
pub const SEED_ENV: &str = "POSTBOX_FUZZ_SEED";

/// How many changed copies an ordinary run tries.
const INPUTS: usize = 20_000;
/// No input needs a fraction of this.
const HANGS: Duration = Duration::from_secs(30);
/// Enough for every bound there is on what is parsed here.
const LONGEST: usize = 8 << 10;
/// Inputs that are changed further.
const POOL: usize = 2_000;

/// A target, its corpus, and the words of its language.
#[derive(Debug)]
pub struct Fuzz {
    corpus: PathBuf,
    words: Vec<Vec<u8>>,
}

impl Fuzz {
    /// The corpus is the folder `tests/corpus/<name>` of a package.
    pub fn new(package: &str, name: &str) -> Self {
        Self { corpus: [package, "tests", "corpus", name].iter().collect(), words: Vec::new() }
    }

    /// What chance alone would not put together.
    #[must_use]
    pub fn words(mut self, words: &[&str]) -> Self {
        self.words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self
    }

    /// Tries them all. A `target` answers what became of the input, in few words: an error's text, or `ok`.
    ///
    /// # Panics
    /// When the target panics or hangs, with the input, which is now in the corpus.
    pub fn run(&self, target: impl Fn(&[u8]) -> String + Sync) {
        let seed = setting(SEED_ENV).unwrap_or(1);
        let end = setting(SECONDS_ENV).map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let (at, tried) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let work = scope.spawn(|| self.work(seed, end, &target, &at, &tried));
            let mut last = (usize::MAX, Instant::now());
            while !work.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
                let count = tried.load(Ordering::Relaxed);
                if count != last.0 {
                    last = (count, Instant::now());
                } else if last.1.elapsed() > HANGS {
                    let input = at.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    // The thread cannot be ended, and the test must not wait for it.
                    eprintln!("it hangs on {} {}", self.keep(&input), input.escape_ascii());
                    std::process::exit(101);
                }
            }
            if let Err(panic) = work.join() {
                std::panic::resume_unwind(panic);
            }
        });
        println!("{} inputs, seed {seed}", tried.load(Ordering::Relaxed));
    }

    fn work(
        &self,
        seed: u64,
        end: Option<Instant>,
        target: impl Fn(&[u8]) -> String,
        at: &Mutex<Vec<u8>>,
        tried: &AtomicUsize,
    ) {
        let (mut rng, mut heard) = (Rng::with_seed(seed), HashSet::new());
        let mut pool = self.corpus();
        assert!(!pool.is_empty(), "no corpus in {}", self.corpus.display());
        let known = pool.len();
        let more =
            |count: usize| end.map_or(count < known + INPUTS, |end| count < known || Instant::now() < end);
        while more(tried.load(Ordering::Relaxed)) {
            let count = tried.load(Ordering::Relaxed);
            let input = if count < known { pool[count].clone() } else { self.changed(&mut rng, &pool) };
            at.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&input);
            let Ok(answer) = catch_unwind(AssertUnwindSafe(|| target(&input))) else {
                panic!("it panics on {} {}; seed {seed}", self.keep(&input), input.escape_ascii());
            };
            if heard.insert(answer) && count >= known && pool.len() < POOL {
                pool.push(input);
            }
            tried.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The files, always in the same order.
    fn corpus(&self) -> Vec<Vec<u8>> {
        let files = fs::read_dir(&self.corpus).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort();
        files.iter().filter_map(|file| fs::read(file).ok()).collect()
    }

    /// So that every later run tries it first.
    fn keep(&self, input: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(input);
        let name = format!("found-{:016x}", hasher.finish());
        match fs::write(self.corpus.join(&name), input) {
            Ok(()) => format!("{name}:"),
            Err(error) => format!("an input that could not be kept ({error}):"),
        }
    }

    /// One input with one to four changes.
    fn changed(&self, rng: &mut Rng, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut input = pool[rng.usize(..pool.len())].clone();
        for _ in 0..rng.usize(1..=4) {
            let at = rng.usize(..=input.len());
            let part = at..rng.usize(at..=input.len().min(at + 16));
            match rng.u8(..8) {
                0 => drop(input.drain(part)),
                1 => input.insert(at, rng.u8(..)),
                2 => input.splice(part, [rng.u8(b' '..=b'~')]).for_each(drop),
                3 if !self.words.is_empty() => {
                    let word = self.words[rng.usize(..self.words.len())].iter().copied();
                    input.splice(at..at, word).for_each(drop);
                }
                4 => {
                    let again = input[part].repeat(rng.usize(1..64));
                    input.splice(at..at, again).for_each(drop);
                }
                5 => {
                    let other = &pool[rng.usize(..pool.len())];
                    input.splice(at.., other[rng.usize(..=other.len())..].iter().copied()).for_each(drop);
                }
                6 => input.splice(at..at, UNUSUAL[rng.usize(..UNUSUAL.len())].bytes()).for_each(drop),
                _ => {
                    if let Some(byte) = input.get_mut(at) {
                        *byte ^= 1 << rng.u8(..8);
                    }
                }
            }
            input.truncate(LONGEST);
        }
        input
    }
}

/// Where parsers stumble: letters of several bytes, of no width and of either direction, separators, numbers at the edge.
const UNUSUAL: [&str; 18] = [
    "ß",
    "漢",
    "🦀",
    "\u{200b}",
    "\u{202e}",
    "\u{feff}",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "%",
    "%zz",
    "%00",
    "..",
    "-0",
    "1e999",
    "18446744073709551616",
    "9223372036854775808",
];

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
