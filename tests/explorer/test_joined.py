"""The modules of the first view as one file, and what stands at their addresses."""

from __future__ import annotations

import re
from pathlib import Path

from peeklock.explorer.files import DOCUMENT, PAGE, addresses, read
from peeklock.explorer.joined import ENTRY, JOINED, join

MODULES = {
    "vendor/drawing.mjs": "var a=1;function b(){}export{a as one,b as two};",
    "vendor/last.mjs": "var t=2;export default function(s){return s+t}",
    "lib.js": (
        'import last from "./vendor/last.mjs";\nexport * from "./vendor/drawing.mjs";\n'
        "export const html = last(1);\nconst own = 3;\nexport { own };\n"
    ),
    "ui/table.js": (
        'import { html, one as first } from "../lib.js";\n'
        "export function Table() {\n  return html + first;\n}\nexport async function* rows() {}\n"
    ),
    "ui.js": 'export { Table } from "./ui/table.js";\n',
    "app.js": 'import {\n  Table,\n} from "./ui.js";\nimport("./views/later.js");\nTable();\n',
    "views/later.js": (
        '// A view.\nimport { Table as Shown } from "../ui.js";\nimport { more } from "./more.js";\n'
        'import { html } from "../lib.js";\nexport default Shown;\n'
    ),
    "views/more.js": "export const more = 1;\n",
}
EXPECTED = """\
// vendor/last.mjs
const $vendor_last = (() => {
var t=2;const $default = function(s){return s+t}
return { default: $default };
})();
// vendor/drawing.mjs
const $vendor_drawing = (() => {
var a=1;function b(){}
return { one: a, two: b };
})();
// lib.js
const $lib = (() => {
const { default: last } = $vendor_last;

const html = last(1);
const own = 3;


return { one: $vendor_drawing.one, two: $vendor_drawing.two, html: html, own: own };
})();
// ui/table.js
const $ui_table = (() => {
const { html, one: first } = $lib;
function Table() {
  return html + first;
}
async function* rows() {}

return { Table: Table, rows: rows };
})();
// ui.js
const $ui = (() => {


return { Table: $ui_table.Table };
})();
// app.js
const $app = (() => {
const { Table } = $ui;
import("./views/later.js");
Table();

return {  };
})();
export { $vendor_last, $vendor_drawing, $lib, $ui_table, $ui, $app };
"""


def write(folder: Path) -> None:
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_each_module_is_a_function_that_runs_after_those_it_imports(tmp_path: Path) -> None:
    write(tmp_path)
    assert join(tmp_path).content == EXPECTED


def test_a_joined_module_is_a_stub_at_its_address(tmp_path: Path) -> None:
    write(tmp_path)
    joined = join(tmp_path)
    assert joined.served("ui/table.js", MODULES["ui/table.js"]) == (
        'import { $ui_table } from "../first.js";\nexport const { Table, rows } = $ui_table;\n'
    )
    assert joined.served("vendor/last.mjs", MODULES["vendor/last.mjs"]) == (
        'import { $vendor_last } from "../first.js";\nexport default $vendor_last.default;\n'
    )
    assert joined.served("app.js", MODULES["app.js"]) == 'import { $app } from "./first.js";\n'


def test_another_module_takes_the_joined_ones_from_the_file(tmp_path: Path) -> None:
    """Its lines keep their numbers."""
    write(tmp_path)
    assert join(tmp_path).served("views/later.js", MODULES["views/later.js"]) == (
        'import { $ui, $lib } from "../first.js"; // A view.\nconst { Table: Shown } = $ui;\n'
        'import { more } from "./more.js";\nconst { html } = $lib;\nexport default Shown;\n'
    )
    assert join(tmp_path).served("views/more.js", MODULES["views/more.js"]) == MODULES["views/more.js"]


def test_the_page_has_no_import_or_export_of_another_form() -> None:
    """And no module is asked for twice: as a part of the file, and at its own address."""
    text = read(JOINED).content.decode()
    assert f'src="$explorer/{JOINED}"'.encode() in read(DOCUMENT).content
    *lines, last = text.splitlines()
    assert [line for line in lines if re.match(r"\s*(import|export)\b(?!\()", line)] == []
    assert re.findall(r"[;}](?:import|export)\s*[{*d]", text) == []
    names = re.findall(r"^// (\S+)\nconst \$", text, re.MULTILINE)
    assert len(set(re.findall(r"\$\w+", last))) == len(names) > 30
    assert names[-1] == ENTRY
    for name in addresses().values():
        if name in names or not name.endswith("js") or name == JOINED:
            continue
        for address in re.findall(
            r'^import [^;]* from "(\.[^"]+)";', read(name).content.decode(), re.MULTILINE
        ):
            found = ((PAGE / name).parent / address).resolve().relative_to(PAGE).as_posix()
            assert found not in names, (name, address)
