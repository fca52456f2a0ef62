// Messages counted by a value of theirs, while the broker looks at them.
import { Problem, api, isCancelled } from "./api.js";
import { useEffect, useState } from "./lib.js";

const NOTHING = { progress: null, found: null, problem: null };

/** Read the groups of one entity. Returns {groups, count, examined}. Throws: Problem. */
export async function readGroups(entity, by, { signal, onProgress = () => {} }) {
  let end = null;
  const onEvent = (name, data) => {
    if (name === "progress") onProgress(data);
    else if (name === "end") end = data;
    else if (name === "problem") throw new Problem(data);
  };
  await api.stream("POST", "groups", onEvent, { body: { entity, by }, signal });
  if (end === null) throw new Problem({ status: 0, title: "The count has ended before its time", detail: "The broker may be restarting." });
  return end;
}

/** Count by group: {progress, found, problem, reload}. `by` null = not yet. */
export function useGroups(entity, by) {
  const [state, setState] = useState(NOTHING);
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify(by);
  useEffect(() => {
    if (by === null) return undefined;
    const control = new AbortController();
    setState((before) => ({ ...before, progress: null, problem: null }));
    readGroups(entity, by, { signal: control.signal, onProgress: (progress) => setState((before) => ({ ...before, progress })) }).then(
      (found) => setState({ progress: null, found: { ...found, key }, problem: null }),
      (problem) => isCancelled(problem) || setState((before) => ({ ...before, progress: null, problem })),
    );
    return () => control.abort();
  }, [entity, key, turn]);
  const isCurrent = state.found?.key === key;
  return { ...state, found: isCurrent ? state.found : null, reload: () => setTurn((before) => before + 1) };
}
