//! Which imports a component may have. What was not granted is refused by name, before anything runs.

use std::collections::BTreeSet;

use casemate_core::outcome::Refusal;
use casemate_core::request::Capability;
use casemate_wire::worker::{Maker, Need, World};

use super::worker::Module;

/// The first import that nothing was granted for is the reason for a refusal.
pub(super) fn check(
    name: &str,
    maker: Maker,
    module: &Module,
    granted: &BTreeSet<Capability>,
) -> Result<(), Refusal> {
    // Our own interpreters import whatever their languages could use; what they are given decides what works.
    if maker == Maker::Caller {
        for import in &module.imports {
            let capability = match Need::of_import(import) {
                Need::Clocks => Some(Capability::Clocks),
                Need::Random => Some(Capability::Random),
                Need::Nothing | Need::Http | Need::Sockets | Need::Unknown => None,
            };
            let (what, hint) = match (Need::of_import(import), capability) {
                (Need::Nothing, _) => continue,
                (_, Some(capability)) if granted.contains(&capability) => continue,
                (_, Some(capability)) => {
                    (capability.to_string(), format!("grant it with --grant {capability}"))
                }
                (Need::Http | Need::Sockets, None) => (
                    "network access".to_owned(),
                    "no stack of this version has network egress: pass data in as input or files. If only the tool chain \
                     brings this import, build without it (componentize-py --stub-wasi)"
                        .to_owned(),
                ),
                (_, None) => (
                    "something that does not exist here".to_owned(),
                    "components may import wasi:cli, io, filesystem, clocks and random, version 0.2"
                        .to_owned(),
                ),
            };
            return Err(Refusal::new(format!("{name} imports {import}: {what} was not granted"), hint));
        }
    }
    let why = match (&module.callable, maker, module.world) {
        (Err(why), ..) => why.as_str(),
        (Ok(()), Maker::Caller, World::Runtime) => "its `run` is not the one of casemate:tool",
        (Ok(()), ..) => return Ok(()),
    };
    Err(Refusal::new(
        format!("{name} cannot be called: {why}"),
        "export `run` of casemate:tool, wasi:cli/run, or (in a module for WASI preview 1) _start",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::line::Pace;
    use super::*;

    fn module(imports: &[&str]) -> Module {
        let imports = imports.iter().map(ToString::to_string).collect();
        Module { number: 1, world: World::Command, imports, callable: Ok(()), pace: Pace::default() }
    }

    fn refusal(import: &str) -> Refusal {
        check("x.wasm", Maker::Caller, &module(&["wasi:io/streams@0.2.6", import]), &BTreeSet::new())
            .unwrap_err()
    }

    #[test]
    fn what_was_not_granted_is_named_with_what_would_grant_it() {
        let clocks = refusal("wasi:clocks/wall-clock@0.2.6");
        assert!(clocks.reason.contains("wasi:clocks/wall-clock@0.2.6"), "{clocks:?}");
        assert!(clocks.hint.contains("--grant clocks"), "{clocks:?}");
        assert!(refusal("wasi_snapshot_preview1.random_get").hint.contains("--grant random"));
        assert!(refusal("wasi:http/outgoing-handler@0.2.6").hint.contains("egress"));
        assert!(refusal("wasi:sockets/tcp@0.2.6").reason.contains("network"));
        assert!(refusal("env.host_call").reason.contains("env.host_call"));
    }

    #[test]
    fn what_was_granted_passes() {
        let granted = BTreeSet::from([Capability::Clocks]);
        let module = module(&["wasi:cli/stdout@0.2.6", "wasi:clocks/monotonic-clock@0.2.6"]);
        assert!(check("x.wasm", Maker::Caller, &module, &granted).is_ok());
    }
}
