// @ts-check
// The page of a run, and of a folder or a file of episodes.
import { chart } from "./charts.js";
import { h, num, share, table, total } from "./dom.js";
import { address } from "./route.js";

const ENDS = 5;

export function overview(source, ctx) {
  if (source.kind !== "run") return plainFiles(source, ctx);
  const steps = source.metrics, to = (step) => ctx.go({view: "step", f: nearest(source.files, step)});
  const line = (name, cls, of = (m) => m[name]) => ({name, class: cls, points: steps.filter((m) => Number.isFinite(of(m))).map((m) => [m.step, of(m)])});
  const reasons = [...new Set(steps.flatMap((m) => Object.keys(m.masked_tokens || {})))];
  const events = source.events || [], marks = events.filter((e) => e.step !== undefined && e.step !== null).map((e) => [e.step, e.message]);
  const heldOut = heldOutPoints(source);
  return h("div", {class: "overview"},
    verdict(source, heldOut), causes(source), inFlight(source, ctx.now),
    h("section", {class: "charts", "aria-label": "curves"},
      chart("reward", [line("sampled", "trained", (m) => m.reward_mean), {name: "held out", class: "env", points: heldOut, dots: true}].filter((s) => s.points.length), {onpick: to, marks, missing: "no step yet"}),
      chart("masked share", reasons.map((reason, i) => line(reason, `mask${i % 6}`, (m) => ((m.masked_tokens || {})[reason] || 0) / Math.max(1, m.sampled_tokens))),
        {stacked: true, low: 0, onpick: to, missing: "nothing is masked", onname: (reason) => ctx.go({view: "list", p: {reason}})}),
      chart("engine against trainer", [line("mean", "trained", (m) => m.logprob_diff_mean), line("max", "masked", (m) => m.logprob_diff_max)].filter((s) => s.points.length), {low: 0, onpick: (step) => ctx.go({view: "worst", f: nearest(source.files, step)})}),
      chart("groups without an advantage", [line("share", "masked", (m) => m.zero_advantage_groups / Math.max(1, m.groups))].filter((s) => s.points.length), {low: 0, high: 1, onpick: to}),
      chart("seconds a step", [line("hand over", "mask2", (m) => m.hand_over_s), line("rollout", "mask0", (m) => m.rollout_s), line("train", "mask1", (m) => m.train_s)].filter((s) => s.points.length), {stacked: true, low: 0, onpick: to}),
      chart("response tokens", [line("mean", "env", (m) => m.response_length_mean)].filter((s) => s.points.length), {low: 0, onpick: to}),
      chart("bad calls and cut episodes", [line("bad call rate", "masked", (m) => m.bad_call_rate), line("cut", "env", (m) => m.truncation_rate)].filter((s) => s.points.length), {low: 0, onpick: to}),
      source.imitation.length ? chart("loss of imitation", [{name: "loss", class: "trained", points: source.imitation.map((m) => [m.step, m.loss])}], {}) : null),
    strip(source, steps), files(source, steps, ctx), warnings(events, ctx, source), settings(source));
}

/** Is it learning: the first steps against the last, and what the rest of the run says at a glance. */
function verdict(source, heldOut) {
  const steps = source.metrics;
  const mean = (lines, name) => lines.map((m) => m[name]).filter(Number.isFinite).reduce((a, b, _, all) => a + b / all.length, 0);
  const first = mean(steps.slice(0, ENDS), "reward_mean"), last = mean(steps.slice(-ENDS), "reward_mean");
  const sum = (name) => steps.reduce((all, m) => all + (m[name] || 0), 0);
  const masked = steps.reduce((all, m) => all + total(m.masked_tokens), 0), seconds = sum("rollout_s") + sum("train_s") + sum("hand_over_s");
  const rose = last - first, word = !steps.length ? "no step yet" : steps.length < 2 * ENDS ? "too few steps to say" : Math.abs(rose) < 0.02 ? "flat" : rose > 0 ? "rising" : "falling";
  const items = [
    ["sampled reward", steps.length ? `${num(first)} \u2192 ${num(last)}` : "-", word],
    ["held out", heldOut.length ? heldOut.map(([, y]) => num(y)).join(" \u2192 ") : "not measured", heldOut.length ? `at step ${heldOut.map(([x]) => x).join(", ")}` : ""],
    ...heldOut.filter(([x]) => source.best === `step_${String(x).padStart(6, "0")}`).map(([x, y]) => ["best", num(y), `at step ${x}, in the folder best`]),
    ["steps", num(steps.length), source.live ? "running" : source.summary ? "finished" : "not finished"],
    ["masked", share(masked, sum("sampled_tokens")), `of ${num(sum("sampled_tokens"))} sampled tokens`],
    ["no advantage", share(sum("zero_advantage_groups"), sum("groups")), "of all groups"],
    ["rollout | train", `${share(sum("rollout_s"), seconds)} | ${share(sum("train_s"), seconds)}`, `of ${num(seconds)} s`],
    ["failed episodes", num(sum("failed_episodes")), `of ${num(sum("episodes"))}`],
  ];
  return h("section", {class: "verdict", "aria-label": "verdict"}, items.map(([name, value, beside]) => h("div", {}, h("span", {}, name), h("strong", {}, value), h("small", {}, beside))));
}

/** Why it does not learn, or that it learned, with the paragraph of the documentation that helps. */
function causes(source) {
  if (!source.verdicts.length) return null;
  return h("section", {class: "causes", "aria-label": "causes"}, source.verdicts.map((v) => h("p", {}, v.text, v.link ? h("small", {}, ` ${v.link}`) : null)));
}

