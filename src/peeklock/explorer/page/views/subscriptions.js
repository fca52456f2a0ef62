// The subscriptions of a topic.
import { html, useMemo } from "../lib.js";
import { useCounts } from "../counts.js";
import { EntityPage } from "../entity.js";
import { EntityTable } from "../entity_table.js";
import { plural } from "../format.js";
import { go, href } from "../router.js";
import { can } from "../session.js";
import { Empty, LinkButton, Loading, Refusal, useShortcuts } from "../ui.js";
import { useCommands } from "../ui/palette.js";

function Listed({ topic }) {
  const { list, problem } = useCounts();
  const rows = useMemo(() => {
    const start = `${topic.toLowerCase()}/subscriptions/`;
    return (list ?? []).filter((one) => one.name.toLowerCase().startsWith(start));
  }, [list, topic]);
  const create = () => go(["create"], { topic });
  useShortcuts([{ keys: "n", name: "New subscription", run: create }]);
  useCommands([{ name: "New subscription", icon: "plus", run: create }]);
  if (list === null) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const none = html`<${Empty} title="No subscriptions" icon="subscription">Messages sent to this topic are dropped.<//>`;
  return html`<div class="toolbar">
      <span class="faint" role="status">${plural(rows.length, "subscription")}</span>
      <div class="spread"></div>
      <${LinkButton} icon="plus" kind="primary" href=${href(["create"], { topic })}>New subscription<//>
    </div>
    ${problem && html`<${Refusal} problem=${problem} />`}
    <${EntityTable} rows=${rows} label="Subscriptions" empty=${none} />`;
}

export default function Subscriptions({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="subscriptions" isFull>
    ${(shown) =>
      can("Manage")
        ? html`<${Listed} topic=${shown.name} />`
        : html`<${Empty} title="Not listed" icon="lock">The list needs a key with Manage on the namespace.<//>`}
  <//>`;
}
