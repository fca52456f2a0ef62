//! Both receive modes, what is done with a lock, and subscriptions.

use crate::broker::{Broker, Failure};
use crate::connections::status;
use crate::{expect, Outcome, Shown};
use azure_core::{headers::HeaderName, headers::Headers, StatusCode};
use azure_messaging_servicebus::service_bus::{
    BrokerProperties, PeekLockResponse, SendMessageOptions, SettableBrokerProperties,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::time::sleep;

pub const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// The shortest lock that Service Bus allows.
const SHORT_LOCK: &str = "<LockDuration>PT5S</LockDuration>";
/// Dates of BrokerProperties have whole seconds.
const A_SECOND: Duration = Duration::from_millis(1200);

/// What the broker knows of a message that was locked.
pub fn known(message: &PeekLockResponse) -> Result<BrokerProperties, Failure> {
    expect!(*message.status() == StatusCode::Created, "no message came: {}", message.status());
    Ok(message.broker_properties().ok_or("a message without BrokerProperties")?)
}

/// A header of a message, a property for one.
pub fn header(message: &PeekLockResponse, name: &'static str) -> String {
    let headers: Headers = message.custom_properties().expect("headers are headers");
    headers.get_optional_string(&HeaderName::from_static(name)).unwrap_or_default()
}

async fn sleep_until(at: OffsetDateTime) {
    sleep((at - OffsetDateTime::now_utc()).try_into().unwrap_or_default()).await;
}

pub async fn receive_and_delete(b: &Broker) -> Shown {
    let queue = b.queue("receive-and-delete", "").await?;
    let client = b.client(&queue);
    client.send_message("gone", None).await?;
    let body = client.receive_and_delete_message().await?;
    expect!(body == "gone", "received {body:?}");
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Works)
}

pub async fn complete(b: &Broker) -> Shown {
    let queue = b.queue("complete", "").await?;
    let client = b.client(&queue);
    client.send_message("done", None).await?;
    let message = client.peek_lock_message2(SOON).await?;
    expect!(message.body() == "done" && known(&message)?.delivery_count == 1, "locked {:?}", message.body());
    message.delete_message().await?;
    expect!(b.count(&queue).await? == 0, "a message is left");
    let again = status(message.delete_message().await);
    expect!(again == Some(StatusCode::NotFound), "to complete it again: {again:?}");

    let asked = Instant::now();
    let none = client.peek_lock_message2(Some(Duration::from_secs(1))).await?;
    expect!(*none.status() == StatusCode::NoContent, "from an empty queue: {}", none.status());
    let waited = asked.elapsed();
    expect!(waited > Duration::from_millis(900) && waited < Duration::from_secs(5), "it waited {waited:?}");
    Ok(Outcome::Works)
}

pub async fn abandon(b: &Broker) -> Shown {
    let queue = b.queue("abandon", "").await?;
    let client = b.client(&queue);
    client.send_message("again", None).await?;
    let first = client.peek_lock_message2(SOON).await?;
    first.unlock_message().await?;
    let second = client.peek_lock_message2(SOON).await?;
    let counts = (known(&first)?.delivery_count, known(&second)?.delivery_count);
    expect!(counts == (1, 2), "the delivery counts are {counts:?}");
    second.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn dead_letter(b: &Broker) -> Shown {
    let queue = b.queue("dead-letter", "<MaxDeliveryCount>1</MaxDeliveryCount>").await?;
    let client = b.client(&queue);
    client.send_message("bad", None).await?;
    client.peek_lock_message2(SOON).await?.unlock_message().await?;
    let found = b.client(&format!("{queue}/$DeadLetterQueue")).peek_lock_message2(SOON).await?;
    let reason = header(&found, "deadletterreason");
    expect!(found.body() == "bad" && reason == "\"MaxDeliveryCountExceeded\"", "{:?}: {reason}", found.body());
    found.delete_message().await?;
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::NotOffered(
        "It cannot dead-letter. A message that was delivered too often can be received from `QUEUE/$DeadLetterQueue`, with its reason.",
    ))
}

