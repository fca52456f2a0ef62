// An entity without a tab: shows the first one.
import { useEntity } from "../entity.js";
import { html, useEffect } from "../lib.js";
import { go } from "../router.js";
import { Loading, Refusal } from "../ui.js";

export default function Entity({ entity }) {
  const { value, problem, reload } = useEntity(entity, 0);
  useEffect(() => {
    if (value) go(["entities", value.name, value.kind === "topic" ? "subscriptions" : "messages"], {}, { replace: true });
  }, [value]);
  return problem ? html`<div class="page"><${Refusal} problem=${problem} onRetry=${reload} /></div>` : html`<${Loading} />`;
}
