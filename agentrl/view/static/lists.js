// @ts-check
// Lists of episodes: one step with its groups, tools and times; or every episode that a question finds.
import { ask } from "./api.js";
import { scatter } from "./charts.js";
import { h, num, share, table, total } from "./dom.js";
import { address } from "./route.js";

const seconds = (o) => (o.generate_s || 0) + (o.env_s || 0);
export const tick = (o) => o.failure ? "!" : o.reward === undefined ? "?" : o.reward >= 1 ? "\u2713" : o.reward <= 0 ? "\u2717" : "\u00bd";

/** An episode's link; only text if its tokens are not kept. */
function link(s, [f, n, o], props, text, p = {}) {
  return o.unkept ? h("span", {...props, class: `${props.class || ""} unkept`, title: "its tokens are not kept; raise keep.groups to keep more"}, text) : h("a", {...props, href: address({s, view: "episode", f, n, p})}, text);
}

/** A table of episodes: [file, number, outline]. */
export function episodeTable(s, rows, given = {}) {
  return table([
    ["episode", (r) => link(s, r, {class: "to"}, r[2].group !== undefined ? `${r[0]} \u00b7 group ${r[2].group} \u00b7 ${r[2].member ?? r[1]}` : `${r[0]} ${r[1]}`, given.p), (r) => r[1]],
    ["task", (r) => String(r[2].task || "").slice(0, 40), (r) => r[2].task],
    ["reward", (r) => `${tick(r[2])} ${num(r[2].reward)}`, (r) => r[2].reward],
    ["advantage", (r) => num(r[2].advantage), (r) => r[2].advantage],
    ["stop", (r) => r[2].stop || "not told", (r) => r[2].stop],
    ["turns", (r) => num(r[2].turns || 0), (r) => r[2].turns || 0],
    ["tokens", (r) => num(r[2].tokens || 0), (r) => r[2].tokens || 0],
    ["ledger", (r) => ledger(r[2]), (r) => r[2].trained || 0],
    ["not trained", (r) => h("span", {class: "chips"}, Object.entries(r[2].masked || {}).map(([reason, count]) => h("b", {class: "masked"}, `${reason} ${num(count)} `))), (r) => total(r[2].masked)],
    ["calls", (r) => num(total(r[2].calls)), (r) => total(r[2].calls)],
    ["errors", (r) => num(total(r[2].tool_errors) + (r[2].bad_calls || 0)), (r) => total(r[2].tool_errors) + (r[2].bad_calls || 0)],
    ["seconds", (r) => num(seconds(r[2])), (r) => seconds(r[2])],
    ["gap", (r) => num(r[2].gap), (r) => r[2].gap],
    ["answer", (r) => r[2].failure || r[2].answer || "", (r) => r[2].answer],
  ], rows, {...given, class: "episodes", row: (r) => ({"data-n": r[1]})});
}

function ledger(o) {
  const parts = [["trained", o.trained || 0], ["masked", total(o.masked)], ["env", o.observation || 0], ["template", o.scaffold || 0]];
  return h("span", {class: "ledger", role: "img", "aria-label": parts.map(([n, c]) => `${n} ${c}`).join(", ")}, parts.map(([name, count]) => count ? h("span", {class: name, css: {"flex-grow": count}}) : null));
}