/** Step and mean of each evaluation. The last evaluation of a step counts: after a warm start, not before. */
export function heldOutPoints(source) {
  const means = new Map(source.evaluations.filter((e) => Number.isFinite(e.mean)).map((e) => [e.step, e.mean]));
  return [...means].sort(([a], [b]) => a - b);
}

/** The step file of a step, or the one closest to it. */
export function nearest(files, step) {
  const steps = files.filter((name) => /^step_\d+$/.test(name));
  if (!steps.length) return files[0] || "";
  return steps.reduce((best, name) => Math.abs(Number(name.slice(5)) - step) < Math.abs(Number(best.slice(5)) - step) ? name : best, steps[0]);
}

function inFlight(source, now) {
  const flying = source.inflight;
  if (!flying || !source.live) return h("section", {class: "flight", "aria-label": "in flight"}, h("h2", {}, "in flight"), h("p", {}, source.live ? "not recorded: the run writes no inflight.json" : "nothing: the run is not going on"));
  const age = Math.max(0, now - flying.written);
  return h("section", {class: "flight", "aria-label": "in flight"},
    h("h2", {}, `in flight: ${flying.episodes.length} episodes`, h("small", {}, ` written ${num(age, 2)} s ago`)),
    table([["episode", (e) => e.name, (e) => e.name], ["task", (e) => e.task, (e) => e.task], ["age, s", (e) => num(now - e.started), (e) => -e.started],
      ["turn", (e) => num(e.turn), (e) => e.turn], ["waits for", (e) => e.waiting], ["since, s", (e) => num(now - e.since), (e) => -e.since]], flying.episodes, {by: 2, most: 50}));
}

function strip(source, steps) {
  const rewards = new Map(steps.map((m) => [m.step, m.reward_mean]));
  const kept = source.files.filter((name) => /^step_\d+$/.test(name));
  if (!kept.length) return null;
  const values = [...rewards.values()], low = Math.min(...values, 0), high = Math.max(...values, low + 1e-9);
  return h("section", {class: "strip", "aria-label": "steps"}, kept.map((name) => {
    const step = Number(name.slice(5)), reward = rewards.get(step), level = reward === undefined ? 0 : Math.round((reward - low) / (high - low) * 5);
    return h("a", {class: `level${level}`, href: address({s: source.at, view: "step", f: name}), title: `step ${step}, reward ${num(reward)}`}, kept.length <= 40 ? step : "");
  }));
}

function files(source, steps, ctx) {
  const reasons = steps.reduce((all, m) => { for (const [k, v] of Object.entries(m.masked_tokens || {})) all[k] = (all[k] || 0) + v; return all; }, {});
  const errors = steps.reduce((all, m) => { for (const [k, v] of Object.entries(m.tool_errors || {})) all[k] = (all[k] || 0) + v; return all; }, {});
  const stops = steps.reduce((all, m) => { for (const [k, v] of Object.entries(m.stops || {})) all[k] = (all[k] || 0) + v; return all; }, {});
  const chips = (title, counts, key, none) => h("div", {class: "chipline"}, h("h3", {}, title), Object.keys(counts).length
    ? h("ul", {class: "chips"}, Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([name, count]) => h("li", {}, h("a", {href: address({s: source.at, view: "list", p: {[key]: name}})}, `${name} ${num(count)}`))))
    : h("p", {}, none));
  const evaluations = source.files.filter((name) => name.startsWith("eval_"));
  return h("section", {class: "finding", "aria-label": "find"},
    chips("why tokens are masked", reasons, "reason", "nothing is masked"), chips("tools that fail", errors, "tool", "no tool failed"), chips("how episodes stop", stops, "stop", "no step yet"),
    h("div", {class: "chipline"}, h("h3", {}, "evaluations"), h("ul", {class: "chips"}, evaluations.map((name) => h("li", {}, h("a", {href: address({s: source.at, view: "step", f: name})}, name))))),
    h("p", {}, h("a", {href: address({s: source.at, view: "list"})}, "all episodes"), " \u00b7 ", h("a", {href: address({s: source.at, view: "search"})}, "search their text"), " \u00b7 ", h("a", {href: address({s: source.at, view: "audit"})}, "audit: is any token lost?"),
      ctx.sources.filter((one) => one.kind === "run").length > 1 ? [" \u00b7 ", h("a", {href: address({s: source.at, view: "compare"})}, "compare the runs")] : null));
}

function warnings(events, ctx, source) {
  if (!events.length) return null;
  return h("section", {"aria-label": "warnings"}, h("h2", {}, `${events.length} warnings`), h("ul", {class: "events"}, events.slice(-50).reverse().map((e) =>
    h("li", {}, e.step ? h("a", {href: address({s: source.at, view: "step", f: nearest(source.files, e.step)})}, `step ${e.step}`) : e.kind || "", ` ${e.message}`))));
}

function settings(source) {
  return h("details", {}, h("summary", {}, "configuration"), h("pre", {}, JSON.stringify(source.config, null, 1)));
}

function plainFiles(source, ctx) {
  return h("div", {class: "overview"},
    h("p", {}, `${source.files.length} ${source.files.length === 1 ? "file" : "files"}: `, h("a", {href: address({s: source.at, view: "audit"})}, "audit: is any token lost?"), " \u00b7 ", h("a", {href: address({s: source.at, view: "search"})}, "search the text")),
    h("ul", {class: "files"}, source.files.map((name) => h("li", {}, h("a", {href: address({s: source.at, view: "step", f: name})}, name)))));
}
