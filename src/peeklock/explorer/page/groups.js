// Messages counted by a value of theirs, while the broker looks at them.
import { Problem, api, isCancelled } from "./api.js";
import { useEffect, useRef, useState } from "./lib.js";

const NOTHING = { progress: null, found: null, problem: null, isStopped: false };

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

/** Count by group: {progress, found, problem, isStopped, reload, stop}. `by` null = not yet. */
export function useGroups(entity, by) {
  const [state, setState] = useState(NOTHING);
  const [turn, setTurn] = useState(0);
  const control = useRef(null);
  const key = JSON.stringify(by);
  useEffect(() => {
    if (by === null) return undefined;
    const own = new AbortController();
    control.current = own;
    setState((before) => ({ ...before, progress: null, problem: null, isStopped: false }));
    readGroups(entity, by, { signal: own.signal, onProgress: (progress) => setState((before) => ({ ...before, progress })) }).then(
      (found) => setState({ ...NOTHING, found: { ...found, key } }),
      (problem) => isCancelled(problem) || setState((before) => ({ ...before, progress: null, problem })),
    );
    return () => own.abort();
  }, [entity, key, turn]);
  const stop = () => {
    control.current.abort();
    setState((before) => ({ ...before, progress: null, isStopped: true }));
  };
  const isCurrent = state.found?.key === key;
  return { ...state, found: isCurrent ? state.found : null, stop, reload: () => setTurn((before) => before + 1) };
}
