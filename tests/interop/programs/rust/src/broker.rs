//! The Service Bus that is tried: clients of it, and its entities, which the crate cannot make, by HTTPS.
//!
//! What is needed beyond namespace, rule and key:
//!
//! - Trust. azure_core's client asks OpenSSL, which reads SSL_CERT_FILE; see run.sh.
//! - The address. The crate makes https://NAMESPACE.servicebus.windows.net/ of the namespace. It takes any `HttpClient`,
//!   so one is put before azure_core's that changes scheme, host and port: `Redirected`.

use azure_core::{
    auth::Secret, base64, headers, hmac::hmac_sha256, HttpClient, Method, Request, Response, StatusCode, Url,
};
use azure_messaging_servicebus::prelude::{QueueClient, TopicClient};
use std::{cell::RefCell, error::Error, sync::Arc, time::Duration, time::SystemTime};
use tokio::time::sleep;
use url::form_urlencoded::byte_serialize;

pub type Failure = Box<dyn Error>;

/// Less than Retry-After says, since a feature has 28 s in all.
const WHILE_BUSY: Duration = Duration::from_secs(1);
const AZURE: &str = ".servicebus.windows.net";
const ROOT: &str = "PEEKLOCK_TEST_CONNECTION_STRING";

/// Sends each request to the broker, whatever host it is for, and again while the broker is busy.
#[derive(Debug)]
pub struct Redirected {
    pub origin: Url,
    pub client: Arc<dyn HttpClient>,
}

#[async_trait::async_trait]
impl HttpClient for Redirected {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<Response> {
        let mut request = request.clone();
        let url = request.url_mut();
        url.set_host(self.origin.host_str())?;
        url.set_port(self.origin.port()).expect("a URL with a host takes a port");
        loop {
            let answer = self.client.execute_request(&request).await?;
            if answer.status() != StatusCode::ServiceUnavailable {
                return Ok(answer);
            }
            sleep(WHILE_BUSY).await;
        }
    }
}

/// What a connection string says.
struct Told {
    origin: Url,
    rule: String,
    key: String,
}

impl Told {
    fn of(variable: &str) -> Result<Told, Failure> {
        let text = std::env::var(variable).map_err(|error| format!("{variable}: {error}"))?;
        let value = |name: &str| {
            let found = text.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.map(str::to_owned).ok_or(format!("{variable} has no {name}"))
        };
        let origin = Url::parse(&value("Endpoint")?.replacen("sb://", "https://", 1))?;
        Ok(Told { origin, rule: value("SharedAccessKeyName")?, key: value("SharedAccessKey")? })
    }
}

pub struct Broker {
    told: Told,
    http: Arc<dyn HttpClient>,
    run: String,
    made: RefCell<Vec<String>>,
}

impl Broker {
    pub fn new() -> Result<Broker, Failure> {
        let told = Told::of(ROOT)?;
        let http = redirected(&told.origin, azure_core::new_http_client());
        let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
        Ok(Broker { told, http, run: format!("rust-{run:x}-"), made: RefCell::default() })
    }

    pub fn name(&self, what: &str) -> String {
        format!("{}{what}", self.run)
    }

    /// A client of a queue, or of another entity by its path.
    pub fn client(&self, queue: &str) -> QueueClient {
        self.client_with(self.http.clone(), queue, &self.told.rule, &self.told.key)
    }

    pub fn client_by_key(&self, queue: &str, key: &str) -> QueueClient {
        self.client_with(self.http.clone(), queue, &self.told.rule, key)
    }

    pub fn client_over(&self, http: Arc<dyn HttpClient>, queue: &str) -> QueueClient {
        self.client_with(redirected(&self.told.origin, http), queue, &self.told.rule, &self.told.key)
    }

    /// A client that looks for another name in the broker's certificate.
    pub fn by_another_name(&self, queue: &str) -> Result<QueueClient, Failure> {
        let Told { origin, rule, key } = &self.told;
        let mut other = origin.clone();
        other.set_host(Some("elsewhere.example"))?;
        let address = origin.socket_addrs(|| None)?[0];
        let client = reqwest::Client::builder().resolve("elsewhere.example", address).build()?;
        Ok(self.client_with(redirected(&other, Arc::new(client)), queue, rule, key))
    }