/** One file: a step of a run, an evaluation, or any other file of episodes. */
export async function stepView(ctx) {
  const {s, f} = ctx.route, source = ctx.source;
  const found = await ask("list", {s, f, limit: source.kind === "run" ? 5000 : 400, offset: ctx.route.p.offset || 0});
  const rows = found.rows, step = Number(f.replace(/^step_/, ""));
  const groups = new Map();
  for (const row of rows) if (row[2].group !== undefined) groups.set(row[2].group, [...(groups.get(row[2].group) || []), row]);
  const metrics = (source.metrics || []), at = metrics.findIndex((m) => m.step === step), now = metrics[at], before = metrics[at - 1];
  return h("div", {class: "step"}, neighbours(ctx, f),
    found.total > rows.length ? pager(ctx, found) : null,
    now ? h("p", {}, keptOf(rows, now)) : null,
    groups.size ? groupGrid(ctx, groups) : null,
    now && before ? beside(now, before) : null,
    h("section", {class: "charts"},
      scatter("reward by tokens", points(rows, (o) => o.tokens || 0), {x: "tokens", onpick: (p) => p.to && ctx.go(p.to)}),
      scatter("reward by calls", points(rows, (o) => total(o.calls)), {x: "calls", onpick: (p) => p.to && ctx.go(p.to)}),
      answers(rows), parts(rows), tools(ctx, rows), slowest(ctx, rows)),
    h("h2", {}, `${num(found.total)} episodes`), episodeTable(s, rows, {by: 2, down: false}));

  function points(all, x) {
    return all.filter((r) => r[2].reward !== undefined).map((r) => ({x: x(r[2]), y: r[2].reward, title: `${r[2].task || r[1]}: ${num(r[2].reward)}`, to: r[2].unkept ? null : {view: "episode", f: r[0], n: r[1]}}));
  }
}

function keptOf(rows, now) {
  const kept = rows.filter((r) => !r[2].unkept).length;
  const groups = new Set(rows.map((r) => r[2].group)).size;
  return kept < rows.length || rows.some((r) => r[2].offset !== undefined) ? `tokens of ${kept} of ${rows.length} episodes are kept (keep.groups)` : `${groups} of ${num(now.groups)} groups are kept (keep.groups)`;
}

function neighbours(ctx, f) {
  const steps = ctx.source.files.filter((name) => /^step_\d+$/.test(name)), at = steps.indexOf(f);
  if (at < 0) return null;
  const link = (name, text) => name ? h("a", {href: address({s: ctx.route.s, view: "step", f: name})}, text) : h("span", {}, text);
  return h("p", {class: "neighbours"}, link(steps[at - 1], "\u2190 step before"), " \u00b7 ", link(steps[at + 1], "step after \u2192"), " \u00b7 ",
    h("a", {href: address({s: ctx.route.s, view: "worst", f})}, "worst tokens"), " \u00b7 ", h("a", {href: address({s: ctx.route.s, view: "audit", f})}, "audit"));
}

/** This step beside the one before: what changed when the reward did. */
function beside(now, before) {
  const flat = (m) => {
    const all = {};
    for (const name of ["reward_mean", "response_length_mean", "turns_mean", "tool_call_rate", "bad_call_rate", "truncation_rate", "failed_episodes", "zero_advantage_groups", "groups", "logprob_diff_mean", "kl", "grad_norm"]) all[name] = m[name];
    for (const [name, title] of [["stops", "stop"], ["tool_errors", "tool error"], ["masked_tokens", "masked"], ["reward_parts", "reward part"], ["failures", "failure"]])
      for (const [key, value] of Object.entries(m[name] || {})) all[`${title}: ${key}`] = value;
    return all;
  };
  const one = flat(before), other = flat(now);
  const rows = [...new Set([...Object.keys(other), ...Object.keys(one)])].map((name) => [name, one[name] ?? 0, other[name] ?? 0]).filter(([, a, b]) => Number.isFinite(a) && Number.isFinite(b) && a !== b);
  const change = ([, a, b]) => Math.abs(b - a) / Math.max(Math.abs(a), Math.abs(b), 1e-9);
  return h("details", {open: true, class: "beside"}, h("summary", {}, `step ${now.step} beside step ${before.step}: the largest changes first`),
    table([["", (r) => r[0].replaceAll("_", " ")], ["before", (r) => num(r[1])], ["now", (r) => num(r[2])], ["change", (r) => `${r[2] > r[1] ? "+" : ""}${num(r[2] - r[1])}`, change]], rows, {by: 3, most: 12}));
}

