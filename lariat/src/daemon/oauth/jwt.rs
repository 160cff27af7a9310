//! Signed tokens, and the keys that sign them: RFC 7515 and 7517, as far as access tokens go.
//!
//! Only signatures by which nobody but the signer can sign: a token that names none, or one for which
//! we would need the signer's secret, is not looked at any further. Which algorithm may be used is the
//! key's to say, never the token's alone.

use crate::daemon::base64;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;

/// A longer token is none.
const LONGEST: usize = 16 << 10;

/// Why a token is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// It is no JWT.
    Form,
    /// It is signed in a way that we do not accept.
    Algorithm,
    /// None of the keys could have signed it.
    NoKey,
    /// The signature is not the key's.
    Signature,
}

impl Bad {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Bad::Form => "the token is no JWT",
            Bad::Algorithm => "the token is signed in a way that is not accepted",
            Bad::NoKey => "the token is signed with a key that is not known",
            Bad::Signature => "the token's signature is wrong",
        }
    }
}

/// Keys that sign tokens.
#[derive(Debug)]
pub(super) struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if it says so.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key as the file has it.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    /// `None` if it is of a kind that we do not use.
    fn key(self) -> Option<Key> {
        if self.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: Option<String>| base64::url(&text?);
        let point = |x, y| {
            let (x, y) = (bytes(x)?, bytes(y)?);
            Some([&[4][..], &x, &y].concat())
        };
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Material::Rsa { n: bytes(self.n)?, e: bytes(self.e)? },
            ("EC", Some("P-256")) => Material::P256(point(self.x, self.y)?),
            ("EC", Some("P-384")) => Material::P384(point(self.x, self.y)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(self.x)?),
            _ => return None,
        };
        Some(Key { id: self.kid, algorithm: self.alg, material })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// What must be understood to read it, of which we understand nothing.
    crit: Option<Value>,
}

impl Keys {
    /// Reads a JSON Web Key Set. Keys of other kinds are passed over.
    pub(super) fn parse(text: &[u8]) -> Result<Keys, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(text).map_err(|e| format!("no key set: {e}"))?;
        let key = |value| serde_json::from_value::<Jwk>(value).ok()?.key();
        let keys: Vec<Key> = set.keys.into_iter().filter_map(key).collect();
        if keys.is_empty() {
            return Err("there is no RSA, P-256, P-384 or Ed25519 key for signatures in it".into());
        }
        Ok(Keys(keys))
    }

    /// What a token claims, if one of these has signed it.
    pub(super) fn verify(&self, token: &str) -> Result<Vec<u8>, Bad> {
        if token.len() > LONGEST {
            return Err(Bad::Form);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Bad::Form)?;
        let (header, claims) = signed.split_once('.').ok_or(Bad::Form)?;
        let bytes = |text| base64::url(text).ok_or(Bad::Form);
        let (header, claims, signature) = (bytes(header)?, bytes(claims)?, bytes(signature)?);
        let header: Header = serde_json::from_slice(&header).map_err(|_| Bad::Form)?;
        if header.crit.is_some() {
            return Err(Bad::Algorithm);
        }
        let mut worst = Bad::NoKey;
        for key in &self.0 {
            if header.kid.is_some() && key.id.is_some() && key.id != header.kid {
                continue;
            }
            match key.verify(&header.alg, signed.as_bytes(), &signature) {
                Ok(()) => return Ok(claims),
                Err(Bad::NoKey) => {}
                Err(bad) => worst = bad,
            }
        }
        let known =
            ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];
        if !known.contains(&header.alg.as_str()) {
            worst = Bad::Algorithm;
        }
        Err(worst)
    }
}

impl Key {
    fn verify(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> Result<(), Bad> {
        if self.algorithm.as_deref().is_some_and(|only| only != algorithm) {
            return Err(Bad::NoKey);
        }
        let plain = |how: &'static dyn VerificationAlgorithm, key: &Vec<u8>| {
            UnparsedPublicKey::new(how, key).verify(signed, signature)
        };
        let verified = match (&self.material, algorithm) {
            (Material::Rsa { n, e }, _) => {
                let how = rsa(algorithm).ok_or(Bad::NoKey)?;
                RsaPublicKeyComponents { n, e }.verify(how, signed, signature)
            }
            (Material::P256(key), "ES256") => plain(&ECDSA_P256_SHA256_FIXED, key),
            (Material::P384(key), "ES384") => plain(&ECDSA_P384_SHA384_FIXED, key),
            (Material::Ed25519(key), "EdDSA") => plain(&ED25519, key),
            _ => return Err(Bad::NoKey),
        };
        verified.map_err(|_| Bad::Signature)
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}
