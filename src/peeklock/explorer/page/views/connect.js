// How programs connect to this broker.
import { html, useState } from "../lib.js";
import { page } from "../api.js";
import { connectionString } from "../connection_string.js";
import { useLoad } from "../hooks.js";
import { can, keyInUse, session } from "../session.js";
import { SNIPPETS } from "../snippets.js";
import { Badge, Button, Code, Copy, Facts, Field, Loading, Page, Refusal, Tabs } from "../ui.js";

const isSecure = location.protocol === "https:";
const hidden = (text) => text.replace(/(SharedAccessKey=)[^;]+/, "$1••••••••");

/** Return the keys that can be shown: [{name, key, rights}]. */
async function keysOf(signal) {
  const own = keyInUse();
  if (!session.value.me.isDevelopment && can("Manage")) {
    try {
      const { keys } = await page("GET", "$api/v1/keys", { signal });
      return keys.map((rule) => ({ name: rule.name, key: rule.primaryKey, rights: rule.rights.join(", ") }));
    } catch (problem) {
      if (problem.status !== 409 || !own) throw problem;
    }
  }
  return own ? [{ name: own.keyName, key: own.key, rights: session.value.me.rights.join(", ") }] : [];
}

function ConnectionString({ keys }) {
  const [name, setName] = useState(keys[0].name);
  const [isShown, setShown] = useState(false);
  const { key } = keys.find((one) => one.name === name);
  const text = connectionString(name, key, session.value.me.path);
  return html`<section class="card">
    <h2>Connection string</h2>
    ${keys.length > 1 &&
    html`<${Field} label="Key" type="select" value=${name} onInput=${setName} options=${keys.map((one) => [one.name, `${one.name} (${one.rights})`])} />`}
    <div class="secret">
      <code class="mono" data-testid="connection-string">${isShown ? text : hidden(text)}</code>
      <${Button} small icon=${isShown ? "hidden" : "eye"} onClick=${() => setShown(!isShown)}>${isShown ? "Hide the key" : "Show the key"}<//>
      <${Copy} text=${text} label="Copy the connection string">Copy<//>
    </div>
    <p class="faint">
      ${location.port
        ? "Every port takes AMQP, AMQP over WebSocket, HTTP and TLS: this address works for all of them."
        : "Clients connect to port 5671 of this host, and with AMQP over WebSocket to port 443."}
    </p>
  </section>`;
}

function Snippets() {
  const [language, setLanguage] = useState(SNIPPETS[0].id);
  const shown = SNIPPETS.find((one) => one.id === language);
  return html`<section class="card">
    <h2>From a program</h2>
    <${Tabs} items=${SNIPPETS.map(({ id, label }) => ({ id, label }))} current=${language} onChoose=${setLanguage} label="Languages" />
    <div class="stack" role="tabpanel" aria-label=${shown.label}>
      <p>Install it:</p>
      <${Code} text=${shown.install} label="Installation" isPlain />
      <p>Set the variable <code>SERVICEBUS_CONNECTION_STRING</code>, then send a message and receive it:</p>
      <${Code} text=${shown.code} label=${`Program in ${shown.label}`} isProgram />
    </div>
  </section>`;
}

function Trust() {
  const host = location.hostname;
  return html`<section class="card">
    <h2>Trust the certificate</h2>
    <p>
      The broker signs its certificate with an authority of its own unless it was started with one of yours. Clients that use TLS
      need to trust it. On the broker's machine, with its data folder:
    </p>
    <${Code} text=${"peeklock ca ./data --print > peeklock-ca.pem"} label="Command" isPlain />
    <${Facts}
      items=${[
        ["Python", html`<code>SSL_CERT_FILE=peeklock-ca.pem</code>, or <code>connection_verify="peeklock-ca.pem"</code>`],
        ["JavaScript", html`<code>NODE_EXTRA_CA_CERTS=peeklock-ca.pem</code>`],
        ["Go", html`<code>SSL_CERT_FILE=peeklock-ca.pem</code>`],
        [".NET", html`on Linux <code>SSL_CERT_FILE=peeklock-ca.pem</code>; else the certificate store of the system`],
        ["Java", html`<code>keytool -importcert -file peeklock-ca.pem -alias peeklock -keystore …</code>`],
      ]}
    />
    ${!isSecure && html`<p class="faint">On this machine clients may do without TLS: <code>UseDevelopmentEmulator=true</code> in the connection string says so. The address <code>${host}</code> takes TLS too.</p>`}
  </section>`;
}

export default function Connect() {
  const { value: keys, problem, reload } = useLoad(keysOf, []);
  const { me } = session.value;
  const port = location.port || (isSecure ? "443" : "80");
  return html`<${Page} title="Connect" lead="What a program needs to use this broker.">
    <div class="columns">
      <div class="stack">
        ${problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : !keys ? html`<${Loading} />` : ""}
        ${keys && keys.length > 0 && html`<${ConnectionString} keys=${keys} />`}
        ${keys && keys.length === 0 && html`<section class="card"><h2>Connection string</h2><p>You are signed in with a token, which has no key to show. Programs can use such a token too.</p></section>`}
        <section class="card">
          <h2>Address</h2>
          <${Facts}
            items=${[
              ["Host", html`<code>${location.hostname}</code> <${Copy} text=${location.hostname} label="Copy the host" />`],
              ["Port", html`<code>${port}</code> <${Copy} text=${port} label="Copy the port" />`],
              ["Namespace", me.namespace || undefined],
              ["TLS", html`<${Badge} tone=${isSecure ? "good" : "plain"}>${isSecure ? "this page came by TLS" : "this page came without TLS"}<//>`],
              ["WebSocket", html`<code>${isSecure ? "wss" : "ws"}://${location.host}/$servicebus/websocket</code>`],
            ]}
          />
        </section>
        <${Trust} />
      </div>
      <${Snippets} />
    </div>
  <//>`;
}
