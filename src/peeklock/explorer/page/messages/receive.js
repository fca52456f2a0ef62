// Receiving deferred messages: they are locked, shown, and settled by their locks.
import { api, entityPath } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { duration, plural } from "../format.js";
import { Button, Dialog, Refusal, Text, toast } from "../ui.js";
import { Which } from "./each.js";
import { isDeferred } from "./settle.js";

/** Seconds until an instant, counted down. */
function useLeft(until) {
  const [left, setLeft] = useState(Infinity);
  useEffect(() => {
    if (!until) return undefined;
    const count = () => setLeft(Math.max(0, (Date.parse(until) - Date.now()) / 1000));
    count();
    const timer = setInterval(count, 500);
    return () => clearInterval(timer);
  }, [until]);
  return left;
}

const lockPath = (entity, delivery) => entityPath(entity, "locks", delivery.lock.token);

export function ReceiveDialog({ entity, rows, onDone, onClose }) {
  const [fixed] = useState(rows.filter(isDeferred));
  const [held, setHeld] = useState(null); // deliveries
  const [state, setState] = useState({ busy: "", problem: null });
  const until = held?.length ? held.map((one) => one.lock.lockedUntil).sort()[0] : "";
  const left = useLeft(until);
  const guarded = (busy, call) => async () => {
    setState({ busy, problem: null });
    try {
      await call();
      setState({ busy: "", problem: null });
    } catch (problem) {
      setState({ busy: "", problem });
    }
  };
  const receive = guarded("receive", async () => {
    const body = { sequenceNumbers: fixed.map((row) => row.number) };
    setHeld((await api.post(entityPath(entity, "locks"), { body })).deliveries);
  });
  const each = async (call) => {
    const rest = held.slice();
    while (rest.length) {
      await call(rest[0]);
      rest.shift();
      setHeld(rest.slice());
    }
  };
  const numbers = () => fixed.map((row) => row.number);
  const complete = guarded("complete", async () => {
    await each((one) => api.del(lockPath(entity, one)));
    toast(`${plural(fixed.length, "message")} completed`);
    onDone(numbers(), "completed");
    onClose();
  });
  const release = guarded("release", async () => {
    await each((one) => api.patch(lockPath(entity, one), { body: { outcome: "abandon" } }));
    toast(`${plural(fixed.length, "message")} released: still deferred`);
    onDone(numbers(), "");
    onClose();
  });
  const renew = guarded("renew", async () => {
    const renewed = [];
    for (const one of held) renewed.push({ ...one, lock: { ...one.lock, ...(await api.post(lockPath(entity, one))) } });
    setHeld(renewed);
  });
  const actions = held
    ? html`<${Button} isBusy=${state.busy === "renew"} onClick=${renew}>Renew the locks<//>
        <${Button} isBusy=${state.busy === "release"} onClick=${release}>Release<//>
        <${Button} kind="danger" isBusy=${state.busy === "complete"} onClick=${complete}>Complete<//>`
    : html`<${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind="primary" isBusy=${state.busy === "receive"}>Receive<//>`;
  return html`<${Dialog} title="Receive deferred messages" onClose=${held?.length ? release : onClose} onSubmit=${held ? undefined : receive} actions=${actions}>
    ${held
      ? html`<p role="status">${left > 0 ? html`You hold the locks of <b>${plural(held.length, "message")}</b> for <b>${duration(left)}</b>.` : html`<span class="bad">The locks have lapsed.</span>`}</p>
          <ul class="which">${held.map((one) => html`<li key=${one.lock.token}><b>${one.message.sequenceNumber}</b> <span class="faint"><${Text} value=${one.message.body ?? one.message.bodyBase64 ?? ""} mono max=${200} /></span></li>`)}</ul>
          <p class="faint">Completed, they are gone. Released, or once the locks lapse, they are deferred again.</p>`
      : html`<p><b>${plural(fixed.length, "deferred message")}</b> will be locked for you, all or none. That counts as a delivery.</p><${Which} rows=${fixed} />`}
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}
