//! What an image is built from: a Debian suite and packages, in a few lines of TOML.

use casemate_core::limits::parse_size;
use casemate_engine::images::DEFAULT_SIZE_LIMIT;
use serde::Deserialize;

use crate::failure::Failure;

/// Packages of one image. Their dependencies come by themselves.
const MAX_PACKAGES: usize = 200;

const DEFAULT: &str = include_str!("default.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    name: Option<String>,
    suite: String,
    #[serde(default)]
    packages: Vec<String>,
    size_limit: Option<String>,
}

/// A recipe that makes sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    pub(super) name: Option<String>,
    pub(super) suite: String,
    pub(super) packages: Vec<String>,
    pub(super) size_limit: u64,
}

impl Recipe {
    /// The one that is built when none is named.
    pub(super) fn default_image() -> Result<Recipe, Failure> {
        Recipe::parse(DEFAULT)
    }

    pub(super) fn parse(text: &str) -> Result<Recipe, Failure> {
        let hint = "a recipe has a suite and packages, and perhaps a name and a size-limit; docs/images.md has an example";
        let wrong = |why: String| Failure::new(format!("the recipe makes no sense: {why}"), hint);
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            wrong(format!("{place}{}", error.message()))
        })?;
        if !is_word(&raw.suite, b"-.") {
            return Err(wrong(format!("{:?} is no suite of Debian's", raw.suite)));
        }
        // They become words of a command: nothing that could be an option or a pattern.
        if let Some(bad) = raw.packages.iter().find(|package| !is_word(package, b"+-.")) {
            return Err(wrong(format!("{bad:?} is no package of Debian's")));
        }
        if raw.packages.len() > MAX_PACKAGES {
            return Err(wrong(format!("it names more than {MAX_PACKAGES} packages")));
        }
        let size_limit = raw.size_limit.as_deref().map(parse_size).transpose()?;
        Ok(Recipe {
            name: raw.name,
            suite: raw.suite,
            packages: raw.packages,
            size_limit: size_limit.unwrap_or(DEFAULT_SIZE_LIMIT),
        })
    }

    /// Where the image comes from, for people.
    pub(super) fn source(&self) -> String {
        match &self.packages[..] {
            [] => format!("build of Debian {}", self.suite),
            packages => format!("build of Debian {} with {}", self.suite, packages.join(", ")),
        }
    }
}

/// Lower-case letters, digits and these signs, a letter or digit first, as Debian has them.
fn is_word(word: &str, signs: &[u8]) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    word.bytes().next().is_some_and(plain)
        && word.len() <= 100
        && word.bytes().all(|c| plain(c) || signs.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        match Recipe::parse(text) {
            Err(Failure::Told { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_default_recipe_makes_sense() {
        let recipe = Recipe::default_image().unwrap();
        assert_eq!(recipe.name.as_deref(), Some("default"));
        assert_eq!(recipe.size_limit, 500 << 20);
    }

    #[test]
    fn nothing_in_a_recipe_is_an_option_of_a_command() {
        for bad in ["--hook=x", "-x", "a b", "a,b", "a=1", "a/b", "../a", "?essential", "~i", "A", ""] {
            let suite = format!("suite = {bad:?}");
            assert!(message(&suite).contains("no suite"), "{suite}");
            let package = format!("suite = \"forky\"\npackages = [{bad:?}]");
            assert!(message(&package).contains("no package"), "{package}");
        }
        assert!(Recipe::parse("suite = \"forky\"\npackages = [\"libstdc++6\", \"python3.14\"]").is_ok());
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_line() {
        assert!(message("suite = \"forky\"\nhooks = [\"x\"]").contains("line 2"));
        assert!(message("packages = []").contains("suite"));
        assert!(Recipe::parse("suite = \"forky\"\nsize-limit = \"much\"").is_err());
    }
}
