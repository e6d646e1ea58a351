//! How results look to people. What programs read is `casemate_service::shape`: the API and `--json` say the same.

pub(crate) mod terminal;
