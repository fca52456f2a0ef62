//! Who may connect, and who is refused.

use crate::broker::{Broker, Failure};
use crate::{ask, expect, Outcome, Shown};
use azure_core::{error::ErrorKind, StatusCode};
use azure_messaging_servicebus::prelude::QueueClient;
use std::{sync::Arc, time::Duration};

const SOON: Option<Duration> = Some(Duration::from_secs(10));

/// The status by which the client was refused.
pub fn status<T>(result: Result<T, azure_core::Error>) -> Option<StatusCode> {
    match result.err()?.kind() {
        ErrorKind::HttpResponse { status, .. } => Some(*status),
        _ => None,
    }
}

async fn through(client: &QueueClient, body: &str) -> Result<(), Failure> {
    client.send_message(body, None).await?;
    let message = client.peek_lock_message2(SOON).await?;
    expect!(message.body() == body, "sent {body:?}, received {:?}", message.body());
    message.delete_message().await?;
    Ok(())
}

/// Over HTTPS: the authority has to be trusted, and the name to be one of the certificate.
pub async fn tls(b: &Broker) -> Shown {
    let queue = b.queue("tls", "").await?;
    through(&b.client(&queue), "over TLS").await?;

    let nobody = reqwest::Client::builder().tls_built_in_root_certs(false).build()?;
    let refused = b.client_over(Arc::new(nobody), &queue).send_message("never", None).await;
    expect!(said(&refused).contains("certificate verify failed"), "without the authority: {refused:?}");
    let elsewhere = b.by_another_name(&queue)?.send_message("never", None).await;
    expect!(said(&elsewhere).contains("hostname mismatch"), "by another name: {elsewhere:?}");
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::NotOffered("It speaks only HTTPS. It trusts the authority and checks the name."))
}

fn said(result: &Result<(), azure_core::Error>) -> String {
    format!("{result:?}")
}

pub async fn wrong_key(b: &Broker) -> Shown {
    let queue = b.queue("wrong-key", "").await?;
    let client = b.client_by_key(&queue, "bm90IHRoZSBrZXkgb2YgYW55Ym9keQ==");
    let sent = status(client.send_message("never", None).await);
    expect!(sent == Some(StatusCode::Unauthorized), "a send: {sent:?}");
    let received = status(client.receive_and_delete_message().await);
    expect!(received == Some(StatusCode::Unauthorized), "a receive: {received:?}");
    let locked = client.peek_lock_message2(SOON).await?;
    expect!(*locked.status() == StatusCode::Unauthorized, "a lock: {}", locked.status());
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Works)
}

pub async fn missing_entity(b: &Broker) -> Shown {
    let client = b.client(&b.name("nothing"));
    let sent = status(client.send_message("never", None).await);
    expect!(sent == Some(StatusCode::Gone), "a send: {sent:?}");
    let received = status(client.receive_and_delete_message().await);
    expect!(received == Some(StatusCode::Gone), "a receive: {received:?}");
    let locked = client.peek_lock_message2(SOON).await?;
    expect!(*locked.status() == StatusCode::Gone, "a lock: {}", locked.status());
    Ok(Outcome::Works)
}

pub async fn missing_right(b: &Broker) -> Shown {
    let queue = b.queue("missing-right", "").await?;
    b.client(&queue).send_message("for the listener", None).await?;
    let listener = b.listener(&queue)?;
    listener.peek_lock_message2(SOON).await?.delete_message().await?;
    let sent = status(listener.send_message("never", None).await);
    expect!(sent == Some(StatusCode::Unauthorized), "a send: {sent:?}");
    expect!(b.count(&queue).await? == 0, "a message is left");
    Ok(Outcome::Works)
}

pub async fn reconnect(b: &Broker) -> Shown {
    let queue = b.queue("reconnect", "").await?;
    let client = b.client(&queue);
    through(&client, "before").await?;
    ask("restart")?;
    through(&client, "after").await?;
    through(&client, "and on").await?;
    Ok(Outcome::Works)
}
