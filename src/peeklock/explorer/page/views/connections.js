// Who is connected, and what each does.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { page } from "../api.js";
import { age, number, plural, rate } from "../format.js";
import { useLoad, useSettled } from "../hooks.js";
import { href } from "../router.js";
import { Badge, Button, Confirm, Dialog, Empty, Facts, IconButton, Loading, Page, Refusal, Table, Text, Time, toast, useShortcuts } from "../ui.js";

const EVERY_MS = 2000; // between two answers; each takes a second

const clientOf = (row) => [row.client.product, row.client.version].filter(Boolean).join(" ");
const entitiesOf = (row) => [...new Set(row.links.map((link) => link.entity).filter(Boolean))];
const Rate = ({ value }) => html`<span class=${value ? "count" : "count none"}>${rate(value)}</span>`;

const wordsOf = (row) => [row.id, row.peer, clientOf(row), row.client.containerId, row.namespace, ...row.identities, ...entitiesOf(row)].join("\n").toLowerCase();

function does(row) {
  const counts = new Map();
  for (const { role } of row.links) counts.set(role, (counts.get(role) ?? 0) + 1);
  return [...counts].map(([role, count]) => plural(count, role, role === "reply" ? "replies" : `${role}s`)).join(", ");
}

const columnsFor = (close) => [
  { key: "id", title: "Id", value: (row) => row.id, cell: (row) => row.id, width: 64 },
  { key: "peer", title: "From", value: (row) => row.peer, cell: (row) => html`<${Text} value=${row.peer} mono />`, minWidth: 130, drop: 1 },
  { key: "client", title: "Client", value: clientOf, cell: (row) => html`<${Text} value=${clientOf(row)} />`, minWidth: 140, grow: 2 },
  { key: "identity", title: "Key", value: (row) => row.identities.join(", "), cell: (row) => html`<${Text} value=${row.identities.join(", ")} />`, minWidth: 140, drop: 3 },
  { key: "entities", title: "Entities", value: (row) => entitiesOf(row).join(", "), cell: (row) => html`<${Text} value=${entitiesOf(row).join(", ")} />`, minWidth: 120, grow: 2, drop: 4 },
  { key: "links", title: "Links", value: (row) => row.links.length, cell: (row) => html`<span title=${does(row)} class=${row.links.length ? "count" : "count none"}>${number(row.links.length)}</span>`, width: 72, align: "end", drop: 5, isDownFirst: true },
  { key: "rate", title: "Rate", value: (row) => row.rate, cell: (row) => html`<${Rate} value=${row.rate} />`, width: 84, align: "end", drop: 2, isDownFirst: true },
  { key: "age", title: "Open for", value: (row) => row.ageSeconds, cell: (row) => age(row.openedAt), width: 100, align: "end", drop: 6, isDownFirst: true },
  { key: "close", title: html`<span class="offscreen">Close</span>`, cell: (row) => html`<${IconButton} icon="close" label=${`Close connection ${row.id}`} onClick=${() => close(row)} />`, width: 52, align: "end" },
];

const LINK_COLUMNS = [
  { key: "role", title: "Role", value: (row) => row.role, cell: (row) => row.role, width: 104 },
  { key: "entity", title: "Entity", value: (row) => row.entity, cell: (row) => html`<${Text} value=${row.entity} />`, minWidth: 120, grow: 2 },
  { key: "session", title: "Session", value: (row) => row.sessionId, cell: (row) => html`<${Text} value=${row.sessionId} />`, minWidth: 90, drop: 3 },
  { key: "credit", title: "Credit", value: (row) => row.credit, cell: (row) => number(row.credit), width: 78, align: "end", drop: 2 },
  { key: "unsettled", title: "Unsettled", value: (row) => row.unsettled, cell: (row) => number(row.unsettled), width: 96, align: "end", drop: 1 },
  { key: "deliveries", title: "Deliveries", value: (row) => row.deliveries, cell: (row) => number(row.deliveries), width: 100, align: "end", drop: 4 },
  { key: "rate", title: "Rate", value: (row) => row.rate, cell: (row) => html`<${Rate} value=${row.rate} />`, width: 84, align: "end" },
];

