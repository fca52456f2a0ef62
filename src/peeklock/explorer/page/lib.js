// What every module of the page draws with: Preact, its hooks, and `html` in place of JSX.
import { Fragment, createContext, h, render } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export * from "./vendor/hooks.mjs";
export { Fragment, createContext, h, render };
export const html = htm.bind(h);
