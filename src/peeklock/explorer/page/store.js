// State that several parts of the page share. It is in the memory of the tab only, and ends with it.
import { useEffect, useState } from "./lib.js";

/** Return a store: `value`, `set(value)`, `update(part)`, `subscribe(call) -> unsubscribe`. */
export function makeStore(initial) {
  const calls = new Set();
  const store = {
    value: initial,
    set(value) {
      store.value = value;
      for (const call of [...calls]) call(value);
    },
    update(part) {
      store.set({ ...store.value, ...part });
    },
    subscribe(call) {
      calls.add(call);
      return () => calls.delete(call);
    },
  };
  return store;
}

/** Return the value of a store, and draw again when it changes. */
export function useStore(store) {
  const [value, set] = useState(store.value);
  useEffect(() => {
    set(() => store.value);
    return store.subscribe((next) => set(() => next));
  }, [store]);
  return value;
}
