//! What the crate does not offer, and why.

use crate::broker::Failure;

pub fn reason(feature: &str) -> Result<&'static str, Failure> {
    Ok(match feature {
        "amqp-plain" | "websocket" => "It speaks HTTPS alone.",
        "defer" | "many-deferred" => "It has no deferral.",
        "peek" => "It has no peek: `peek_lock_message` locks the message.",
        "purge" => "It deletes one message a call.",
        "push" => "It has no processor; an application calls `peek_lock_message2` in a loop.",
        "next-session" | "session-state" | "renew-session" => "It receives from no sessions.",
        "rule-manager" => "It manages no rules.",
        "transaction" | "cross-entity" => "It has no transactions.",
        name if name.starts_with("admin-") => "It has no administration.",
        name => return Err(format!("the program knows no feature {name}").into()),
    })
}