function groupGrid(ctx, groups) {
  return h("section", {class: "groups", "aria-label": "groups"}, h("h2", {}, "groups"), h("ul", {}, [...groups].sort((a, b) => a[0] - b[0]).map(([group, rows]) => {
    const flat = new Set(rows.map((r) => r[2].reward).filter((reward) => reward !== undefined)).size < 2;
    return h("li", {class: flat ? "flat" : ""}, h("a", {"data-group": group, href: address({s: ctx.route.s, view: "group", f: ctx.route.f, n: group})}, `group ${group}`, h("span", {class: "task"}, ` ${rows[0][2].task || ""}`.slice(0, 30))), " ",
      rows.map((r) => link(ctx.route.s, r, {class: `cell ${tick(r[2]) === "\u2713" ? "trained" : "masked"}`, title: `reward ${num(r[2].reward)}, ${r[2].stop}`}, tick(r[2]))),
      flat ? h("em", {}, " no advantage") : null);
  })));
}

function answers(rows) {
  const counts = new Map();
  for (const [, , o] of rows) if (o.answer) counts.set(o.answer, [...(counts.get(o.answer) || []), o.reward ?? 0]);
  const equal = [...counts].filter(([, all]) => all.length > 1).sort((a, b) => b[1].length - a[1].length).slice(0, 12);
  return h("div", {class: "card", "data-card": "answers"}, h("h3", {}, "equal answers"), equal.length
    ? table([["answer", ([answer]) => answer], ["times", ([, all]) => all.length], ["mean reward", ([, all]) => num(all.reduce((a, b) => a + b, 0) / all.length)]], equal)
    : h("p", {}, "no two episodes end with the same answer"));
}

function parts(rows) {
  const names = [...new Set(rows.flatMap((r) => Object.keys(r[2].reward_parts || {})))];
  return h("div", {class: "card", "data-card": "parts"}, h("h3", {}, "reward parts"), names.length ? table([["part", (n) => n], ["mean", (n) => num(mean(rows.map((r) => (r[2].reward_parts || {})[n])))], ["of episodes", (n) => rows.filter((r) => n in (r[2].reward_parts || {})).length]], names) : h("p", {}, "the reward has no parts"));
}

function mean(values) {
  const found = values.filter((v) => Number.isFinite(v));
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : NaN;
}

/** Calls and errors of each tool; a click lists the episodes. */
function tools(ctx, rows) {
  const found = new Map();
  const entry = (name) => { if (!found.has(name)) found.set(name, {name, calls: 0, episodes: 0, errors: {}, seconds: 0}); return found.get(name); };
  for (const [, , o] of rows) {
    for (const [name, count] of Object.entries(o.calls || {})) { const e = entry(name); e.calls += count; e.episodes++; e.seconds += o.env_s || 0; }
    for (const [key, count] of Object.entries(o.tool_errors || {})) { const e = entry(key.split(":")[0]); e.errors[key] = (e.errors[key] || 0) + count; }
  }
  const bad = rows.reduce((sum, r) => sum + (r[2].bad_calls || 0), 0);
  return h("div", {class: "card", "data-card": "tools"}, h("h3", {}, "tools"), found.size ? table([
    ["tool", (t) => h("a", {href: address({s: ctx.route.s, view: "list", f: ctx.route.f, p: {tool: t.name}})}, t.name), (t) => t.name],
    ["calls", (t) => num(t.calls), (t) => t.calls],
    ["errors", (t) => Object.entries(t.errors).map(([key, count]) => h("a", {href: address({s: ctx.route.s, view: "list", f: ctx.route.f, p: {tool: key}})}, `${key} ${count} `)), (t) => total(t.errors)],
    ["env s an episode", (t) => num(t.seconds / Math.max(1, t.episodes)), (t) => t.seconds],
  ], [...found.values()], {by: 2}) : h("p", {}, "no tool was called"), h("p", {}, `${bad} turns with calls that could not be read or do not fit`));
}

function slowest(ctx, rows) {
  const timed = rows.filter((r) => seconds(r[2]) > 0).sort((a, b) => seconds(b[2]) - seconds(a[2])).slice(0, 8);
  return h("div", {class: "card", "data-card": "time"}, h("h3", {}, "slowest episodes"), timed.length ? table([
    ["episode", (r) => link(ctx.route.s, r, {}, r[2].task || `episode ${r[1]}`)], ["model, s", (r) => num(r[2].generate_s || 0)], ["env, s", (r) => num(r[2].env_s || 0)],
    ["", (r) => h("span", {class: "time"}, h("i", {class: "trained", css: {width: `${100 * (r[2].generate_s || 0) / seconds(timed[0][2])}%`}}), h("i", {class: "env", css: {width: `${100 * (r[2].env_s || 0) / seconds(timed[0][2])}%`}}))],
  ], timed) : h("p", {}, "seconds are not recorded"));
}

