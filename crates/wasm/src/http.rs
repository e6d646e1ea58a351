//! Outgoing HTTP requests: each one is decided by the egress rules of its call.
//!
//! Nothing in here opens a connection, and the worker's cell has no network to open one to. A request that the rules allow is to be handed to
//! the egress broker; until there is one, it fails like one whose destination is down. The engine grants nobody this interface yet.

use std::future::Future;

use http::Uri;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// Stands between a component and everybody else.
pub(crate) struct Gate {
    /// `host:port`, as the request has them.
    rules: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
}

impl Gate {
    pub(crate) fn new(rules: Vec<String>) -> Gate {
        Gate { rules }
    }

    /// By the host and the port that the request itself names, and nothing that it says besides.
    fn decide(&self, uri: &Uri) -> Verdict {
        let port = match (uri.port_u16(), uri.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, Some("http")) => 80,
            (None, _) => return Verdict::Denied,
        };
        // Whoever writes user names into an authority wants it to be misread.
        let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        let Some(host) = uri.host().filter(|_| plain) else { return Verdict::Denied };
        let wanted = format!("{}:{port}", host.to_ascii_lowercase());
        match self.rules.contains(&wanted) {
            true => Verdict::Allowed,
            false => Verdict::Denied,
        }
    }
}

type Answer = (http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

impl WasiHttpHooks for Gate {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = wasmtime_wasi_http::Result<Answer>> + Send> {
        let verdict = self.decide(request.uri());
        Box::new(async move {
            Err(match verdict {
                Verdict::Denied => Error::HttpRequestDenied,
                Verdict::Allowed => Error::DestinationUnavailable,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(uri: &str) -> Verdict {
        let gate = Gate::new(vec!["api.example.com:443".into(), "plain.example.com:8080".into()]);
        gate.decide(&uri.parse().unwrap())
    }

    #[test]
    fn what_a_rule_names_is_allowed() {
        for uri in
            ["https://api.example.com/x", "https://API.example.com:443/", "http://plain.example.com:8080/?q"]
        {
            assert_eq!(decided(uri), Verdict::Allowed, "{uri}");
        }
    }

    #[test]
    fn everything_else_is_denied() {
        for uri in [
            "https://example.com/",
            "http://api.example.com/",
            "https://api.example.com:444/",
            "https://api.example.com.evil.example/",
            "https://api.example.com:443@evil.example/",
            "https://evil.example@api.example.com/",
            "https://169.254.169.254/",
            "ftp://api.example.com/",
            "/relative",
        ] {
            assert_eq!(decided(uri), Verdict::Denied, "{uri}");
        }
        assert_eq!(
            Gate::new(Vec::new()).decide(&"https://api.example.com/".parse().unwrap()),
            Verdict::Denied
        );
    }

    #[test]
    fn every_request_comes_through_here() {
        let body =
            http_body_util::BodyExt::boxed_unsync(http_body_util::Empty::new().map_err(|e| match e {}));
        use http_body_util::BodyExt as _;
        let request = http::Request::get("https://elsewhere.example/").body(body).unwrap();
        let answer = Gate::new(Vec::new()).send_request(request, None, Box::new(async { Ok(()) }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(matches!(runtime.block_on(Box::into_pin(answer)), Err(Error::HttpRequestDenied)));
    }
}
