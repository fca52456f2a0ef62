// The frame of the views of one entity: its name, kind, status and counts, and the tabs.
import { api, entityPath } from "./api.js";
import { useLoad } from "./hooks.js";
import { html } from "./lib.js";
import { href } from "./router.js";
import { can } from "./session.js";
import { Badge, Icon, Loading, Page, Refusal, Tabs, Text } from "./ui.js";

const SUB_QUEUE = /\/\$(deadletterqueue|transfer\/\$deadletterqueue)$/i;
const UNDER_TOPIC = /^(.+?)\/subscriptions\/(.+)$/i;

/** Return {base, topic, subscription, subQueue} of an entity's name; the last three may be empty. */
export function nameParts(entity) {
  const base = entity.replace(SUB_QUEUE, "");
  const under = UNDER_TOPIC.exec(base);
  return { base, topic: under?.[1] ?? "", subscription: under?.[2] ?? "", subQueue: entity.slice(base.length + 1) };
}

/** The name of the dead-letter queue of an entity. */
export const deadLettersOf = (entity) => `${nameParts(entity).base}/$deadletterqueue`;

/** Return the entity with settings and counts: {value, problem, reload}, followed every few seconds. */
export const useEntity = (entity, everyMs = 5000) =>
  useLoad((signal) => api.get(entityPath(entity), { signal }), [entity], { everyMs });

function tabsOf(shown) {
  const { name, kind, counts, settings } = shown;
  const to = (tab) => href(["entities", name, tab]);
  const messages = { id: "messages", label: "Messages", count: counts.active + counts.scheduled };
  const search = { id: "search", label: "Search" };
  const settled = { id: "settings", label: "Settings" };
  let tabs;
  if (kind === "topic") {
    tabs = [
      { id: "subscriptions", label: "Subscriptions", count: shown.subscriptionCount },
      { ...messages, label: "Scheduled", count: counts.scheduled },
      ...(can("Manage", name) ? [{ id: "match", label: "Why did it not arrive?" }] : []), // it shows rules
      settled,
    ];
  } else {
    tabs = [
      messages,
      { id: "dead-letters", label: "Dead letters", count: counts.deadLetter, tone: "bad" },
      search,
      ...(settings.requiresSession ? [{ id: "sessions", label: "Sessions" }] : []),
      ...(kind === "subscription" ? [{ id: "rules", label: "Rules" }] : []),
      settled,
    ];
  }
  return tabs.map((tab) => ({ ...tab, href: to(tab.id) }));
}

/** The way to an entity: overview, topic, name. */
export function Crumbs({ entity, children }) {
  const { base, topic, subscription } = nameParts(entity);
  return html`<nav class="crumbs" aria-label="Breadcrumb">
    <a href=${href([])}>Overview</a><${Icon} name="right" size=${12} />
    ${topic && html`<a href=${href(["entities", topic])}><${Text} value=${topic} /></a><${Icon} name="right" size=${12} />`}
    ${children
      ? html`<a href=${href(["entities", base])}><${Text} value=${subscription || base} /></a><${Icon} name="right" size=${12} /><span>${children}</span>`
      : html`<span><${Text} value=${subscription || base} /></span>`}
  </nav>`;
}

/**
 * The frame. `tab`: the id of the current one; `actions`: buttons at the right, and the child, are functions of the
 * entity, `(shown) => html` and `(shown, reload) => html`, where `shown` is what `GET /entities/{entity}` answers for the base of the name.
 */
export function EntityPage({ entity, tab, actions, isFull, children }) {
  const { base, subscription } = nameParts(entity);
  const { value, problem, reload } = useEntity(base);
  if (value === undefined) return problem ? html`<div class="page"><${Refusal} problem=${problem} onRetry=${reload} /></div>` : html`<${Loading} />`;
  const title = html`<${Icon} name=${value.kind} size=${18} /> <${Text} value=${subscription || value.name} />
    ${value.status !== "Active" && html` <${Badge} tone="warn">${value.status}<//>`}`;
  return html`<${Page} title=${title} name=${value.name} above=${html`<${Crumbs} entity=${base} />`} actions=${actions?.(value)} isFull=${isFull}>
    <${Tabs} items=${tabsOf(value)} current=${tab} label="Parts of the entity" />
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${children(value, reload)}
  <//>`;
}
