// The components of the page. `README.md` of the package lists them.
export { Button, IconButton, LinkButton } from "./ui/button.js";
export { Chart, Spark } from "./ui/chart.js";
export { Code } from "./ui/code.js";
export { Copy } from "./ui/copy.js";
export { Confirm, Dialog } from "./ui/dialog.js";
export { Field } from "./ui/field.js";
export { Icon } from "./ui/icon.js";
export { Page } from "./ui/page.js";
export { Progress } from "./ui/progress.js";
export { useShortcuts } from "./ui/shortcuts.js";
export { Empty, Loading, Refusal } from "./ui/states.js";
export { Table } from "./ui/table.js";
export { Tabs } from "./ui/tabs.js";
export { Badge, Count, Facts, Stat, Text, Time } from "./ui/text.js";
export { toast } from "./ui/toast.js";
