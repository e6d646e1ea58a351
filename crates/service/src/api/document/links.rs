//! What an answer names, and where the name can be used.

use utoipa::openapi::link::Link;
use utoipa::openapi::{OpenApi, RefOr};

use super::operations;

/// From what makes something to everything that can be done with it, for clients that find their way by themselves.
pub(super) fn add(api: &mut OpenApi) {
    NAMINGS.iter().for_each(|naming| link(api, naming));
}

/// What an answer names, and the addresses below which the name is good for something.
struct Naming {
    operation: &'static str,
    status: &'static str,
    names: &'static [(&'static str, &'static str)],
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
    let all = || naming.names.iter().map(|(name, _)| format!("{{{name}}}"));
    let takes = |path: &str| {
        path.matches('{').count() == naming.names.len() && all().all(|name| path.contains(&name))
    };
    let is_below = |path: &str| naming.below.iter().any(|below| path.starts_with(below));
    let there = api.paths.paths.iter_mut().filter(|(path, _)| takes(path) && is_below(path));
    let there: Vec<String> = there
        .flat_map(|(_, item)| operations(item))
        .filter_map(|operation| operation.operation_id.clone())
        .collect();
    let maker = api
        .paths
        .paths
        .values_mut()
        .flat_map(operations)
        .find(|it| it.operation_id.as_deref() == Some(naming.operation));
    let Some(RefOr::T(made)) = maker.and_then(|maker| maker.responses.responses.get_mut(naming.status))
    else {
        return;
    };
    for id in there {
        let link =
            naming.names.iter().fold(Link::builder().operation_id(id.as_str()), |link, (name, place)| {
                link.parameter(*name, *place)
            });
        made.links.insert(id, link.build().into());
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