pub async fn renew_lock(b: &Broker) -> Shown {
    let queue = b.queue("renew-lock", SHORT_LOCK).await?;
    let client = b.client(&queue);
    client.send_message("held", None).await?;
    let message = client.peek_lock_message2(SOON).await?;
    sleep(Duration::from_secs(3)).await;
    message.renew_message_lock().await?;
    sleep_until(known(&message)?.locked_until_utc + A_SECOND).await;
    message.delete_message().await?;
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Works)
}

pub async fn lock_lost(b: &Broker) -> Shown {
    let queue = b.queue("lock-lost", SHORT_LOCK).await?;
    let client = b.client(&queue);
    client.send_message("slow", None).await?;
    let message = client.peek_lock_message2(SOON).await?;
    sleep_until(known(&message)?.locked_until_utc + A_SECOND).await;
    let completed = status(message.delete_message().await);
    expect!(completed == Some(StatusCode::NotFound), "completing it: {completed:?}");
    let renewed = status(message.renew_message_lock().await);
    expect!(renewed == Some(StatusCode::NotFound), "renewing it: {renewed:?}");
    let again = client.peek_lock_message2(SOON).await?;
    expect!(known(&again)?.delivery_count == 2, "the delivery count is {}", known(&again)?.delivery_count);
    again.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn session(b: &Broker) -> Shown {
    let queue = b.queue("session", "<RequiresSession>true</RequiresSession>").await?;
    let client = b.client(&queue);
    let one = SettableBrokerProperties { session_id: Some("one".into()), ..Default::default() };
    let options = SendMessageOptions { broker_properties: Some(one), ..Default::default() };
    client.send_message("in a session", Some(options)).await?;
    expect!(b.count(&queue).await? == 1, "it was not stored");
    let locked = client.peek_lock_message2(SOON).await?;
    expect!(*locked.status() == StatusCode::MethodNotAllowed, "a lock: {}", locked.status());
    Ok(Outcome::NotOffered(
        "It can send with a session id. To receive from a queue with sessions is refused, as in Azure.",
    ))
}

pub async fn subscriptions(b: &Broker) -> Shown {
    let topic = b.topic("subscriptions", &[("left", ""), ("right", "")]).await?;
    let client = b.topic_client(&topic);
    client.topic_sender().send_message("news", None).await?;
    let left = client.subscription_receiver("left").receive_and_delete_message().await?;
    expect!(left == "news", "left received {left:?}");
    let right = client.subscription_receiver("right").peek_lock_message2(SOON).await?;
    expect!(right.body() == "news", "right received {:?}", right.body());
    right.delete_message().await?;
    Ok(Outcome::Works)
}

pub async fn rules(b: &Broker) -> Shown {
    let expensive =
        "<DefaultRuleDescription><Filter i:type=\"SqlFilter\"><SqlExpression>price &gt; 100</SqlExpression>\
        </Filter><Action i:type=\"SqlRuleAction\"><SqlExpression>SET class = 'expensive'</SqlExpression></Action>\
        <Name>by-price</Name></DefaultRuleDescription>";
    let apples = "<DefaultRuleDescription><Filter i:type=\"CorrelationFilter\"><Label>apple</Label></Filter>\
        <Name>by-label</Name></DefaultRuleDescription>";
    let topic = b.topic("rules", &[("expensive", expensive), ("apples", apples)]).await?;
    let client = b.topic_client(&topic);
    for (label, price) in [("apple", "2"), ("pear", "3"), ("car", "20000")] {
        let labelled = SettableBrokerProperties { label: Some(label.into()), ..Default::default() };
        let options = SendMessageOptions {
            broker_properties: Some(labelled),
            custom_properties: Some(HashMap::from([("price".into(), price.into())])),
            ..Default::default()
        };
        client.topic_sender().send_message(label, Some(options)).await?;
    }
    for (subscription, body, class) in [("expensive", "car", "\"expensive\""), ("apples", "apple", "")] {
        let receiver = client.subscription_receiver(subscription);
        let message = receiver.peek_lock_message2(SOON).await?;
        let found = (message.body(), header(&message, "class"));
        expect!(found == (body.into(), class.into()), "{subscription} has {found:?}");
        message.delete_message().await?;
        let rest = receiver.peek_lock_message2(Some(Duration::ZERO)).await?;
        expect!(*rest.status() == StatusCode::NoContent, "{subscription} also has {:?}", rest.body());
    }
    Ok(Outcome::Works)
}
