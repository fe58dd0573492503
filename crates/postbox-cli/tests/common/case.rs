//! A mistake that the program must refuse.

use super::{Done, Place, finish};

/// One mistake.
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    pub(crate) args: Vec<&'a str>,
    pub(crate) env: Vec<(&'a str, String)>,
    pub(crate) input: String,
    pub(crate) exit: i32,
    pub(crate) code: &'a str,
    pub(crate) says: Vec<String>,
}

/// A mistake, by what it is called, its arguments, and what must come of it.
pub(crate) fn case<'a>(name: &'a str, args: &[&'a str], exit: i32, code: &'a str, says: &[&str]) -> Case<'a> {
    let says = says.iter().map(|text| (*text).to_owned()).collect();
    Case { name, args: args.to_vec(), env: Vec::new(), input: String::new(), exit, code, says }
}

impl<'a> Case<'a> {
    /// With a variable.
    pub(crate) fn env(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// With this on standard input.
    pub(crate) fn input(mut self, input: impl Into<String>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs it as it is and with `--json`.
    pub(crate) fn check(&self, place: &Place) {
        let run = |more: &[&str]| {
            let args: Vec<&str> = self.args.iter().copied().chain(more.iter().copied()).collect();
            let mut command = place.command(&args);
            command.envs(self.env.iter().map(|(name, value)| (*name, value.as_str())));
            let done: Done = finish(command, &self.input);
            assert_eq!(done.code, self.exit, "{}: {done:#?}", self.name);
            for text in [&done.stdout, &done.stderr] {
                assert!(
                    !text.contains("panicked") && !text.contains("RUST_BACKTRACE"),
                    "{}: {done:#?}",
                    self.name
                );
                assert!(!text.contains("Zq9"), "{}: a password in {done:#?}", self.name);
            }
            done
        };
        let done = run(&[]);
        let start = format!("error[{}]: ", self.code);
        assert!(done.stderr.lines().any(|line| line.starts_with(&start)), "{}: {done:#?}", self.name);
        let next = format!("      more: postbox explain {}", self.code);
        let has_next = |line: &str| line.starts_with("  next: ") && line.ends_with(&next);
        assert!(done.stderr.lines().any(has_next), "{}: {done:#?}", self.name);
        for text in &self.says {
            assert!(done.stderr.contains(text), "{}: no {text:?} in {done:#?}", self.name);
        }
        let done = run(&["--json"]);
        let last = done.stderr.lines().last().unwrap_or_default();
        let json: serde_json::Value =
            serde_json::from_str(last).unwrap_or_else(|e| panic!("{}: {e}: {done:#?}", self.name));
        let errors = json["errors"].as_array().unwrap();
        assert!(errors.iter().any(|error| error["code"] == self.code), "{}: {done:#?}", self.name);
        assert!(
            errors.iter().all(|error| !error["next"].as_str().unwrap().is_empty()),
            "{}: {done:#?}",
            self.name
        );
        assert_eq!(place.count("true"), 0, "{}: something was written", self.name);
    }
}
