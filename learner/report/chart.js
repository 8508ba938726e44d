// Draws the charts of the report: SVG at the width that there is, with a reading under the pointer.
// Text goes in by textContent only: names come from runs, and runs from anywhere.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const HEIGHT = 210, TOP = 10, BOTTOM = 34, RIGHT = 12;

  const svg = (name, attributes, parent, text) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };
  const html = (name, className, parent, text) => {
    const element = document.createElement(name);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };

  function number(value, percent) {
    if (percent) return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("e+", "e").replace("-", "−");
    const text = size >= 1000 ? Math.round(value).toLocaleString("en-GB") : String(+value.toPrecision(3));
    return text.replace("-", "−");
  }

  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) out.push(+(i * step).toPrecision(12));
    return out;
  }

  function marker(kind, x, y, className, parent) {
    const r = 4;
    const paths = [
      null,
      `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z`,
      `M${x} ${y - 5}L${x + 5} ${y + 4}L${x - 5} ${y + 4}Z`,
      `M${x - r} ${y - r}H${x + r}V${y + r}H${x - r}Z`,
      `M${x} ${y + 5}L${x + 5} ${y - 4}L${x - 5} ${y - 4}Z`,
    ];
    return kind ? svg("path", { d: paths[kind], class: className }, parent)
      : svg("circle", { cx: x, cy: y, r, class: className }, parent);
  }

  // Range of the values, with what the chart wants to have in it, and a little air.
  function range(chart) {
    const stack = chart.kind === "stack", values = [];
    if (stack) chart.series[0].points.forEach((_, i) => values.push(chart.series.reduce((sum, s) => sum + s.points[i][1], 0)));
    else for (const s of chart.series) {
      for (const p of [...s.points, ...(s.raw || [])]) values.push(p[1]);
      for (const b of s.bands || []) values.push(...b);
    }
    for (const ref of chart.refs || []) values.push(ref.y);
    if (chart.zero) values.push(0);
    for (const key of ["low", "high"]) if (chart[key] !== undefined) values.push(chart[key]);
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
    const air = (high - low) * 0.05;
    return [chart.zero || chart.low === low ? low : low - air, chart.high === high ? high : high + air * (chart.kind === "bars" ? 3 : 1)];
  }

  function draw(chart, box) {
    const width = Math.max(240, Math.floor(box.clientWidth));
    box.replaceChildren();
    const root = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": chart.title }, box);
    const [low, high] = range(chart);
    const marks = ticks(low, high, 5);
    const labels = marks.map((tick) => number(tick, chart.percent));
    const left = 12 + 6.6 * Math.max(...labels.map((label) => label.length));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low));
    const columns = [...new Set(chart.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    const discrete = chart.kind !== "line";
    const first = columns[0], last = columns[columns.length - 1];
    const band = (width - left - RIGHT) / columns.length;
    const inset = chart.series.some((s) => s.marks) ? 8 : 0;
    const x = discrete
      ? (value) => left + band * (columns.indexOf(value) + 0.5)
      : (value) => left + inset + (width - left - RIGHT - 2 * inset) * (last === first ? 0.5 : (value - first) / (last - first));

    marks.forEach((tick, i) => {
      svg("line", { x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }, root);
      svg("text", { x: left - 6, y: y(tick) + 4, class: "tick end" }, root, labels[i]);
    });
    const every = Math.ceil(columns.length / Math.max(2, Math.floor((width - left) / 56)));
    const below = discrete ? columns.filter((_, i) => i % every === 0)
      : last === first ? [first] : ticks(first, last, Math.max(2, Math.floor(width / 75))).filter((t) => Number.isInteger(t));
    for (const tick of below) svg("text", { x: x(tick), y: HEIGHT - 17, class: "tick middle" }, root, number(tick));
    svg("text", { x: width - RIGHT, y: HEIGHT - 3, class: "tick end" }, root, chart.x);

    for (const ref of chart.refs || []) {
      svg("line", { x1: left, x2: width - RIGHT, y1: y(ref.y), y2: y(ref.y), class: `ref ${ref.color}` }, root);
    }
    if (chart.kind === "stack") {
      const base = columns.map(() => 0);
      for (const s of chart.series) s.points.forEach(([column, value], i) => {
        const top = y(base[i] + value), height = y(base[i]) - top;
        if (height > 0) svg("rect", { x: x(column) - band * 0.42, y: top, width: band * 0.84, height, class: `fill ${s.color}` }, root);
        base[i] += value;
      });
    } else if (chart.kind === "bars") {
      const each = Math.min(64, (band * 0.8) / chart.series.length);
      chart.series.forEach((s, i) => s.points.forEach(([column, value]) => {
        const at = x(column) + each * (i - chart.series.length / 2);
        svg("rect", { x: at + 1, y: y(value), width: Math.max(1, each - 2), height: y(low) - y(value), class: `fill ${s.color}` }, root);
        if (each > 30) svg("text", { x: at + each / 2, y: Math.max(TOP + 8, y(value) - 4), class: "tick middle" }, root, number(value, chart.percent));
      }));
    } else for (const s of chart.series) {
      const path = (points) => points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      if (s.raw) svg("path", { d: path(s.raw), class: `line raw ${s.color}` }, root);
      (s.bands || []).forEach(([from, to], i) => {
        const at = x(s.points[i][0]);
        svg("path", { d: `M${at} ${y(from)}V${y(to)}M${at - 3} ${y(from)}H${at + 3}M${at - 3} ${y(to)}H${at + 3}`, class: `whisker ${s.color}` }, root);
      });
      svg("path", { d: path(s.points), class: `line ${s.color}` }, root);
      if (s.marks || s.points.length < 25) for (const p of s.points) marker(s.mark, x(p[0]), y(p[1]), `fill ${s.color}`, root);
    }
    hover(chart, box, root, { columns, x, left, width });
  }

  // The reading: a line at the nearest column, and the value of each series there.
  function hover(chart, box, root, { columns, x, left, width }) {
    const cross = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cross" }, root);
    const tip = html("div", "tip", box);
    const hide = () => { cross.classList.remove("on"); tip.classList.remove("on"); };
    const show = (event) => {
      const at = event.clientX - root.getBoundingClientRect().left;
      const column = columns.reduce((best, c) => (Math.abs(x(c) - at) < Math.abs(x(best) - at) ? c : best));
      cross.setAttribute("x1", x(column));
      cross.setAttribute("x2", x(column));
      tip.replaceChildren();
      html("div", "tip-head", tip, `${chart.x} ${number(column)}`);
      for (const s of chart.series) {
        const i = s.points.findIndex((p) => p[0] === column);
        if (i < 0) continue;
        const row = html("div", "tip-row", tip);
        html("span", `key ${s.color}`, row);
        html("span", "tip-name", row, s.name);
        const interval = s.bands ? `  ${number(s.bands[i][0])}–${number(s.bands[i][1])}` : "";
        html("span", "tip-value", row, number(s.points[i][1], chart.percent) + interval);
      }
      cross.classList.add("on");
      tip.classList.add("on");
      const place = x(column) < (left + width) / 2 ? x(column) + 10 : x(column) - tip.offsetWidth - 10;
      tip.style.left = `${Math.max(0, Math.min(width - tip.offsetWidth, place))}px`;
    };
    root.addEventListener("pointermove", show);
    root.addEventListener("pointerdown", show);
    root.addEventListener("pointerleave", hide);
  }

  for (const chart of charts) {
    const box = document.getElementById(`chart-${chart.id}`);
    let before = 0;
    new ResizeObserver(() => {
      if (box.clientWidth !== before) { before = box.clientWidth; draw(chart, box); }
    }).observe(box);
  }
})();
