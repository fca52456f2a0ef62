// The subscriptions of a topic.
import { html, useMemo } from "../lib.js";
import { useCounts } from "../counts.js";
import { EntityPage } from "../entity.js";
import { EntityTable } from "../entity_table.js";
import { can } from "../session.js";
import { Empty, Loading, Refusal } from "../ui.js";

function Listed({ topic }) {
  const { list, problem } = useCounts();
  const rows = useMemo(() => {
    const start = `${topic.toLowerCase()}/subscriptions/`;
    return (list ?? []).filter((one) => one.name.toLowerCase().startsWith(start));
  }, [list, topic]);
  if (list === null) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const none = html`<${Empty} title="No subscriptions" icon="subscription">Messages sent to this topic are dropped.<//>`;
  return html`<${EntityTable} rows=${rows} label="Subscriptions" empty=${none} />`;
}

export default function Subscriptions({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="subscriptions" isFull>
    ${(shown) =>
      can("Manage")
        ? html`<${Listed} topic=${shown.name} />`
        : html`<${Empty} title="Not listed" icon="lock">The list needs a key with Manage on the namespace.<//>`}
  <//>`;
}