    /// A client by a rule that may only listen.
    pub fn listener(&self, queue: &str) -> Result<QueueClient, Failure> {
        let told = Told::of("PEEKLOCK_LISTEN_CONNECTION_STRING")?;
        Ok(self.client_with(self.http.clone(), queue, &told.rule, &told.key))
    }

    fn client_with(&self, http: Arc<dyn HttpClient>, queue: &str, rule: &str, key: &str) -> QueueClient {
        QueueClient::new(http, self.namespace(), queue, rule, key.to_owned()).expect("new never fails")
    }

    pub fn topic_client(&self, topic: &str) -> TopicClient {
        let Told { rule, key, .. } = &self.told;
        TopicClient::new(self.http.clone(), self.namespace(), topic, rule, key.clone()).expect("new never fails")
    }

    fn namespace(&self) -> String {
        self.told.origin.host_str().unwrap_or_default().trim_end_matches(AZURE).to_owned()
    }

    /// Make a queue; settings are elements of its description.
    pub async fn queue(&self, what: &str, settings: &str) -> Result<String, Failure> {
        let name = self.name(what);
        self.made.borrow_mut().push(name.clone());
        self.put(&name, "QueueDescription", settings).await?;
        Ok(name)
    }

    /// Make a topic with subscriptions, each by its name and the elements of its description.
    pub async fn topic(&self, what: &str, subscriptions: &[(&str, &str)]) -> Result<String, Failure> {
        let name = self.name(what);
        self.made.borrow_mut().push(name.clone());
        self.put(&name, "TopicDescription", "").await?;
        for (subscription, settings) in subscriptions {
            self.put(&format!("{name}/Subscriptions/{subscription}"), "SubscriptionDescription", settings).await?;
        }
        Ok(name)
    }

    /// Count the messages of a queue, those under lock too.
    pub async fn count(&self, queue: &str) -> Result<u32, Failure> {
        let text = self.ask(Method::Get, queue, String::new()).await?;
        let number = text.split_once("<MessageCount>").and_then(|(_, rest)| rest.split_once('<'));
        Ok(number.ok_or(format!("no count of messages in {text}"))?.0.parse()?)
    }

    pub async fn remove_entities(&self) -> Result<(), Failure> {
        for name in self.made.take() {
            self.ask(Method::Delete, &name, String::new()).await?;
        }
        Ok(())
    }

    async fn put(&self, path: &str, kind: &str, settings: &str) -> Result<String, Failure> {
        let body = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
             <{kind} xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\" \
             xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">{settings}</{kind}></content></entry>"
        );
        self.ask(Method::Put, path, body).await
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> Result<String, Failure> {
        let mut url = self.told.origin.join(path)?;
        url.set_query(Some("api-version=2021-05"));
        let mut request = Request::new(url, method);
        request.insert_header(headers::AUTHORIZATION, self.token()?);
        request.insert_header(headers::CONTENT_TYPE, "application/atom+xml;type=entry;charset=utf-8");
        request.set_body(body);
        let answer = self.http.execute_request_check_status(&request).await?;
        Ok(String::from_utf8(answer.body().to_vec())?)
    }

    fn token(&self) -> Result<String, Failure> {
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let Told { origin, rule, key } = &self.told;
        let resource = encoded(origin.as_str());
        let expiry = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() + 3600;
        let signature = hmac_sha256(&format!("{resource}\n{expiry}"), &Secret::new(base64::encode(key)))?;
        let signature = encoded(&signature);
        Ok(format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={rule}"))
    }
}

/// Azure's own addresses stay as they are.
fn redirected(origin: &Url, client: Arc<dyn HttpClient>) -> Arc<dyn HttpClient> {
    if origin.host_str().is_some_and(|host| host.ends_with(AZURE)) {
        return client;
    }
    Arc::new(Redirected { origin: origin.clone(), client })
}
