// @ts-check
// Elements, made with text nodes only: what a model or a tool wrote never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Control characters as pictures; those without width, or that turn the direction, as a dotted circle. One for one. */
export function visible(text) {
  return text.replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    if (code < 32) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : code < 0xa0 || code >= 0xd800 && code < 0xe000 ? "\ufffd" : "\u25cc";
  });
}
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u200b-\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\u3164\\ufeff\\uffa0]|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]", "g");

/** An element. `props`: attributes; `on...` are listeners, `css` sets style properties, false leaves one out. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
  return element;
}

/** A number for people. */
export function num(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (Math.abs(value) < 0.001) return value.toExponential(Math.max(0, digits - 2));
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

export function share(part, whole) {
  return whole ? `${(100 * part / whole).toFixed(part && part / whole < 0.1 ? 1 : 0)} %` : "-";
}

export function total(counts) {
  return Object.values(counts || {}).reduce((sum, each) => sum + each, 0);
}

/** A table whose headers sort it, if they have a value. `columns`: [name, cell, value]. */
export function table(columns, rows, given = {}) {
  let by = given.by ?? -1, down = given.down ?? true;
  const body = h("tbody");
  const heads = columns.map(([name, , value], at) => h("th", {scope: "col"}, value
    ? h("button", {onclick: () => { down = by === at ? !down : true; by = at; draw(); }}, name) : name));
  function draw() {
    const value = by >= 0 && columns[by][2];
    const sorted = value ? [...rows].sort((a, b) => compared(value(a), value(b)) * (down ? -1 : 1)) : rows;
    heads.forEach((head, at) => head.setAttribute("aria-sort", at !== by ? "none" : down ? "descending" : "ascending"));
    body.replaceChildren(...sorted.slice(0, given.most ?? 2000).map((row) =>
      h("tr", given.row ? given.row(row) : {}, columns.map(([, cell]) => h("td", {}, cell(row))))));
  }
  draw();
  return h("table", {class: given.class || ""}, given.caption ? h("caption", {}, given.caption) : null,
    h("thead", {}, h("tr", {}, heads)), body);
}

function compared(one, other) {
  if (typeof one === "string" || typeof other === "string") return String(one ?? "").localeCompare(String(other ?? ""));
  return (one ?? -Infinity) - (other ?? -Infinity) || 0;
}
