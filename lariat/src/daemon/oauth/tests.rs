use super::*;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

const ISSUER: &str = "https://login.example";
const US: &str = "https://tools.example/mcp";

/// The example of RFC 7515, A.3.
const ES256: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const ES256_KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

fn url(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for at in 0..=group.len() {
            text.push(char::from(letters[(bits >> (18 - 6 * at)) as usize & 63]));
        }
    }
    text
}

struct Signer {
    pair: Ed25519KeyPair,
    file: PathBuf,
}

impl Signer {
    fn new(name: &str) -> Signer {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let name = format!("lariat-oauth-{name}-{}.json", std::process::id());
        let signer = Signer { pair, file: std::env::temp_dir().join(name) };
        signer.publish("one");
        signer
    }

    fn publish(&self, kid: &str) {
        let x = url(self.pair.public_key().as_ref());
        let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "use": "sig", "x": x });
        let other = json!({ "kty": "oct", "k": "c2VjcmV0" });
        fs::write(&self.file, json!({ "keys": [other, key] }).to_string()).unwrap();
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!(
            "{}.{}",
            url(header.to_string().as_bytes()),
            url(claims.to_string().as_bytes())
        );
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", url(signature.as_ref()))
    }

    fn guard(&self, scopes: &[&str]) -> Guard {
        Guard::new(&Issuer {
            issuer: ISSUER.into(),
            audience: US.into(),
            keys: self.file.clone(),
            scopes: scopes.iter().map(|scope| (*scope).into()).collect(),
        })
        .unwrap()
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        fs::remove_file(&self.file).unwrap();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn header() -> Value {
    json!({ "alg": "EdDSA", "kid": "one", "typ": "at+jwt" })
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "sub": "ann", "aud": US, "exp": now() + 60, "scope": "a b" })
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

#[test]
fn a_good_token_says_who() {
    let signer = Signer::new("good");
    let guard = signer.guard(&["b"]);
    for claims in [claims(), with(claims(), "aud", json!(["https://other.example", US]))] {
        let token = signer.sign(&header(), &claims);
        let principal = guard.principal(Some(&token), SystemTime::now());
        assert_eq!(principal.as_deref(), Ok("https://login.example ann"));
    }
}

#[test]
fn what_is_not_for_us_now_is_refused() {
    let signer = Signer::new("bad");
    let guard = signer.guard(&["b"]);
    let check = |token: &str| guard.principal(Some(token), SystemTime::now());
    for (name, value) in [
        ("iss", json!("https://evil.example")),
        ("aud", json!("https://other.example")),
        ("aud", json!([])),
        ("exp", json!(now() - 120)),
        ("exp", json!("soon")),
        ("nbf", json!(now() + 600)),
        ("sub", json!("")),
        ("sub", json!("x".repeat(300))),
        ("exp", json!(null)),
    ] {
        let token = signer.sign(&header(), &with(claims(), name, value.clone()));
        assert!(matches!(check(&token), Err(Refusal::Invalid(_))), "{name} {value}");
    }
    let few = signer.sign(&header(), &with(claims(), "scope", json!("a")));
    assert_eq!(check(&few), Err(Refusal::Insufficient));
    assert_eq!(guard.principal(None, SystemTime::now()), Err(Refusal::Missing));
    // A clock that is a little behind.
    let late = signer.sign(&header(), &with(claims(), "exp", json!(now() - 30)));
    assert!(check(&late).is_ok());
}

#[test]
fn what_nobody_signed_is_refused() {
    let signer = Signer::new("forged");
    let guard = signer.guard(&[]);
    let good = signer.sign(&header(), &claims());
    let other = Signer::new("other").sign(&header(), &claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (head, body) = signed.split_once('.').unwrap();
    let none = url(br#"{"alg":"none"}"#);
    let hmac = url(br#"{"alg":"HS256"}"#);
    let changed = url(with(claims(), "sub", json!("bob")).to_string().as_bytes());
    for token in [
        other,
        format!("{none}.{body}."),
        format!("{none}.{body}.{signature}"),
        format!("{hmac}.{body}.{signature}"),
        format!("{head}.{changed}.{signature}"),
        format!("{head}.{body}.{}", url(&[0; 64])),
        signer.sign(&json!({ "alg": "EdDSA", "kid": "two" }), &claims()),
        signer.sign(&json!({ "alg": "RS256", "kid": "one" }), &claims()),
        signer.sign(&json!({ "alg": "EdDSA", "crit": ["x"], "x": 1 }), &claims()),
        signed.into(),
        String::new(),
        "..".into(),
        "a.b.c.d".into(),
        format!("{good}."),
        format!("{good}="),
        "x".repeat(1 << 20),
    ] {
        let refused = guard.principal(Some(&token), SystemTime::now());
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{token}: {refused:?}");
    }
}

#[test]
fn a_key_that_is_new_is_found() {
    let signer = Signer::new("rotated");
    let guard = signer.guard(&[]);
    let token = signer.sign(&json!({ "alg": "EdDSA", "kid": "two" }), &claims());
    assert!(guard.principal(Some(&token), SystemTime::now()).is_err());
    signer.publish("two");
    let known = || guard.keys.lock().unwrap();
    // As if some time had passed.
    known().looked = Instant::now().checked_sub(LOOK).unwrap();
    known().modified = None;
    assert!(guard.principal(Some(&token), SystemTime::now()).is_ok());
}

#[test]
fn keys_are_read_as_others_write_them() {
    let keys = Keys::parse(ES256_KEY.as_bytes()).unwrap();
    assert!(keys.verify(ES256).is_ok());
    let (signed, _) = ES256.rsplit_once('.').unwrap();
    assert_eq!(keys.verify(&format!("{signed}.AAAA")), Err(jwt::Bad::Signature));
    for bad in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#] {
        assert!(Keys::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn who_is_refused_is_told_where_tokens_come_from() {
    let signer = Signer::new("told");
    let guard = signer.guard(&["a"]);
    let answer = guard.refuse(&Refusal::Missing);
    assert_eq!(answer.status(), 401);
    let challenge = answer.headers()[header::WWW_AUTHENTICATE].to_str().unwrap();
    assert_eq!(
        challenge,
        "Bearer resource_metadata=\"https://tools.example/.well-known/oauth-protected-resource\", \
         scope=\"a\""
    );
    assert_eq!(guard.metadata()["authorization_servers"], json!([ISSUER]));
    assert_eq!(guard.refuse(&Refusal::Insufficient).status(), 403);
}
