//! What is sent arrives as it was, at its time, and once.

use crate::broker::Broker;
use crate::connections::status;
use crate::receiving::{header, known, SOON};
use crate::{expect, Outcome, Shown};
use azure_core::StatusCode;
use azure_messaging_servicebus::service_bus::{SendMessageOptions, SettableBrokerProperties};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::time::Duration;
use time::OffsetDateTime;

const ARRAY: &str = "application/vnd.microsoft.servicebus.json";

fn with(properties: SettableBrokerProperties) -> Option<SendMessageOptions> {
    Some(SendMessageOptions { broker_properties: Some(properties), ..Default::default() })
}

fn with_id(id: &str) -> Option<SendMessageOptions> {
    with(SettableBrokerProperties { message_id: Some(id.into()), ..Default::default() })
}

pub async fn send(b: &Broker) -> Shown {
    let client = b.client(&b.queue("send", "").await?);
    client.send_message("zażółć", with_id("order 1")).await?;
    let message = client.peek_lock_message2(SOON).await?;
    let found = (message.body(), known(&message)?.message_id);
    expect!(found == ("zażółć".into(), "order 1".into()), "received {found:?}");
    message.delete_message().await?;

    client.send_message("without an id", None).await?;
    let message = client.peek_lock_message2(SOON).await?;
    expect!(message.body() == "without an id", "received {:?}", message.body());
    expect!(!known(&message)?.message_id.is_empty(), "the broker gave it no id");
    message.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn properties(b: &Broker) -> Shown {
    let client = b.client(&b.queue("properties", "").await?);
    let sent = SendMessageOptions {
        content_type: Some("text/plain".into()),
        broker_properties: Some(SettableBrokerProperties {
            correlation_id: Some("correlation".into()),
            session_id: Some("session".into()),
            message_id: Some("id".into()),
            label: Some("label".into()),
            reply_to: Some("reply-to".into()),
            time_to_live: Some(Duration::from_secs(3600)),
            to: Some("to".into()),
            scheduled_enqueue_time_utc: None, // it has a feature of its own
            reply_to_session_id: Some("reply-to-session".into()),
            partition_key: Some("session".into()), // has to be the session's id where there is one
        }),
        custom_properties: Some(HashMap::from(
            [("text", "\"a text\""), ("whole", "-12"), ("part", "0.5"), ("truth", "true")]
                .map(|(name, value)| (name.into(), value.into())),
        )),
    };
    client.send_message("all that a message has", Some(sent)).await?;
    let message = client.peek_lock_message2(SOON).await?;
    for (name, value) in
        [("content-type", "text/plain"), ("text", "\"a text\""), ("whole", "-12"), ("part", "0.5"), ("truth", "true")]
    {
        let found = header(&message, name);
        expect!(found == value, "{name} is {found}");
    }
    // The type for what is received leaves most of it out; the header has it.
    let told: Value = serde_json::from_str(&header(&message, "brokerproperties"))?;
    for (name, value) in [
        ("CorrelationId", "correlation"),
        ("SessionId", "session"),
        ("MessageId", "id"),
        ("Label", "label"),
        ("ReplyTo", "reply-to"),
        ("To", "to"),
        ("ReplyToSessionId", "reply-to-session"),
        ("PartitionKey", "session"),
    ] {
        expect!(told[name] == value, "{name} is {}", told[name]);
    }
    let known = known(&message)?;
    expect!(known.time_to_live == 3600.0 && known.state == "Active", "it is {known:?}");
    let age = OffsetDateTime::now_utc() - known.enqueued_time_utc.ok_or("no time of enqueueing")?;
    expect!(age.abs() < Duration::from_secs(60), "it was enqueued {age} ago");
    message.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn batch(b: &Broker) -> Shown {
    let client = b.client(&b.queue("batch", "").await?);
    let messages: Vec<Value> = (0..100).map(|number| json!({"Body": number.to_string()})).collect();
    let options = SendMessageOptions { content_type: Some(ARRAY.into()), ..Default::default() };
    client.send_message(&json!(messages).to_string(), Some(options)).await?;
    for number in 0..100 {
        let body = client.receive_and_delete_message().await?;
        expect!(body == number.to_string(), "message {number} is {body:?}");
    }
    Ok(Outcome::Differs("It has no batch object: the program writes the JSON array of messages itself."))
}

pub async fn large(b: &Broker) -> Shown {
    let queue = b.queue("large", "").await?;
    let client = b.client(&queue);
    let body = "0123456789abcdef".repeat(200 * 1024 / 16);
    client.send_message(&body, None).await?;
    let found = client.receive_and_delete_message().await?;
    expect!(found == body, "{} bytes arrived, not those that were sent", found.len());
    let refused = status(client.send_message(&"x".repeat(300 * 1024), None).await);
    expect!(refused == Some(StatusCode::Forbidden), "300 KiB: {refused:?}");
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Works)
}

/// From a queue, a subscription and a dead-letter queue, by both receive modes.
pub async fn largest(b: &Broker) -> Shown {
    let limit: usize = std::env::var("PEEKLOCK_MESSAGE_BYTES_MAX").map_or(Ok(262_144), |text| text.parse())?;
    let queue = b.queue("largest", "<MaxDeliveryCount>1</MaxDeliveryCount>").await?;
    let topic = b.topic("largest-topic", &[("all", "")]).await?;
    let client = b.client(&queue);
    let (mut fits, mut too_large) = (limit - 1_144, limit + 1);
    while too_large - fits > 1 {
        let size = (fits + too_large) / 2;
        match client.send_message(&"x".repeat(size), None).await {
            Ok(()) => {
                fits = size;
                let found = client.receive_and_delete_message().await?.len();
                expect!(found == size, "sent {size} bytes, received {found}");
            }
            refused => {
                let refused = status(refused);
                expect!(refused == Some(StatusCode::Forbidden), "{size} bytes: {refused:?}");
                too_large = size;
            }
        }
    }
    expect!(fits > limit - 144, "the largest that could be sent has {fits} bytes");

    let body = "x".repeat(fits);
    let dead_letters = b.client(&format!("{queue}/$DeadLetterQueue"));
    let news = b.topic_client(&topic);
    let all = news.subscription_receiver("all");
    for deletes in [true, false] {
        client.send_message(&body, None).await?;
        let locked = client.peek_lock_message2(SOON).await?;
        expect!(locked.body() == body, "{} bytes came from the queue", locked.body().len());
        locked.unlock_message().await?;
        news.topic_sender().send_message(&body, None).await?;
        let found = if deletes {
            [dead_letters.receive_and_delete_message().await?, all.receive_and_delete_message().await?]
        } else {
            let locked = [dead_letters.peek_lock_message2(SOON).await?, all.peek_lock_message2(SOON).await?];
            for message in &locked {
                message.delete_message().await?;
            }
            locked.map(|message| message.body())
        };
        expect!(found.iter().all(|one| *one == body), "{:?} bytes came", found.map(|one| one.len()));
    }
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Differs("It cannot make a message larger: it changes no properties, and writes no dead-letter texts."))
}

