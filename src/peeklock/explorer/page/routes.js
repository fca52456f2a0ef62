// The places of the page: which view shows each, and where it stands in the navigation.

/** `path`: parts, where `:name` takes any; `view`: the module in views/; `title`; `icon` and `key` of the navigation;
 * `right`: which one on the namespace it needs; `needs`: a member of `has` of `GET /me`. */
export const ROUTES = [
  { path: [], view: "overview", title: "Overview", icon: "overview", key: "g o" },
  { path: ["search"], view: "search", title: "Search", icon: "search", key: "g s", right: "Manage" },
  { path: ["dead-letters"], view: "dead-letters", title: "Dead letters", icon: "dead", key: "g d", right: "Manage" },
  { path: ["jobs"], view: "jobs", title: "Jobs", icon: "jobs", key: "g j" },
  { path: ["connections"], view: "connections", title: "Connections", icon: "connections", key: "g c", right: "Manage" },
  { path: ["namespaces"], view: "namespaces", title: "Namespaces", icon: "namespaces", key: "g n", right: "Manage" },
  { path: ["keys"], view: "keys", title: "Keys", icon: "keys", key: "g k", right: "Manage" },
  { path: ["connect"], view: "connect", title: "Connect", icon: "connect", key: "g t" },
  { path: ["create"], view: "create", title: "Create an entity" },
  { path: ["jobs", ":job"], view: "jobs", title: "Job" },
  { path: ["entities", ":entity"], view: "entity", title: "Entity" },
  { path: ["entities", ":entity", "subscriptions"], view: "subscriptions", title: "Subscriptions" },
  { path: ["entities", ":entity", "messages"], view: "messages", title: "Messages" },
  { path: ["entities", ":entity", "messages", ":number"], view: "message", title: "Message" },
  { path: ["entities", ":entity", "search"], view: "search", title: "Search" },
  { path: ["entities", ":entity", "dead-letters"], view: "dead-letters", title: "Dead letters" },
  { path: ["entities", ":entity", "sessions"], view: "sessions", title: "Sessions" },
  { path: ["entities", ":entity", "rules"], view: "rules", title: "Rules" },
  { path: ["entities", ":entity", "match"], view: "match", title: "Why did it not arrive?" },
  { path: ["entities", ":entity", "settings"], view: "settings", title: "Settings" },
];

/** Return {route, params} of the parts of a place; null = there is none. */
export function routeOf(parts) {
  for (const route of ROUTES) {
    if (route.path.length !== parts.length) continue;
    const params = {};
    const fits = route.path.every((part, at) => {
      if (!part.startsWith(":")) return part === parts[at];
      params[part.slice(1)] = parts[at];
      return true;
    });
    if (fits) return { route, params };
  }
  return null;
}
