//! Puts the files of the dashboard into the program: `assets/dashboard` becomes one list, so that a new file needs no line
//! of code.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let folder = root.join("assets/dashboard");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    collect(&folder, &mut files)?;
    files.sort();
    let mut code = String::from("const FILES: &[File] = &[\n");
    for file in files {
        let name = file.strip_prefix(&folder).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        // FNV-1a: it tells versions apart, nothing more.
        let mark = fs::read(&file)?.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        // As a string of Rust, whatever is in it.
        let path = file.to_string_lossy();
        let _ = writeln!(code, "    ({name:?}, include_bytes!({path:?}), \"\\\"{mark:016x}\\\"\"),");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("dashboard.rs"), code)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            collect(&path, files)?;
        } else if !hidden {
            files.push(path);
        }
    }
    Ok(())
}
