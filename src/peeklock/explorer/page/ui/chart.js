import { html, useState } from "../lib.js";
import { useWidth } from "../hooks.js";
import { short } from "../format.js";

const point = (value) => Math.round(value * 10) / 10;

function line(values, count, width, height, top) {
  const step = width / Math.max(1, count - 1);
  const first = count - values.length;
  const parts = [];
  let isDown = false;
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    const y = height - 1 - (value / top) * (height - 4);
    parts.push(`${isDown ? "L" : "M"}${point((first + at) * step)} ${point(y)}`);
    isDown = true;
  });
  return parts.join("");
}

/** The same as an area down to the ground; only for values without gaps. */
function area(values, count, width, height, top) {
  if (values.length < 2 || values.includes(null)) return "";
  const start = point(((count - values.length) * width) / Math.max(1, count - 1));
  return `${line(values, count, width, height, top)}V${height - 1}H${start}Z`;
}

const topOf = (all) => {
  const most = Math.max(1, ...all.flat().filter((value) => value !== null));
  const scale = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((by) => by * scale).find((top) => top >= most);
};

/**
 * A live chart of the last values. `series`: [{name, values, tone}], newest last, null = a gap; `count`: how many fit;
 * `format(value)`; `span`: what the width stands for, such as "2 min".
 */
export function Chart({ label, series, count = 60, height = 72, format = short, span = "" }) {
  const [ref, width] = useWidth();
  const [at, setAt] = useState(null);
  const top = topOf(series.map((one) => one.values));
  const valueAt = (values) => values[values.length - count + (at ?? count - 1)];
  const spoken = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? 0)}`).join(", ");
  const find = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setAt(Math.round(((event.clientX - box.left) / box.width) * (count - 1)));
  };
  return html`<figure class="chart" ref=${ref}>
    <figcaption>
      <span class="chart-label">${label}</span>
      <span class="legend">
        ${series.map(
          (one) => html`<span key=${one.name} class=${`legend-item ${one.tone}`}>
            ${one.name} <b>${format(valueAt(one.values) ?? 0)}</b>
          </span>`,
        )}
      </span>
    </figcaption>
    <svg
      class="chart-plot"
      width="100%"
      height=${height}
      viewBox=${`0 0 ${Math.max(1, width)} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label=${`${label}: ${spoken}`}
      onMouseMove=${find}
      onMouseLeave=${() => setAt(null)}
    >
      <path class="chart-grid" d=${`M0 ${height - 1}H${width}M0 3H${width}M0 ${height / 2}H${width}`} />
      ${width > 0 &&
      series.map(
        (one) => html`<g key=${one.name} class=${one.tone}>
          <path class="chart-area" d=${area(one.values, count, width, height, top)} />
          <path class="chart-line" d=${line(one.values, count, width, height, top)} />
        </g>`,
      )}
      ${at !== null && html`<path class="chart-cursor" d=${`M${point((at / (count - 1)) * width)} 0V${height}`} />`}
    </svg>
    <div class="chart-foot"><span>${span && `last ${span}`}</span><span>top ${format(top)}</span></div>
  </figure>`;
}

/** A chart the size of a word. */
export function Spark({ values, count = 30, tone = "accent", label }) {
  const top = Math.max(1, ...values);
  return html`<svg class="spark" width="72" height="18" viewBox="0 0 72 18" role="img" aria-label=${label}>
    <g class=${tone}>
      <path class="chart-area" d=${area(values, count, 72, 18, top)} />
      <path class="chart-line" d=${line(values, count, 72, 18, top)} />
    </g>
  </svg>`;
}
