// @ts-check
// Small charts in SVG. A click on a point calls back with its x.
import { h, svg, num } from "./dom.js";

const WIDTH = 320, HEIGHT = 110, LEFT = 40, BOTTOM = 16, TOP = 6;

/**
 * Lines, or areas on each other. `series`: {name, class, points: [[x, y], ...], dots?}. `marks`: [[x, text], ...].
 */
export function chart(title, series, given = {}) {
  const all = series.flatMap((one) => one.points);
  if (!all.length) return h("figure", {class: "chart empty"}, h("figcaption", {}, title), h("p", {}, given.missing || "not recorded"));
  const layers = given.stacked ? stacked(series) : series.map((one) => ({...one, base: null}));
  const ys = layers.flatMap((one) => one.points.map(([, y]) => y));
  let low = given.low ?? Math.min(...ys), high = given.high ?? Math.max(...ys);
  if (high - low < 1e-12) { high += 0.5 * Math.abs(high) || 1; low -= given.low === undefined ? 0.5 * Math.abs(low) : 0; }
  const xs = all.map(([x]) => x), first = Math.min(...xs), last = Math.max(...xs);
  const px = (x) => LEFT + (last > first ? (x - first) / (last - first) : 0.5) * (WIDTH - LEFT - 6);
  const py = (y) => TOP + (1 - (y - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)},${py(y).toFixed(1)}`).join("");
  const drawn = layers.map((one) => given.stacked
    ? svg("path", {class: `area ${one.class}`, d: `${path(one.points)}${path([...one.base].reverse()).replace("M", "L")}Z`})
    : [svg("path", {class: `line ${one.class}`, d: path(one.points)}),
      ...(one.dots || one.points.length < 3 ? one.points.map(([x, y]) => svg("circle", {class: one.class, cx: px(x), cy: py(y), r: 3})) : [])]);
  const cursor = svg("line", {class: "cursor", x1: -9, x2: -9, y1: TOP, y2: HEIGHT - BOTTOM});
  const read = h("output", {});
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * WIDTH;
    return xs.reduce((best, each) => Math.abs(px(each) - x) < Math.abs(px(best) - x) ? each : best, xs[0]);
  };
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, class: given.onpick ? "pick" : "",
    onmousemove: (event) => {
      const x = nearest(event);
      cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x));
      read.textContent = `${given.x || "step"} ${x}: ${series.map((one) => `${one.name} ${num(one.points.find(([at]) => at === x)?.[1])}`).join(", ")}`;
    },
    onclick: (event) => given.onpick && given.onpick(nearest(event)),
  },
  svg("line", {class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM}),
  svg("text", {x: LEFT - 4, y: py(high) + 8, class: "end"}, num(high)),
  svg("text", {x: LEFT - 4, y: py(low), class: "end"}, num(low)),
  svg("text", {x: LEFT, y: HEIGHT - 4}, num(first)), svg("text", {x: WIDTH - 2, y: HEIGHT - 4, class: "end"}, num(last)),
  ...drawn, ...(given.marks || []).map(([x, text]) => svg("text", {class: "mark", x: px(x), y: TOP + 8}, "!", svg("title", {}, text))), cursor);
  const legend = h("p", {class: "legend"}, series.map((one) => given.onname
    ? h("button", {class: one.class, onclick: () => given.onname(one.name)}, one.name)
    : h("span", {class: one.class}, one.name)));
  return h("figure", {class: "chart", "data-chart": title}, h("figcaption", {}, title), picture, legend, read);
}

function stacked(series) {
  const sums = new Map();
  return series.map((one) => {
    const base = one.points.map(([x]) => [x, sums.get(x) || 0]);
    const points = one.points.map(([x, y], i) => [x, base[i][1] + y]);
    points.forEach(([x, y]) => sums.set(x, y));
    return {...one, base, points};
  });
}

/** Points of two figures; a click calls back with the point's item. */
export function scatter(title, points, given = {}) {
  if (!points.length) return h("figure", {class: "chart empty"}, h("figcaption", {}, title), h("p", {}, "nothing to draw"));
  const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const px = (x) => LEFT + 6 + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (WIDTH - LEFT - 16);
  const py = (y) => TOP + 6 + (1 - (y1 > y0 ? (y - y0) / (y1 - y0) : 0.5)) * (HEIGHT - TOP - BOTTOM - 12);
  return h("figure", {class: "chart", "data-chart": title}, h("figcaption", {}, title),
    svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title},
      svg("line", {class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM}),
      svg("text", {x: LEFT - 4, y: py(y1) + 4, class: "end"}, num(y1)), svg("text", {x: LEFT - 4, y: py(y0) + 4, class: "end"}, num(y0)),
      svg("text", {x: LEFT, y: HEIGHT - 4}, num(x0)), svg("text", {x: WIDTH - 2, y: HEIGHT - 4, class: "end"}, num(x1)),
      points.slice(0, 2000).map((p) => svg("circle", {class: "dot", cx: px(p.x), cy: py(p.y), r: 3.5, onclick: () => given.onpick && given.onpick(p)},
        svg("title", {}, p.title || "")))),
    h("p", {class: "legend"}, given.x || ""));
}
