// Dark, light, or what the system prefers. The choice lasts as long as the tab.
import { makeStore } from "./store.js";

const ORDER = ["auto", "light", "dark"];
export const theme = makeStore("auto");

/** Take the next theme. */
export function nextTheme() {
  theme.set(ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length]);
}

theme.subscribe((value) => {
  if (value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
});