function Details({ row, isGone, onClose, onEnd }) {
  const items = [
    ["From", html`<${Text} value=${row.peer} mono />`],
    ["Client", html`<${Text} value=${clientOf(row) || "–"} />`],
    ["Container", html`<${Text} value=${row.client.containerId} mono />`],
    ["Keys and roles", html`<${Text} value=${row.identities.join(", ") || "–"} />`],
    ["Namespace", html`<${Text} value=${row.namespace} />`],
    ["Opened", html`<${Time} value=${row.openedAt} /> `],
    ["TLS", html`<${Badge} tone=${row.tls ? "good" : "plain"}>${row.tls ? "yes" : "no"}<//>`],
    ["Entities", html`<span class="row-of">${entitiesOf(row).map((name) => html`<a key=${name} href=${href(["entities", name])} onClick=${onClose}><${Text} value=${name} /></a>`)}</span>`],
  ];
  const actions = html`<${Button} kind="danger" disabled=${isGone} onClick=${onEnd}>Close the connection<//><${Button} onClick=${onClose}>Done<//>`;
  const links = row.links.map((link, at) => ({ ...link, at }));
  return html`<${Dialog} title=${`Connection ${row.id}`} size="large" onClose=${onClose} actions=${actions}>
    ${isGone && html`<p class="note warn" role="status">It is closed now. This is what it last did.</p>`}
    <${Facts} items=${items} />
    <${Table} label="Links" rows=${links} rowKey=${(link) => link.at} columns=${LINK_COLUMNS} height=${`${Math.min(8, Math.max(3, links.length)) * 34 + 36}px`}
      empty=${html`<${Empty} title="No links">The client has opened none yet.<//>`} />
  <//>`;
}

function Close({ row, onClose, onDone }) {
  const run = async () => {
    await page("DELETE", `connections/${row.id}`);
    toast(`Connection ${row.id} is closed`);
    onDone();
  };
  return html`<${Confirm} title=${`Close connection ${row.id}`} label="Close it" isDanger run=${run} onClose=${onClose}>
    <p>The client <b><${Text} value=${clientOf(row) || row.client.containerId} /></b> from <${Text} value=${row.peer} mono /> has ${plural(row.links.length, "link")}. It gets the error <code>amqp:connection:forced</code>, and may connect again. Messages it has locked are delivered again once their locks end.</p>
  <//>`;
}

export default function Connections({ query }) {
  const { value, problem, reload } = useLoad((signal) => page("GET", "connections", { signal }), [], { everyMs: EVERY_MS });
  const [text, setText] = useState("");
  const [open, setOpen] = useState(null); // a row
  const [closing, setClosing] = useState(null);
  const isNamedShown = useRef(false); // the connection that the address names is opened once
  const wanted = useSettled(text.trim().toLowerCase(), 80);
  const columns = useMemo(() => columnsFor(setClosing), []);
  const all = value?.connections;
  const rows = useMemo(() => (all ?? []).filter((row) => !wanted || wordsOf(row).includes(wanted)), [all, wanted]);
  useShortcuts([{ keys: "/", name: "Search the table", run: () => document.getElementById("connection-search").focus() }]);
  useEffect(() => {
    const named = !isNamedShown.current && query.id && all?.find((row) => String(row.id) === query.id);
    if (!named) return;
    isNamedShown.current = true;
    setOpen(named);
  }, [all]);
  const now = open && all?.find((row) => row.id === open.id);
  const none = wanted
    ? html`<${Empty} title="No connection matches" icon="search"><button type="button" class="link" onClick=${() => setText("")}>Show all</button><//>`
    : html`<${Empty} title="Nobody is connected" icon="connections"><a href=${href(["connect"])}>Connect a program</a><//>`;
  return html`<${Page} title="Connections" lead="AMQP connections that are open, and what each does." isFull>
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${!all && !problem && html`<${Loading} />`}
    ${all && html`<div class="toolbar">
        <input id="connection-search" class="input search" type="search" placeholder="Search  /" aria-label="Search connections" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} />
        <span class="faint" role="status">${rows.length === all.length ? plural(all.length, "connection") : `${number(rows.length)} of ${plural(all.length, "connection")}`}</span>
      </div>
      <${Table} label="Connections" rows=${rows} rowKey=${(row) => row.id} columns=${columns} sort=${{ key: "rate", isDown: true }} onOpen=${setOpen} empty=${none} />`}
    ${open && !closing && html`<${Details} row=${now ?? open} isGone=${!now} onClose=${() => setOpen(null)} onEnd=${() => setClosing(now)} />`}
    ${closing && html`<${Close} row=${closing} onClose=${() => setClosing(null)} onDone=${() => (setOpen(null), reload())} />`}
  <//>`;
}