function pager(ctx, found) {
  const offset = Number(ctx.route.p.offset || 0), to = (o) => address({...ctx.route, p: {...ctx.route.p, offset: o || ""}});
  return h("p", {class: "neighbours"}, `episodes ${num(offset)} to ${num(offset + found.rows.length)} of ${num(found.found ?? found.total)} `, offset ? h("a", {href: to(Math.max(0, offset - 400))}, "before ") : null,
    offset + found.rows.length < (found.found ?? found.total) ? h("a", {href: to(offset + found.rows.length)}, " after") : null);
}

/** All episodes that the filters in the address find. */
export async function listView(ctx) {
  const {s, f, p} = ctx.route, found = await ask("list", {s, ...(f ? {f} : {}), ...p});
  const field = (name, hint) => h("label", {}, `${name} `, h("input", {name, value: p[name] || "", placeholder: hint, size: 12}));
  const form = h("form", {class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); ctx.go({view: "list", f, p: Object.fromEntries(new FormData(form))}); }},
    field("text", "task or answer"), field("stop", "max_turns"), field("reason", "overlong, any"), field("reward", "<0.5, none"), field("tool", "name or error"), field("sort", "-tokens"), h("button", {}, "filter"));
  return h("div", {}, form, h("p", {}, `${num(found.found)} of ${num(found.looked_at)} episodes`, found.looked_at < found.total ? `; ${num(found.total - found.looked_at)} are not read yet: filter again to read on` : ""),
    found.found > found.rows.length ? pager(ctx, found) : null, episodeTable(s, found.rows, {p: p.reason ? {r: p.reason} : {}}));
}

/** The episodes of a group beside each other, with the turn at which they part. */
export async function groupView(ctx) {
  const {s, f, n, p} = ctx.route, found = await ask("group", {s, f, ...(p.n ? {n: p.n} : {g: n})});
  const members = [...found.members].sort((a, b) => (b.outline.reward ?? -1) - (a.outline.reward ?? -1));
  const most = Math.max(0, ...members.map((m) => m.turns.length));
  const differ = new Set(members.map((m) => m.outline.reward)).size > 1;
  return h("div", {class: "group"}, h("p", {}, found.parted === null ? "all of them say the same" : `they part in turn ${found.parted + 1}`, differ ? "" : "; all rewards are equal, so nothing is learned from them", found.left_out ? `; the tokens of ${found.left_out} more are not kept` : ""),
    h("div", {class: "beside"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "turn"), members.map((m) => h("th", {scope: "col"}, h("a", {href: address({s, view: "episode", f, n: m.number})}, `${tick(m.outline)} reward ${num(m.outline.reward)}`), h("small", {}, ` ${m.outline.stop || ""}, advantage ${num(m.outline.advantage)}`))))),
      h("tbody", {}, Array.from({length: most}, (_, turn) => h("tr", {class: turn === found.parted ? "parted" : ""}, h("th", {scope: "row"}, turn + 1, turn === found.parted ? h("small", {}, " parts here") : null),
        members.map((m) => h("td", {}, m.turns[turn] ? [h("p", {class: m.turns[turn].reason ? "masked" : "trained"}, m.turns[turn].said, m.turns[turn].reason ? h("span", {class: "badge"}, `not trained: ${m.turns[turn].reason}`) : null), m.turns[turn].read ? h("p", {class: "env"}, m.turns[turn].read.slice(0, 1500)) : null] : null))))))));
}

