// The frame of the page: navigation, the view of the place, palette, keys, toasts.
import { Fragment, html, render, useEffect, useState } from "./lib.js";
import { askAhead, useCounts } from "./counts.js";
import { go, href, place } from "./router.js";
import { ROUTES, routeOf } from "./routes.js";
import { can, session } from "./session.js";
import { signOut, start } from "./signing_in.js";
import { useStore } from "./store.js";
import { nextTheme, theme } from "./theme.js";
import { Empty, Icon, IconButton, Loading, Refusal, Text, useShortcuts } from "./ui.js";
import { Palette } from "./ui/palette.js";
import { ShortcutHelp } from "./ui/shortcuts.js";
import { Toasts } from "./ui/toast.js";
import Overview from "./views/overview.js";

const views = new Map([["overview", Overview]]); // by name, once loaded
const loading = new Map(); // by name: a promise, until it has ended

/** Load a view: the default export of its module, or an Error. */
function load(name) {
  if (!name || views.has(name)) return Promise.resolve();
  if (!loading.has(name)) {
    const done = (value) => (views.set(name, value), loading.delete(name));
    loading.set(name, import(`./views/${name}.js`).then((module) => done(module.default), done));
  }
  return loading.get(name);
}

/** Return the component of a view, undefined while it loads, or an Error. */
function useView(name) {
  const [, redraw] = useState(0);
  const view = views.get(name);
  useEffect(() => {
    // It may have come since this was drawn: then it is drawn again at once.
    if (name && view === undefined) load(name).then(() => redraw((turn) => turn + 1));
  }, [name]);
  return view;
}

const isOffered = (route) => !route.right || can(route.right);

function Navigation({ current, isOpen, onClose }) {
  const { me } = session.value;
  return html`<aside class=${`nav ${isOpen ? "open" : ""}`} id="nav">
    <a class="brand" href=${href([])}><img src="$explorer/icon.svg" alt="" width="22" height="22" /><span>peeklock</span></a>
    <nav aria-label="Main">
      ${ROUTES.filter((route) => route.icon && isOffered(route)).map(
        (route) => html`<a
          key=${route.view}
          class="nav-item"
          href=${href(route.path)}
          onClick=${onClose}
          aria-current=${current?.view === route.view && current.path[0] === route.path[0] ? "page" : undefined}
        >
          <${Icon} name=${route.icon} /><span>${route.title}</span>
        </a>`,
      )}
    </nav>
    <div class="nav-foot">
      <div class="identity">
        <div class="identity-name"><${Text} value=${me.isDevelopment ? "Development mode" : me.name || "Signed in"} /></div>
        <div class="faint"><${Text} value=${[me.namespace, me.path].filter(Boolean).join(" / ") || me.rights.join(", ")} /></div>
      </div>
      ${!me.isDevelopment && html`<${IconButton} icon="out" label="Sign out" onClick=${signOut} />`}
    </div>
  </aside>`;
}

function Top({ onMenu, isMenuOpen, onPalette, onHelp }) {
  const shown = useStore(theme);
  return html`<header class="top">
    <button
      type="button"
      class="button quiet icon-only menu"
      aria-label="Menu"
      aria-expanded=${isMenuOpen ? "true" : "false"}
      aria-controls="nav"
      onClick=${onMenu}
    >
      <${Icon} name="menu" />
    </button>
    <button type="button" class="palette-button" onClick=${onPalette}>
      <${Icon} name="search" /><span>Go to…</span><kbd>Ctrl K</kbd>
    </button>
    <div class="spread"></div>
    <${IconButton} icon=${shown === "light" ? "sun" : shown === "dark" ? "moon" : "auto"} label=${`Theme: ${shown}`} onClick=${nextTheme} />
    <button type="button" class="button quiet icon-only" aria-label="Keyboard" title="Keyboard (?)" onClick=${onHelp}><b>?</b></button>
  </header>`;
}

function View({ found }) {
  const Shown = useView(found?.route.view);
  const { query } = useStore(place);
  if (found === null) {
    return html`<${Empty} title="There is no such page">
      <a href=${href([])}>Go to the overview</a>
    <//>`;
  }
  if (Shown === undefined) return html`<${Loading} />`;
  if (Shown instanceof Error) return html`<div class="page"><${Refusal} problem=${Shown} /></div>`;
  const key = `${found.route.view} ${Object.values(found.params).join("\n")}`;
  return html`<${Shown} key=${key} ...${found.params} query=${query} />`;
}

function Inside() {
  const { parts } = useStore(place);
  const [open, setOpen] = useState(""); // "palette", "help" or "menu"
  const found = routeOf(parts);
  const close = () => setOpen("");
  const offered = ROUTES.filter((route) => route.icon && isOffered(route));
  useEffect(() => {
    const press = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        if (!document.querySelector("dialog[open]")) setOpen("palette");
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  useShortcuts([
    { keys: "Ctrl-K", name: "Go to a queue, a topic, a page" },
    { keys: "?", name: "Show the keys", run: () => setOpen("help") },
    ...offered.map((route) => ({ keys: route.key, name: route.title, run: () => go(route.path) })),
  ]);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <${Navigation} current=${found?.route} isOpen=${open === "menu"} onClose=${close} />
    ${open === "menu" && html`<div class="nav-shade" onClick=${close}></div>`}
    <div class="content">
      <${Top}
        isMenuOpen=${open === "menu"}
        onMenu=${() => setOpen(open === "menu" ? "" : "menu")}
        onPalette=${() => setOpen("palette")}
        onHelp=${() => setOpen("help")}
      />
      <main id="main" tabindex="-1"><${View} found=${found} /></main>
    </div>
    ${open === "palette" && html`<${EverywherePalette} offered=${offered} onClose=${close} />`}
    ${open === "help" && html`<${ShortcutHelp} onClose=${close} />`}
  </div>`;
}

function EverywherePalette({ offered, onClose }) {
  const { list } = useCounts(can("Manage"));
  const places = [
    ...offered.map((route) => ({ name: route.title, icon: route.icon, hint: route.key, run: () => go(route.path) })),
    { name: "Change the theme", icon: "moon", run: nextTheme },
    ...(list ?? []).map((one) => ({ name: one.name, icon: one.kind, hint: one.kind, run: () => go(["entities", one.name]) })),
  ];
  return html`<${Palette} places=${places} onClose=${onClose} />`;
}

function App() {
  const { phase } = useStore(session);
  const SignIn = useView(phase === "out" ? "sign-in" : "");
  const inside = phase === "in" ? html`<${Inside} />` : SignIn ? html`<${SignIn} />` : html`<${Loading} />`;
  return html`<${Fragment}>${inside}<${Toasts} /><//>`;
}

const { view } = routeOf(place.value.parts)?.route ?? {};
load(view); // while the session starts
start(view === "overview" ? askAhead : undefined);
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
