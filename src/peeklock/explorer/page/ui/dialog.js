import { html, useEffect, useId, useRef, useState } from "../lib.js";
import { Button, IconButton } from "./button.js";
import { Refusal } from "./states.js";

/** A dialog. Esc and a click beside it close it. `size`: "small", "medium", "large"; `actions`: its buttons. */
export function Dialog({ title, size = "medium", onClose, children, actions, onSubmit, isBare }) {
  const ref = useRef(null);
  const id = useId();
  useEffect(() => {
    const element = ref.current;
    const before = document.activeElement;
    element.showModal();
    return () => {
      element.close();
      before?.focus?.();
    };
  }, []);
  const close = (event) => {
    event.preventDefault();
    onClose();
  };
  const submit = (event) => {
    event.preventDefault();
    onSubmit?.();
  };
  return html`<dialog
    ref=${ref}
    class=${`dialog ${size}`}
    aria-labelledby=${id}
    onCancel=${close}
    onMouseDown=${(event) => event.target === ref.current && close(event)}
  >
    <form class="dialog-form" onSubmit=${submit} novalidate>
      <header class=${isBare ? "offscreen" : "dialog-head"}>
        <h2 id=${id}>${title}</h2>
        ${!isBare && html`<${IconButton} icon="close" label="Close" onClick=${onClose} />`}
      </header>
      <div class="dialog-body">${children}</div>
      ${actions && html`<footer class="dialog-foot">${actions}</footer>`}
    </form>
  </dialog>`;
}

/**
 * Ask before something is done. The children are the preview: how many and which. `run` does it, may be async,
 * and the dialog stays with the refusal if it throws. `typed`: a text to type first, for what cannot be undone.
 */
export function Confirm({ title, label = "Continue", isDanger, typed, isReady = true, run, onClose, children }) {
  const [given, setGiven] = useState("");
  const [state, setState] = useState({ isBusy: false, problem: null });
  const isAllowed = isReady && (!typed || given === typed);
  const go = async () => {
    if (!isAllowed || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      await run();
      onClose();
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  const actions = html`
    <${Button} onClick=${onClose}>Cancel<//>
    <${Button} type="submit" kind=${isDanger ? "danger" : "primary"} disabled=${!isAllowed} isBusy=${state.isBusy}>
      ${label}
    <//>
  `;
  return html`<${Dialog} title=${title} size="small" onClose=${onClose} onSubmit=${go} actions=${actions}>
    ${children}
    ${typed &&
    html`<label class="field">
      <span class="field-label">Type <b class="mono">${typed}</b> to confirm</span>
      <input class="input" value=${given} autocomplete="off" onInput=${(event) => setGiven(event.target.value)} />
    </label>`}
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}
