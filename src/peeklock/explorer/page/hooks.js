// Hooks of the page: loading, and what is done every so often.
import { useCallback, useEffect, useRef, useState } from "./lib.js";
import { isCancelled } from "./api.js";

/**
 * Load a value: `load(signal)` returns a promise of it. It is loaded again when an entry of `inputs` changes,
 * and every `everyMs` while the tab is shown; then the old value stays until the new one is there.
 * Returns {value, problem, isLoading, reload}.
 */
export function useLoad(load, inputs, { everyMs = 0, isOn = true } = {}) {
  const [state, setState] = useState({ value: undefined, problem: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  const last = useRef(load);
  last.current = load;
  useEffect(() => {
    if (!isOn) return undefined;
    const control = new AbortController();
    let timer = 0;
    let failures = 0;
    const again = () => {
      if (!everyMs || control.signal.aborted) return;
      timer = setTimeout(run, document.hidden ? everyMs * 10 : everyMs * 2 ** Math.min(failures, 4));
    };
    const run = async () => {
      try {
        const value = await last.current(control.signal);
        failures = 0;
        if (!control.signal.aborted) setState({ value, problem: null, isLoading: false });
      } catch (problem) {
        failures += 1;
        if (isCancelled(problem) || control.signal.aborted) return;
        setState((before) => ({ value: before.value, problem, isLoading: false }));
      }
      again();
    };
    setState((before) => ({ ...before, isLoading: true }));
    run();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [...inputs, everyMs, isOn, turn]);
  const reload = useCallback(() => setTurn((before) => before + 1), []);
  return { ...state, reload };
}

/** Return the width of an element in pixels: [ref, width]. */
export function useWidth() {
  const ref = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

/** Return a value that follows another one once that has been still for so long. */
export function useSettled(value, ms = 150) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(() => value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** Set the title of the tab. */
export function useTitle(text) {
  useEffect(() => {
    document.title = text ? `${text} · peeklock` : "peeklock";
  }, [text]);
}
