import { html, useState } from "../lib.js";
import { useTitle } from "../hooks.js";
import { session } from "../session.js";
import { signIn, start } from "../signing_in.js";
import { Button, Field, IconButton, Refusal } from "../ui.js";

export default function SignIn() {
  const before = session.value.problem;
  const [text, setText] = useState("");
  const [isHidden, setHidden] = useState(true);
  const [state, setState] = useState({ isBusy: false, problem: before });
  useTitle("Sign in");
  const enter = async (event) => {
    event.preventDefault();
    setState({ isBusy: true, problem: null });
    try {
      await signIn(text);
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  const { problem } = state;
  const isUnreachable = problem?.status === 0;
  return html`<main class="sign-in">
    <form class="sign-in-card" onSubmit=${enter} novalidate>
      <img src="$explorer/icon.svg" alt="" width="40" height="40" />
      <h1>Sign in to peeklock</h1>
      <p class="lead">With a connection string, a shared access signature, or a JSON web token.</p>
      <${Field}
        label="Connection string or token"
        type=${isHidden ? "password" : "text"}
        mono
        value=${text}
        onInput=${setText}
        placeholder="Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…"
        autocomplete="off"
        spellcheck="false"
        autofocus
        help="It stays in the memory of this tab, and is forgotten when the tab is closed. The key itself is never sent: the page signs with it."
      >
        <${IconButton} icon=${isHidden ? "eye" : "hidden"} label=${isHidden ? "Show it" : "Hide it"} onClick=${() => setHidden(!isHidden)} />
      <//>
      ${problem && html`<${Refusal} problem=${problem.status === undefined ? { title: "Not signed in", detail: problem.message } : problem} onRetry=${isUnreachable ? start : undefined} />`}
      <${Button} type="submit" kind="primary" isBusy=${state.isBusy} disabled=${!text.trim()}>Sign in<//>
      <p class="faint">The command <code>peeklock keys list</code> on the broker's machine shows connection strings.</p>
    </form>
  </main>`;
}
