//! What an answer names, and where the name can be used.

use utoipa::openapi::link::Link;
use utoipa::openapi::{OpenApi, RefOr};

use super::operations;

/// From what makes something to everything that can be done with it, for clients that find their way by themselves.
pub(super) fn add(api: &mut OpenApi) {
    NAMINGS.iter().for_each(|naming| link(api, naming));
}

struct Naming {
    operation: &'static str,
    status: &'static str,
    /// What a path calls it, and where it stands.
    names: &'static [(&'static str, &'static str)],
    /// The addresses that it is good for.
    below: &'static [&'static str],
}

const NAMINGS: [Naming; 4] = [
    Naming {
        operation: "createExecution",
        status: "200",
        names: &[("id", "$response.body#/id")],
        below: &["/v1/executions/", "/v1/receipts/"],
    },
    Naming {
        operation: "createSession",
        status: "201",
        names: &[("id", "$response.body#/id")],
        below: &["/v1/sessions/", "/v1/receipts/"],
    },
    Naming {
        operation: "createProcess",
        status: "201",
        names: &[("id", "$request.path.id"), ("pid", "$response.body#/pid")],
        below: &["/v1/sessions/"],
    },
    Naming {
        operation: "importImage",
        status: "201",
        names: &[("name", "$response.body#/digest")],
        below: &["/v1/images/"],
    },
];

fn link(api: &mut OpenApi, naming: &Naming) {
    let paths = &mut api.paths.paths;
    let there: Vec<String> = paths
        .iter_mut()
        .filter(|(path, _)| naming.is_used_at(path))
        .flat_map(|(_, item)| operations(item))
        .filter_map(|operation| operation.operation_id.clone())
        .collect();
    let mut all = paths.values_mut().flat_map(operations);
    let maker = all.find(|operation| operation.operation_id.as_deref() == Some(naming.operation));
    if let Some(RefOr::T(made)) = maker.and_then(|maker| maker.responses.responses.get_mut(naming.status)) {
        made.links.extend(there.into_iter().map(|id| (id.clone(), naming.link(id).into())));
    }
}

impl Naming {
    fn is_used_at(&self, path: &str) -> bool {
        let takes_all = self.names.iter().all(|(name, _)| path.contains(&format!("{{{name}}}")));
        let takes_more = path.matches('{').count() > self.names.len();
        takes_all && !takes_more && self.below.iter().any(|below| path.starts_with(below))
    }

    fn link(&self, operation: String) -> Link {
        let link = Link::builder().operation_id(operation);
        self.names.iter().fold(link, |link, (name, place)| link.parameter(*name, *place)).build()
    }
}

#[cfg(test)]
mod tests {
    use utoipa::OpenApi as _;

    use super::*;

    #[test]
    fn whatever_names_something_leads_to_where_the_name_is_used() {
        let mut api = super::super::Api::openapi();
        let mut all: Vec<_> = api.paths.paths.values_mut().flat_map(operations).collect();
        for Naming { operation, status, .. } in NAMINGS {
            let maker =
                all.iter_mut().find(|it| it.operation_id.as_deref() == Some(operation)).expect(operation);
            let Some(RefOr::T(made)) = maker.responses.responses.get(status) else {
                panic!("{operation} {status}")
            };
            assert!(made.links.len() >= 2, "{operation}");
        }
    }
}