/** The tokens at which engine and trainer differ most. */
export async function worstView(ctx) {
  const {s, f} = ctx.route, found = await ask("worst", {s, f});
  if (!found.tokens.length) return h("p", {}, found.told ? "no token of a kept episode has both log-probs" : "the trainer's log-probs are not kept in this file");
  return h("div", {}, h("p", {}, `${found.tokens.length} tokens of ${found.episodes} episodes, the largest differences first`), table([
    ["token", (t) => h("a", {class: "to", href: address({s, view: "episode", f, n: t.episode, p: {q: t.sequence || "", t: t.token, c: 2}})}, `episode ${t.episode}, token ${num(t.token)}`), (t) => t.token],
    ["text", (t) => h("span", {class: "around"}, t.before, h("mark", {}, t.text || `\u27e8${t.id}\u27e9`), t.after)],
    ["engine", (t) => num(t.engine, 4), (t) => t.engine], ["trainer", (t) => num(t.trainer, 4), (t) => t.trainer], ["difference", (t) => num(t.engine - t.trainer), (t) => t.gap],
    ["turn", (t) => t.turn + 1, (t) => t.turn], ["trained", (t) => t.trained ? "yes" : `no: ${t.reason || "not told"}`],
  ], found.tokens, {by: 4}));
}

export async function auditView(ctx) {
  const {s, f} = ctx.route, found = await ask("audit", {s, f});
  return h("div", {}, found.reports.map((r) => h("section", {class: `audit ${r.findings.length ? r.findings[0].level : ""}`}, h("h2", {}, r.name),
    h("p", {}, `${r.formats.join(", ")}: ${num(r.episodes)} episodes, ${num(r.sequences)} samples; sampled ${num(r.sampled)} = trained ${num(r.trained)} + masked ${num(total(r.masked))} + not told ${num(r.untold)}; ${r.split} of ${r.conversations} conversations are several samples`),
    Object.keys(r.masked).length ? h("ul", {class: "chips"}, Object.entries(r.masked).map(([reason, count]) => h("li", {}, `${reason} ${num(count)} (${share(count, r.sampled)})`))) : null,
    r.findings.length ? table([["", (x) => h("b", {class: x.level === "error" ? "masked" : ""}, x.level)], ["what", (x) => x.check], ["times", (x) => num(x.details.count), (x) => x.details.count], ["tokens", (x) => num(x.details.tokens), (x) => x.details.tokens], ["first", (x) => x.file], ["", (x) => x.message]], r.findings)
      : h("p", {}, "nothing is lost"))));
}

/** Two runs or more: curves over each other, the keys that differ, and the same tasks. */
export async function compareView(ctx, chart) {
  const found = await ask("compare");
  const states = found.places.map((place) => ctx.sources[place]), cls = ["trained", "masked", "env", "template"];
  const curve = (title, of, given = {}) => chart(title, states.map((one, i) => ({name: found.runs[i], class: cls[i % 4], points: one.metrics.filter((m) => Number.isFinite(of(m))).map((m) => [m.step, of(m)])})), given);
  const evaluations = [...new Set(found.held_out.flatMap((one) => Object.keys(one)))];
  return h("div", {class: "compare"},
    h("section", {class: "charts"}, curve("reward, sampled", (m) => m.reward_mean), curve("response tokens", (m) => m.response_length_mean), curve("groups without an advantage", (m) => m.zero_advantage_groups / Math.max(1, m.groups), {low: 0, high: 1}), curve("seconds a step", (m) => m.seconds, {low: 0})),
    h("h2", {}, `${Object.keys(found.config).length} keys differ`), table([["key", ([k]) => k], ...found.runs.map((name, i) => [name, ([, values]) => JSON.stringify(values[i])])], Object.entries(found.config), {class: "config"}),
    h("h2", {}, "held out, with 95 % intervals"), table([["evaluation", (e) => e], ...found.runs.map((name, i) => [name, (e) => { const x = found.held_out[i][e]; return x && x.mean !== null ? `${num(x.mean)} (${num(x.interval[0])} to ${num(x.interval[1])}, ${x.tasks} tasks)` : "-"; }])], evaluations),
    h("h2", {}, "the same held-out task in each"), found.unlike.length ? h("p", {class: "failed"}, `not paired: ${found.unlike.join("; ")}`) : table([["task", (r) => r[0], (r) => r[0]], ...found.runs.map((name, i) => [name, (r) => h("a", {href: address({s: found.places[i], view: "episode", f: r[i + 1][0], n: r[i + 1][1]})}, num(r[i + 1][2])), (r) => r[i + 1][2]])], found.shared, {most: 200}));
}