pub async fn schedule(b: &Broker) -> Shown {
    let client = b.client(&b.queue("schedule", "").await?);
    let due = (OffsetDateTime::now_utc() + Duration::from_secs(4)).replace_nanosecond(0)?;
    let properties = SettableBrokerProperties { scheduled_enqueue_time_utc: Some(due), ..Default::default() };
    client.send_message("at its time", with(properties)).await?;
    let early = client.peek_lock_message2(Some(Duration::ZERO)).await?;
    expect!(*early.status() == StatusCode::NoContent, "it came before its time: {}", early.status());
    let message = client.peek_lock_message2(SOON).await?;
    let late = OffsetDateTime::now_utc() - due;
    expect!(message.body() == "at its time", "received {:?}", message.body());
    expect!(late.as_seconds_f64() > -0.05 && late < Duration::from_secs(3), "it came {late} after its time");
    message.delete_message().await?;
    Ok(Outcome::Differs("It can schedule with `scheduled_enqueue_time_utc`, but cannot cancel."))
}

pub async fn time_to_live(b: &Broker) -> Shown {
    let settings = "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>";
    let queue = b.queue("time-to-live", settings).await?;
    let second = SettableBrokerProperties { time_to_live: Some(Duration::from_secs(1)), ..Default::default() };
    b.client(&queue).send_message("short", with(second)).await?;
    let found = b.client(&format!("{queue}/$DeadLetterQueue")).peek_lock_message2(SOON).await?;
    let reason = header(&found, "deadletterreason");
    expect!(found.body() == "short" && reason == "\"TTLExpiredException\"", "{:?}: {reason}", found.body());
    found.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn duplicates(b: &Broker) -> Shown {
    let queue = b.queue("duplicates", "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>").await?;
    let client = b.client(&queue);
    for body in ["first", "second"] {
        client.send_message(body, with_id("the same")).await?;
    }
    expect!(b.count(&queue).await? == 1, "there are {} messages", b.count(&queue).await?);
    let body = client.receive_and_delete_message().await?;
    expect!(body == "first", "received {body:?}");
    Ok(Outcome::Works)
}
