//! What the crate does not offer, and why.

use crate::broker::Failure;

pub fn reason(feature: &str) -> Result<&'static str, Failure> {
    Ok(match feature {
        "amqp-plain" | "websocket" => "It speaks only HTTPS.",
        "defer" | "many-deferred" => "It has no deferral.",
        "peek" => "It has no peek: `peek_lock_message` locks the message.",
        "purge" => "It deletes one message in each call.",
        "push" => "It has no processor; an application calls `peek_lock_message2` in a loop.",
        "next-session" | "session-state" | "renew-session" => "It cannot receive from sessions.",
        "rule-manager" => "It cannot manage rules.",
        "transaction" | "cross-entity" => "It has no transactions.",
        name if name.starts_with("admin-") => "It has no administration.",
        name => return Err(format!("the program knows no feature {name}").into()),
    })
}
