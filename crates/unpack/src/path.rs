//! Where a member goes: names below the root, and nothing that leads anywhere else.

use crate::fault::Fault;

/// The kernel's `PATH_MAX` and `NAME_MAX`, without the terminating NUL.
pub const MAX_PATH_BYTES: usize = 4095;
pub const MAX_NAME_BYTES: usize = 255;
/// Deeper trees are made by fuzzers. Whoever removes a tree again has one directory open for each level.
pub const MAX_DEPTH: usize = 128;

/// A path below the root, in its shortest spelling: no `.`, no `..`, no empty name. Empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberPath(Vec<u8>);

impl MemberPath {
    pub fn new(path: &[u8]) -> Result<MemberPath, Fault> {
        if path.len() > MAX_PATH_BYTES {
            return Err(Fault::LongPath(path.len()));
        }
        if path.contains(&0) {
            return Err(Fault::Nul);
        }
        if path.first() == Some(&b'/') {
            return Err(Fault::Absolute);
        }
        let mut shortest = Vec::with_capacity(path.len());
        let mut depth = 0;
        for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            if name == b".." {
                return Err(Fault::Outward);
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(Fault::LongName(name.len()));
            }
            depth += 1;
            if !shortest.is_empty() {
                shortest.push(b'/');
            }
            shortest.extend_from_slice(name);
        }
        if depth > MAX_DEPTH {
            return Err(Fault::Deep);
        }
        Ok(MemberPath(shortest))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory above, and the last name. Nothing for the root.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (b"", &self.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shortest(path: &str) -> Result<String, Fault> {
        MemberPath::new(path.as_bytes()).map(|path| String::from_utf8(path.0).unwrap())
    }

    #[test]
    fn a_path_has_one_spelling() {
        for path in ["usr/bin", "./usr/bin", "usr//bin/", "usr/./bin/.", ".//usr/bin//"] {
            assert_eq!(shortest(path), Ok("usr/bin".into()), "{path}");
        }
        for root in ["", ".", "./", ".//."] {
            assert!(MemberPath::new(root.as_bytes()).unwrap().is_root(), "{root}");
        }
        assert_eq!(shortest("..."), Ok("...".into()));
        assert_eq!(shortest("a/..b/c.."), Ok("a/..b/c..".into()));
    }

    #[test]
    fn what_leads_elsewhere_is_no_path() {
        assert_eq!(shortest("/etc/passwd"), Err(Fault::Absolute));
        assert_eq!(shortest("//"), Err(Fault::Absolute));
        for path in ["..", "../x", "a/..", "a/../b", "./..", "a/b/../../../c"] {
            assert_eq!(shortest(path), Err(Fault::Outward), "{path}");
        }
        assert_eq!(shortest("a\0b"), Err(Fault::Nul));
        assert_eq!(shortest(&"x".repeat(256)), Err(Fault::LongName(256)));
        assert_eq!(shortest(&"x/".repeat(2048)), Err(Fault::LongPath(4096)));
        assert_eq!(shortest(&"x/".repeat(129)), Err(Fault::Deep));
        assert!(shortest(&"x/".repeat(128)).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_path_is_names_below_the_root(path in "[ab./\\x00]{0,40}") {
            let Ok(accepted) = MemberPath::new(path.as_bytes()) else { return Ok(()) };
            prop_assert!(!path.starts_with('/'));
            for name in accepted.as_bytes().split(|byte| *byte == b'/').filter(|_| !accepted.is_root()) {
                prop_assert!(!matches!(name, b"" | b"." | b".."), "{accepted:?}");
            }
            prop_assert_eq!(MemberPath::new(accepted.as_bytes()), Ok(accepted.clone()), "a second spelling");
        }
    }
}
