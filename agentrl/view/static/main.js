// @ts-check
// The page: the address is the state, a view is drawn for it, keys go to the view.
import { ask } from "./api.js";
import { chart } from "./charts.js";
import { h, visible } from "./dom.js";
import { episodeView } from "./episode.js";
import { auditView, compareView, groupView, listView, stepView, worstView } from "./lists.js";
import { overview } from "./overview.js";
import { address, parsed } from "./route.js";
import { searchView } from "./search.js";

const POLL_MS = 2000;
const main = document.getElementById("main"), path = document.getElementById("path"), live = document.getElementById("live");
const spoken = document.getElementById("spoken"), help = document.getElementById("help");
let held = {mark: "", sources: [], now: 0}, route = parsed(location.hash), keys = {}, drawn = 0, asked = 0;

async function refresh() {
  const found = await ask("state", {seen: held.mark});
  const changed = found.sources !== undefined;
  held = {...held, ...found};
  if (changed) held.sources.forEach((source, at) => { source.at = at; });
  asked = Date.now();
  return changed;
}

function go(to) {
  delete main.dataset.ready;
  location.hash = address({s: route.s, ...to});
  if (location.hash === address(route)) main.dataset.ready = route.view;
}

/** Draw the view of the address. A later one wins over one that still waits. */
async function draw() {
  const mine = ++drawn;
  route = parsed(location.hash);
  keys = {};
  const source = held.sources[route.s] || held.sources[0];
  delete main.dataset.ready;
  trail(source);
  let element, begin = () => {};
  try {
    const ctx = {route, source, sources: held.sources, go, now: held.now};
    if (!source) element = h("p", {}, "nothing is served");
    else if (route.view === "episode") ({element, begin} = await episode(ctx));
    else if (VIEWS[route.view]) element = await VIEWS[route.view](ctx);
    else element = h("p", {class: "failed"}, `there is no view ${route.view}`);
  } catch (error) {
    element = h("p", {class: "failed", role: "alert"}, error.message);
  }
  if (mine !== drawn) return;
  main.replaceChildren(element);
  begin();
  if (route.view === "search" && !route.p.q) toSearch();
  main.dataset.ready = route.view;
}

const VIEWS = {
  run: async (ctx) => overview(ctx.source, ctx), step: stepView, list: listView, group: groupView, worst: worstView, audit: auditView, search: searchView,
  compare: (ctx) => compareView(ctx, chart),
};

async function episode(ctx) {
  const {s, f, n, p} = ctx.route, data = await ask("episode", {s, f, n});
  const o = data.outline;
  const links = [
    h("a", {href: address({s, view: "episode", f, n: Math.max(0, n - 1)})}, "\u2190 k"), " ", h("a", {href: address({s, view: "episode", f, n: n + 1})}, "j \u2192"),
    o.group !== undefined ? [" ", h("a", {href: address({s, view: "group", f, n: o.group})}, `group ${o.group}`)] : null,
    " ", h("a", {href: `/export?s=${s}&f=${encodeURIComponent(f)}&n=${n}`, download: true, class: "export"}, "export"),
  ];
  const view = episodeView(data, {
    p, links,
    change: (given) => { history.replaceState(null, "", address({s, view: "episode", f, n, p: {...given, r: p.r || ""}})); route = parsed(location.hash); },
    say: (text) => { spoken.textContent = visible(text); },
    picture: (digest) => `/image?s=${s}&f=${encodeURIComponent(f)}&n=${n}&d=${digest}`,
    search: async (q) => (await ask("find", {s, f, n, q})).places,
  });
  keys = {...view.keys, j: () => go({view: "episode", f, n: n + 1}), k: () => n > 0 && go({view: "episode", f, n: n - 1}), g: () => o.group !== undefined && go({view: "group", f, n: o.group})};
  return view;
}

/** Where one is: source > file > group or episode. */
function trail(source) {
  const {s, view, f, n} = route, parts = [h("a", {href: address({s, view: "run"})}, source ? source.name : "agentrl")];
  if (f) parts.push(" \u203a ", h("a", {href: address({s, view: "step", f})}, f.replace(/^step_0*(\d)/, "step $1")));
  if (view !== "run" && view !== "step") parts.push(" \u203a ", h("span", {"aria-current": "page"}, view === "episode" || view === "group" ? `${view} ${n}` : view));
  const others = held.sources.length > 1 ? h("span", {class: "sources"}, held.sources.map((one, at) => h("a", {href: address({s: at, view: "run"}), "aria-current": at === s ? "true" : false}, one.name)),
    held.sources.filter((one) => one.kind === "run").length > 1 ? h("a", {href: address({s, view: "compare"})}, "compare") : null) : null;
  path.replaceChildren(...[h("strong", {}, "agentrl "), ...parts, others].filter(Boolean));
  document.title = `${source ? source.name : "agentrl"} ${view} ${f}`;
}

const HELP = [["j k", "next, previous episode"], ["[ ]", "turn before, after"], ["m M", "next, previous masked span"], ["e", "next observation"], ["d", "worst difference of engine and trainer"],
  ["c", "colour by author, log-prob, difference, advantage"], ["arrows", "token and line"], ["g", "the episode's group"], ["/", "search in the episode, then n N; elsewhere in all episodes"], ["Esc", "up"], ["?", "this"]];

function up() {
  if (help.open) { help.close(); return; }
  if (route.view === "run") return;
  if (route.view === "episode" || route.view === "group" || route.view === "worst") go(route.f ? {view: "step", f: route.f} : {view: "run"});
  else go({view: "run"});
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { if (event.target instanceof HTMLInputElement) event.target.blur(); else up(); return; }
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLButtonElement && event.key.startsWith("Enter")) return;
  const key = event.key === "?" ? () => help.showModal() : keys[event.key] || (event.key === "/" ? () => toSearch() : null);
  if (key) { event.preventDefault(); key(); }
});
document.getElementById("keys").addEventListener("click", () => help.showModal());
help.append(h("h2", {}, "keys"), h("dl", {}, HELP.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])), h("form", {method: "dialog"}, h("button", {}, "close")));
window.addEventListener("hashchange", draw);

/** The field for a text in all episodes; in a list, the list's own. */
function toSearch() {
  const field = main.querySelector("[role=search] input");
  if (field instanceof HTMLInputElement) field.focus(); else go({view: "search"});
}

async function poll() {
  try {
    const changed = await refresh();
    age();
    if (changed && (route.view === "run" || route.view === "compare")) await redraw();
  } catch {
    live.textContent = `the server does not answer (last ${Math.round((Date.now() - asked) / 1000)} s ago)`;
  }
  setTimeout(poll, POLL_MS);
}

function age() {
  const source = held.sources[route.s];
  live.textContent = source && source.live ? `live \u00b7 ${Math.round(Math.max(0, held.now - source.wrote))} s ago` : "";
}

async function redraw() {
  const at = document.documentElement.scrollTop;
  await draw();
  document.documentElement.scrollTop = at;
}

await refresh().catch((error) => main.replaceChildren(h("p", {class: "failed"}, error.message)));
age();
await draw();
setTimeout(poll, POLL_MS);
