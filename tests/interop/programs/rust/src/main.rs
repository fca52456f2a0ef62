//! Shows what the crate azure_messaging_servicebus does with a broker that speaks Service Bus.
//!
//! It reads one JSON line a feature from standard input, and answers one on standard output; see ../../README.md, and
//! broker.rs for what had to be done beyond namespace, rule and key.

mod broker;
mod connections;
mod lacking;
mod receiving;
mod sending;

use broker::{Broker, Failure};
use serde_json::{json, Value};
use std::io::{self, BufRead, Write};
use std::time::Duration;

/// No feature may take longer; what a client waits for here are locks of 5 s and a restart of the broker.
const FEATURE_MAX: Duration = Duration::from_secs(28);

/// What came of a feature; the text says how it differs, or why it is not there.
pub enum Outcome {
    Works,
    Differs(&'static str),
    NotOffered(&'static str),
}

pub type Shown = Result<Outcome, Failure>;

/// End the feature as failed, with a sentence, if something is not as it has to be.
#[macro_export]
macro_rules! expect {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!("{}:{}: {}", file!(), line!(), format!($($text)+)).into());
        }
    };
}

async fn show(name: &str, b: &Broker) -> Shown {
    match name {
        "amqp-tls" => connections::tls(b).await,
        "wrong-key" => connections::wrong_key(b).await,
        "missing-entity" => connections::missing_entity(b).await,
        "missing-right" => connections::missing_right(b).await,
        "reconnect" => connections::reconnect(b).await,
        "send" => sending::send(b).await,
        "properties" => sending::properties(b).await,
        "batch" => sending::batch(b).await,
        "large" => sending::large(b).await,
        "largest" => sending::largest(b).await,
        "schedule" => sending::schedule(b).await,
        "time-to-live" => sending::time_to_live(b).await,
        "duplicates" => sending::duplicates(b).await,
        "receive-and-delete" => receiving::receive_and_delete(b).await,
        "complete" => receiving::complete(b).await,
        "abandon" => receiving::abandon(b).await,
        "dead-letter" => receiving::dead_letter(b).await,
        "renew-lock" => receiving::renew_lock(b).await,
        "lock-lost" => receiving::lock_lost(b).await,
        "session" => receiving::session(b).await,
        "subscriptions" => receiving::subscriptions(b).await,
        "rules" => receiving::rules(b).await,
        _ => lacking::reason(name).map(Outcome::NotOffered),
    }
}

async fn answer(name: &str, b: &Broker) -> Value {
    match tokio::time::timeout(FEATURE_MAX, show(name, b)).await {
        Ok(Ok(Outcome::Works)) => json!({"feature": name, "status": "works"}),
        Ok(Ok(Outcome::Differs(how))) => json!({"feature": name, "status": "differs", "how": how}),
        Ok(Ok(Outcome::NotOffered(how))) => json!({"feature": name, "status": "not offered", "how": how}),
        Ok(Err(error)) => json!({"feature": name, "status": "failed", "error": error.to_string()}),
        Err(_) => json!({"feature": name, "status": "failed", "error": "did not end in time"}),
    }
}

/// Have the harness do something to the broker, and return when it is done.
pub fn ask(what: &str) -> Result<(), Failure> {
    tell(&json!({"ask": what}))?;
    let mut reply = String::new();
    io::stdin().lock().read_line(&mut reply)?;
    let reply: Value = serde_json::from_str(&reply)?;
    expect!(reply["done"] == what, "asked for {what}, and was told {reply}");
    Ok(())
}

fn tell(line: &Value) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

async fn serve() -> Result<(), Failure> {
    let broker = Broker::new()?;
    let mut line = String::new();
    while io::stdin().lock().read_line(&mut line)? > 0 {
        let request: Value = serde_json::from_str(&line)?;
        let name = request["feature"].as_str().ok_or("a request without a feature")?;
        tell(&answer(name, &broker).await)?;
        line.clear();
    }
    broker.remove_entities().await
}

fn main() -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve())
}
