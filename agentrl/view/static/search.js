// @ts-check
// A text in all episodes: the server reads a little for each request, so a search ends when nobody asks on.
import { ask } from "./api.js";
import { h, num } from "./dom.js";
import { tick } from "./lists.js";
import { address } from "./route.js";

const LIVE_MS = 2000;

export async function searchView(ctx) {
  const {s, f, p} = ctx.route;
  const text = h("input", {type: "search", name: "q", value: p.q || "", placeholder: "a text in any episode", "aria-label": "text", size: 40});
  const form = h("form", {class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); ctx.go({view: "search", f, p: {q: text.value}}); }}, text, h("button", {}, "search"));
  const said = h("p", {role: "status"}), rows = h("tbody", {}), stop = h("button", {onclick: () => { stopped = true; stop.remove(); }}, "stop");
  const root = h("div", {class: "search"}, form, p.q ? h("p", {}, said, " ", stop) : null, p.q ? h("table", {}, rows) : h("p", {}, "All that models, tools and users said is searched; case makes no difference."));
  let shown = 0, stopped = false;

  async function more() {
    const found = await ask("search", {s, ...(f ? {f} : {}), q: p.q, from: shown});
    shown += found.rows.length;
    rows.append(...found.rows.map(row));
    const done = found.full || found.read >= found.total;
    said.textContent = `${num(shown)} episodes with it; ${num(found.read)} of ${num(found.total)} are read`
      + (found.unkept ? `, the tokens of ${num(found.unkept)} are not kept` : "") + (found.full ? "; the first ones are shown, search for more words" : "")
      + (found.failed ? `; not readable: ${found.failed}` : "");
    if (found.full || done && !ctx.source.live) stop.remove();
    else setTimeout(() => { if (!stopped && root.isConnected) more().catch((error) => { said.textContent = error.message; }); }, done ? LIVE_MS : 0);
  }

  function row([file, number, o, before, hit, after, times]) {
    return h("tr", {}, h("td", {}, h("a", {class: "to", href: address({s, view: "episode", f: file, n: number, p: {w: p.q}})}, `${file} ${number}`)), h("td", {}, `${tick(o)} ${num(o.reward)}`),
      h("td", {class: "around"}, before, h("mark", {}, hit), after), h("td", {}, times > 1 ? `${num(times)} times` : ""));
  }

  if (p.q) await more();
  return root;
}
