use super::{Access, Role, Settings};
use crate::config::Hidden;

fn settings() -> Settings {
    Settings {
        enabled: true,
        listen: None,
        base_path: "/postbox".to_owned(),
        read_only: false,
        hosts: vec!["ops.example.org".to_owned()],
        viewer_tokens: vec![Hidden::new("0123456789abcdef-viewer")],
        operator_tokens: vec![
            Hidden::new("alice:0123456789abcdef-alice"),
            Hidden::new("bob:0123456789abcdef-bob"),
        ],
        viewer_tokens_file: None,
        operator_tokens_file: None,
        trace_url: None,
    }
}

fn access() -> Access {
    Access::with(&settings(), "127.0.0.1:8080".parse().unwrap()).unwrap()
}

#[test]
fn a_token_says_who_has_it_and_a_cookie_is_none() {
    let access = access();
    let alice = access.by_token("0123456789abcdef-alice").unwrap();
    assert_eq!((alice.role, alice.label().as_str()), (Role::Operator, "alice (operator)"));
    assert_eq!(access.by_token("0123456789abcdef-viewer").unwrap().label(), "viewer");
    for wrong in ["", "alice", "alice:0123456789abcdef-alice", "0123456789abcdef-alicf"] {
        assert!(access.by_token(wrong).is_none(), "{wrong}");
    }
    let cookie = access.begin("0123456789abcdef-bob").unwrap();
    assert!(!cookie.contains("abcdef-bob"));
    let bob = access.by_cookie(&cookie).unwrap();
    assert_eq!((bob.name.as_str(), bob.csrf.is_some()), ("bob", true));
    assert_ne!(access.by_cookie(&access.begin("0123456789abcdef-bob").unwrap()).unwrap().csrf, bob.csrf);
    // Another relay with the same tokens knows it; one without that token does not.
    assert!(self::access().by_cookie(&cookie).is_some());
    let mut fewer = settings();
    fewer.operator_tokens.pop();
    let fewer = Access::with(&fewer, "127.0.0.1:1".parse().unwrap()).unwrap();
    assert!(fewer.by_cookie(&cookie).is_none());
    // Nor is one that was changed, or ended.
    let later = cookie.replacen("1.", "1.9", 1);
    assert!(access.by_cookie(&later).is_none());
    access.end(&cookie);
    assert!(access.by_cookie(&cookie).is_none());
}

/// Tokens without a name are all called by their role.
#[test]
fn a_session_is_of_one_token_also_where_several_have_its_name() {
    let with = |tokens: &[&str]| {
        let operator_tokens = tokens.iter().map(|token| Hidden::new(*token)).collect();
        Access::with(&Settings { operator_tokens, ..settings() }, "127.0.0.1:1".parse().unwrap()).unwrap()
    };
    let (first, second) = ("0123456789abcdef-first", "0123456789abcdef-second");
    let both = with(&[first, second]);
    for (own, other) in [(first, second), (second, first)] {
        let cookie = both.begin(own).unwrap();
        assert_eq!(both.by_cookie(&cookie).unwrap().label(), "operator");
        assert!(with(&[own]).by_cookie(&cookie).is_some(), "the other token was taken away");
        assert!(with(&[other]).by_cookie(&cookie).is_none(), "its token was taken away");
    }
}

#[test]
fn what_is_no_session_is_not_remembered_as_ended() {
    let access = access();
    let cookie = access.begin("0123456789abcdef-bob").unwrap();
    let tag = cookie.rsplit('.').next().unwrap();
    for made_up in ["1.99999999999.x.y", &format!("1.99999999999.x.{tag}"), "1.99999999999", ".", ""] {
        access.end(made_up);
    }
    assert!(access.lock().is_empty());
    access.end(&cookie);
    access.end(&cookie);
    assert_eq!(access.lock().len(), 1);
    assert!(access.by_cookie(&cookie).is_none());
}

#[test]
fn only_names_of_the_list_and_addresses_of_its_own_are_known() {
    let access = access();
    for host in
        ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "Ops.Example.org:443", "127.0.0.2"]
    {
        assert!(access.knows_host(host), "{host}");
    }
    for host in ["evil.example", "10.0.0.1", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::1"] {
        assert!(!access.knows_host(host) || host == "[::1", "{host}");
    }
    assert!(access.knows_origin("http://localhost:8080", "localhost:8080"));
    assert!(access.knows_origin("https://ops.example.org", "127.0.0.1:8080"));
    for origin in ["null", "https://evil.example", "http://localhost:9090", "file://localhost:8080"] {
        assert!(!access.knows_origin(origin, "localhost:8080"), "{origin}");
    }
    let open = Access::with(&settings(), "0.0.0.0:8080".parse().unwrap()).unwrap();
    assert!(open.knows_host("10.0.0.1:8080") && !open.knows_host("evil.example:8080"));
}

#[test]
fn tokens_that_could_be_guessed_or_mixed_up_are_refused_without_showing_them() {
    for tokens in [
        vec!["short"],
        vec!["alice:short"],
        vec!["0123456789 abcdef"],
        vec!["a:0123456789abcdef", "b:0123456789abcdef"],
    ] {
        let operator_tokens = tokens.iter().map(|token| Hidden::new(*token)).collect();
        let refused =
            Access::with(&Settings { operator_tokens, ..settings() }, "127.0.0.1:1".parse().unwrap());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("admin.operator_tokens") && !text.contains("0123456789"), "{text}");
    }
}
