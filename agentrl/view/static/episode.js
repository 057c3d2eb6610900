// @ts-check
// One episode: its facts, its tokens in virtual rows, and an inspector of the chosen token.
import { h, num, share, table, total, visible } from "./dom.js";
import { MARKS, cutLines, findIn, gapAt, imageAt, lineOf, piecesOf, runAt, sequenceOf, shade, worstGaps } from "./tokens.js";

const ROW = 20, TALLEST = 12000000, OVER = 5, TURNS = 40;
const MODES = ["author", "logprob", "gap", "advantage"];
const MODE_NAMES = {author: "author", logprob: "log-prob", gap: "engine-trainer", advantage: "advantage"};

/**
 * Draw an episode. `ctx`: {p: the address's parameters, change(p): keep them there, say(text): speak,
 * search(text): a promise of [sequence, start, stop], links: more elements at the top}.
 */
export function episodeView(data, ctx) {
  const sequences = data.sequences.map(sequenceOf);
  const state = {q: Math.min(Number(ctx.p.q) || 0, Math.max(0, sequences.length - 1)), t: -1, mode: Number(ctx.p.c) || 0, found: [], at: -1, worst: -1};
  const inspector = h("section", {class: "inspector", "aria-label": "token"});
  const pane = h("section", {class: "pane", "aria-label": "tokens"});
  const modes = MODES.map((mode, at) => h("button", {"data-mode": mode, onclick: () => recolour(at)}, MODE_NAMES[mode]));
  const found = h("output", {});
  const search = h("input", {type: "search", placeholder: "search in this episode  ( / )", "aria-label": "search", onchange: () => seek(search.value)});
  const sought = !ctx.p.t;
  let rows = null;

  const view = h("div", {class: "episode"},
    h("div", {class: "bar"}, ctx.links || [], h("span", {class: "modes"}, "colour: ", modes), search, found),
    h("div", {class: "columns"}, facts(data, sequences, (q, token = -1) => open(q, token), (role) => step(role, 1)), pane, inspector));

  function open(q, token) {
    state.q = q;
    if (!sequences.length) { pane.replaceChildren(textsOf(data)); inspector.replaceChildren(untold(data)); return; }
    rows = tokenRows(sequences[q], pictureOf, () => MODES[state.mode], () => state.t, choose);
    pane.replaceChildren(...[sequences.length > 1 ? tabs() : null, rows.element, unread()].filter(Boolean));
    rows.begin();
    choose(token >= 0 ? token : first(sequences[q]), true);
  }

  /** An image by its digest: from this file, or from the server. */
  function pictureOf(image, kind) {
    const src = data.pictures ? data.pictures[image.digest] : ctx.picture(image.digest);
    return src ? h("img", {class: kind, src, alt: image.label, title: image.label, loading: "lazy", "data-t": image.start}) : null;
  }

  function tabs() {
    return h("div", {class: "tabs", role: "tablist"}, sequences.map((one, at) => h("button", {
      role: "tab", "aria-selected": String(at === state.q), onclick: () => open(at, -1)}, `${one.name || `segment ${at + 1}`} (${num(one.length)})`)));
  }

  function unread() {
    return data.unread.length ? h("div", {class: "unread"}, h("strong", {}, "unread"), " what the environment answered last; no tokens", h("pre", {}, data.unread.join("\n"))) : null;
  }

  /** The first token to show: the one of the address, the first masked for its reason, or the first sampled one. */
  function first(sequence) {
    if (ctx.p.t && Number(ctx.p.q || 0) === state.q) return Math.min(Number(ctx.p.t), sequence.length - 1);
    const wanted = ctx.p.r && sequence.runs.find((run) => run.role === "masked" && (ctx.p.r === "any" || (run.reason || "not told") === ctx.p.r));
    const sampled = wanted || sequence.runs.find((run) => run.author === "model") || sequence.runs[0];
    return sampled ? sampled.start : 0;
  }

  function choose(token, centre = false) {
    if (token < 0 || !sequences.length || token >= sequences[state.q].length) return;
    state.t = token;
    rows.show(token, centre);
    inspector.replaceChildren(h("div", {}, inspected(data, sequences[state.q], token, pictureOf)));
    ctx.change({...ctx.p, q: state.q || "", t: token, c: state.mode || ""});
    const run = runAt(sequences[state.q], token);
    ctx.say(`token ${token}, ${sequences[state.q].words[sequences[state.q].index[token]]}, ${MARKS[run.role]}${run.reason ? `, not trained: ${run.reason}` : ""}`);
  }

  function recolour(at) {
    state.mode = at;
    modes.forEach((button, i) => button.setAttribute("aria-pressed", String(i === at)));
    if (rows) rows.draw();
    ctx.change({...ctx.p, q: state.q || "", t: state.t, c: at || ""});
  }

  /** The next or the previous run for which `fits` holds; it goes on in the next sequence. */
  function stepRun(fits, by) {
    for (let q = state.q, tries = 0; tries <= sequences.length; tries++, q = (q + by + sequences.length) % sequences.length) {
      const runs = by > 0 ? sequences[q].runs : [...sequences[q].runs].reverse();
      const here = tries === 0 ? state.t : by > 0 ? -1 : Infinity;
      const next = runs.find((run) => fits(run) && (by > 0 ? run.start > here : run.start < here && !(run.start <= here && here < run.stop)));
      if (next) { if (q === state.q) choose(next.start, true); else open(q, next.start); return; }
    }
  }

  function step(what, by) {
    if (!sequences.length) return;
    if (what === "masked") stepRun((run) => run.role === "masked", by);
    else if (what === "env") stepRun((run) => run.author === "env" || run.author === "unknown", by);
    else if (what === "turn") {
      const now = runAt(sequences[state.q], state.t).turn;
      stepRun((run) => run.author === "model" && (by > 0 ? run.turn > now : run.turn < now), by);
    } else if (what === "worst") {
      const worst = worstGaps(sequences[state.q], 50);
      if (!worst.length) { ctx.say("the trainer's log-probs are not kept"); found.textContent = "the trainer's log-probs are not kept"; return; }
      state.worst = (state.worst + 1) % worst.length;
      state.mode = 2; recolour(2);
      choose(worst[state.worst], true);
    } else if (what === "token") choose(state.t + by);
    else if (what === "line") choose(rows.below(state.t, by));
    else if (what === "found" && state.found.length) {
      state.at = (state.at + by + state.found.length) % state.found.length;
      const [q, token] = state.found[state.at];
      found.textContent = `${state.at + 1} of ${state.found.length}`;
      if (q === state.q) choose(token, true); else open(q, token);
    }
  }

  async function seek(text) {
    state.found = text ? await (ctx.search ? ctx.search(text) : local(text)) : [];
    state.at = -1;
    found.textContent = text ? `${state.found.length} found` : "";
    if (state.found.length) step("found", 1);
  }

  /** The words of the address, where a search has led here. */
  function seekGiven() {
    search.value = ctx.p.w || "";
    if (ctx.p.w && sought) seek(ctx.p.w);
  }

  async function local(text) {
    return sequences.flatMap((one, q) => findIn(one, text).map(([start, stop]) => [q, start, stop]));
  }

  const keys = {
    m: () => step("masked", 1), M: () => step("masked", -1), "]": () => step("turn", 1), "[": () => step("turn", -1),
    e: () => step("env", 1), d: () => step("worst", 1), c: () => recolour((state.mode + 1) % MODES.length),
    ArrowRight: () => step("token", 1), ArrowLeft: () => step("token", -1), ArrowDown: () => step("line", 1), ArrowUp: () => step("line", -1),
    "/": () => search.focus(), n: () => step("found", 1), N: () => step("found", -1),
  };
  return {element: view, keys, begin: () => { modes.forEach((button, i) => button.setAttribute("aria-pressed", String(i === state.mode))); open(state.q, -1); seekGiven(); }};
}

/** Rows by hand: only those that are seen exist. */
function tokenRows(sequence, pictureOf, mode, chosen, onchoose) {
  const inner = h("div", {class: "inner"});
  const scroll = h("div", {class: "rows", tabindex: 0, onscroll: () => requestAnimationFrame(draw), onclick: clicked}, inner);
  const map = h("canvas", {class: "map", width: 14, height: 400, "aria-hidden": true, onclick: (event) => jump(event.offsetY / map.clientHeight)});
  const element = h("div", {class: "tokens"}, scroll, map);
  let lines = null, height = 0, width = 0;

  function begin() {
    const columns = Math.max(20, Math.floor((scroll.clientWidth - 130) / charWidth(scroll)));
    if (columns === width) return;
    width = columns;
    lines = cutLines(sequence, width);
    height = Math.min(lines.count * ROW, TALLEST);
    inner.style.setProperty("height", `${height}px`);
    paintMap();
  }

  /** The scroll position stands for a line; over TALLEST pixels it is scaled. */
  function topLine() {
    const room = Math.max(1, height - scroll.clientHeight);
    return height < TALLEST ? scroll.scrollTop / ROW : scroll.scrollTop / room * Math.max(0, lines.count - scroll.clientHeight / ROW);
  }

  function draw() {
    const seen = Math.ceil(scroll.clientHeight / ROW), top = topLine(), from = Math.max(0, Math.floor(top) - OVER);
    const stop = Math.min(lines.count, Math.floor(top) + seen + OVER), drawn = [];
    for (let line = from; line < stop; line++) {
      const y = scroll.scrollTop + (line - top) * ROW;
      const run = runAt(sequence, lines.tokens[line]);
      drawn.push(h("div", {class: "row", "data-line": line, css: {transform: `translateY(${y.toFixed(1)}px)`}},
        h("span", {class: `mark ${run.role}`}, lines.tokens[line] === run.start && !lines.chars[line] ? label(run) : ""), parts(line)));
    }
    inner.replaceChildren(...drawn);
  }

  function label(run) {
    return `${MARKS[run.role]}${run.turn >= 0 ? ` t${run.turn + 1}` : ""}`;
  }

  /** Equal neighbours are one node. */
  function parts(line) {
    const found = [];
    let text = "", kind = "", start = -1;
    const flush = () => { if (start >= 0) { const span = h("span", {class: kind, "data-t": start}); span.textContent = visible(text).replaceAll("\n", "\u21b5"); found.push(span); } };
    for (const [token, piece] of piecesOf(sequence, lines, line)) {
      const image = imageAt(sequence, token);
      if (image && image.start === token) { flush(); start = -1; found.push(pictureOf(image, "thumb")); }
      const run = runAt(sequence, token);
      const next = `${run.role} ${shade(sequence, token, mode())}${token === chosen() ? " chosen" : ""}`;
      if (next !== kind || start < 0) { flush(); text = ""; kind = next; start = token; }
      text += piece;
    }
    flush();
    const run = runAt(sequence, lines.tokens[line]);
    const ends = line + 1 === lines.count || runAt(sequence, lines.tokens[line + 1]) !== run;
    if (ends && run.role === "masked") found.push(h("span", {class: "badge"}, `not trained: ${run.reason || "not told"}`));
    return h("span", {class: "text"}, found);
  }

  function clicked(event) {
    if (event.target instanceof HTMLImageElement) { onchoose(Number(event.target.dataset.t)); return; }
    const place = document.caretPositionFromPoint ? document.caretPositionFromPoint(event.clientX, event.clientY) : null;
    const node = place ? place.offsetNode : event.target, offset = place ? place.offset : 0;
    const span = node && (node.nodeType === 3 ? node.parentElement : node).closest("[data-t]");
    if (!span) return;
    const line = Number(span.closest("[data-line]").dataset.line);
    let token = Number(span.dataset.t), left = offset + (lines.tokens[line] === token ? lines.chars[line] : 0);
    while (token < sequence.length && left >= sequence.words[sequence.index[token]].length) { left -= sequence.words[sequence.index[token]].length; token++; }
    onchoose(Math.min(token, sequence.length - 1));
  }

  function show(token, centre) {
    const line = lineOf(lines, token), top = topLine(), seen = scroll.clientHeight / ROW;
    if (centre || line < top + 1 || line > top + seen - 2) to(Math.max(0, line - seen / 3));
    draw();
  }

  function to(line) {
    const room = Math.max(1, height - scroll.clientHeight);
    scroll.scrollTop = height < TALLEST ? line * ROW : line / Math.max(1, lines.count - scroll.clientHeight / ROW) * room;
  }

  function jump(part) { to(part * lines.count); draw(); }

  function below(token, by) {
    const line = Math.min(lines.count - 1, Math.max(0, lineOf(lines, token) + by));
    return lines.tokens[line];
  }

  function paintMap() {
    const paint = map.getContext("2d"), style = getComputedStyle(scroll);
    paint.clearRect(0, 0, 14, 400);
    for (const run of sequence.runs) {
      const y = lineOf(lines, run.start) / lines.count * 400;
      const end = run.stop < sequence.length ? lineOf(lines, run.stop) / lines.count * 400 : 400;
      paint.fillStyle = style.getPropertyValue(`--${run.role}`) || "#888";
      paint.fillRect(run.role === "masked" ? 0 : 5, y, run.role === "masked" ? 14 : 9, Math.max(1, end - y));
    }
  }

  new ResizeObserver(() => { if (!lines || !scroll.clientWidth) return; begin(); draw(); }).observe(scroll);
  return {element, begin, draw, show, below};
}

function charWidth(element) {
  const probe = h("span", {class: "text probe"}, "0".repeat(50));
  element.append(probe);
  const width = probe.getBoundingClientRect().width / 50;
  probe.remove();
  return width || 8;
}

/** What is known of one token. */
function inspected(data, sequence, token, pictureOf) {
  const image = imageAt(sequence, token);
  const run = runAt(sequence, token), turn = data.turns[run.turn];
  const word = sequence.words[sequence.index[token]];
  const reason = run.author === "model" && run.trained === false ? run.reason || "not told" : null;
  const why = reason && (data.reasons[reason] || ["The mask is 0, and the file does not say why.", ""]);
  const engine = sequence.engine ? sequence.engine[token] : NaN, trainer = sequence.trainer ? sequence.trainer[token] : NaN;
  const advantage = sequence.advantages ? sequence.advantages[token] : NaN;
  const none = (column, missing) => column ? "-" : missing;
  return [
    h("h2", {}, `token ${num(token)}`, " ", h("code", {}, JSON.stringify(word).slice(0, 60))),
    h("p", {class: `fate ${run.role}`}, reason ? `NOT TRAINED: ${reason}` : run.author === "model" ? run.trained ? "trained" : "sampled; whether it is trained is not told" : `not sampled: ${MARKS[run.role]}`),
    image ? h("figure", {}, pictureOf(image, "picture"), h("figcaption", {}, image.label)) : null,
    why ? h("p", {class: "why"}, why[0]) : run.author === "model" ? null : h("p", {class: "why"}, data.not_sampled[run.author] || ""),
    why ? h("p", {class: "option"}, h("strong", {}, "decided by "), why[1]) : null,
    run.trained && advantage === 0 ? h("p", {class: "why"}, "It is in the loss, but its group's rewards are all equal: the advantage is 0, and so is the gradient.") : null,
    h("dl", {},
      row("id", sequence.ids[token]), row("author", MARKS[run.role]), row("turn", run.turn >= 0 ? run.turn + 1 : "-"),
      row("log-prob, engine", Number.isNaN(engine) ? none(sequence.engine, "not kept") : `${num(engine, 4)}  (p ${num(Math.exp(engine))})`),
      row("log-prob, trainer", Number.isNaN(trainer) ? none(sequence.trainer, "not kept") : num(trainer, 4)),
      row("engine - trainer", Number.isNaN(gapAt(sequence, token)) ? "-" : num(gapAt(sequence, token), 3)),
      row("advantage", Number.isNaN(advantage) ? none(sequence.advantages, "not kept") : num(advantage)),
      row("weights", run.version ?? "-"),
      turn ? [row("turn ended by", turn.finish), row("turn's calls", (turn.calls || []).join(", ") || "none"), row("model, s", num(turn.generate_s)), row("env, s", num(turn.env_s)),
        turn.bad_call ? row("bad call", turn.bad_call) : null] : null),
  ];
}

function row(name, value) {
  return [h("dt", {}, name), h("dd", {}, value ?? "-")];
}

function untold(data) {
  return h("p", {class: "why"}, `This ${data.format} record holds text alone: which tokens were sampled, and which are trained, is not told.`);
}

function textsOf(data) {
  return h("div", {class: "texts"}, data.texts.map(([author, text, turn, trained]) => {
    const role = author === "model" ? trained === false ? "masked" : "untold" : author;
    return h("div", {class: "row plain"}, h("span", {class: `mark ${role}`}, `${MARKS[role]}${turn >= 0 ? ` t${turn + 1}` : ""}`), h("span", {class: `text ${role}`}, text));
  }));
}

/** The left column: reward, the ledger as a bar and as a sum, turns, the agent's tree. */
function facts(data, sequences, onsequence, onstep) {
  const o = data.outline, masked = total(o.masked);
  const counts = [["trained", o.trained || 0], ["masked", masked], ["env", o.observation || 0], ["template", o.scaffold || 0]];
  const all = counts.reduce((sum, [, count]) => sum + count, 0);
  const longest = Math.max(0.001, ...data.turns.map((turn) => (turn.generate_s || 0) + (turn.env_s || 0)));
  return h("aside", {class: "facts", "aria-label": "episode"},
    h("h2", {}, `${o.reward === undefined ? "no reward" : `reward ${num(o.reward)}`}`),
    h("p", {}, `stop ${o.stop || "not told"}`, o.advantage === undefined ? "" : `, advantage ${num(o.advantage)}`),
    o.failure ? h("p", {class: "failed"}, o.failure) : null,
    data.problems.length ? h("p", {class: "failed"}, data.problems.map((p) => `${p.severity}: ${p.kind}, ${p.detail}`).join("; ")) : null,
    all ? h("div", {class: "ledger", role: "img", "aria-label": counts.map(([name, count]) => `${name} ${count}`).join(", ")},
      counts.map(([name, count]) => count ? h("span", {class: name, title: `${name} ${num(count)}`, css: {"flex-grow": count}}) : null)) : null,
    h("p", {class: "sum"}, `sampled ${num(o.sampled || 0)} = trained ${num(o.trained || 0)} + masked ${num(masked)}`),
    h("ul", {class: "chips"}, Object.entries(o.masked || {}).map(([reason, count]) => h("li", {}, h("button", {"data-reason": reason, title: (data.reasons[reason] || [""])[0], onclick: () => onstep("masked")}, `${reason} ${num(count)} (${share(count, o.sampled)})`)))),
    data.decoded || !sequences.length ? null : h("p", {class: "why"}, "no tokenizer is known for these tokens: ids are shown; start with --model NAME"),
    Object.keys(o.reward_parts || {}).length ? table([["reward part", ([name]) => name], ["value", ([, value]) => num(value)]], Object.entries(o.reward_parts)) : null,
    data.turns.length ? h("div", {class: "turns"}, h("h3", {}, "turns"), data.turns.slice(0, TURNS).map((turn, at) => h("button", {
      title: `model ${num(turn.generate_s)} s, env ${num(turn.env_s)} s`, onclick: () => toTurn(sequences, at, onsequence)},
    `t${at + 1}`, h("span", {class: "time"}, h("i", {class: "trained", css: {width: `${50 * (turn.generate_s || 0) / longest}%`}}), h("i", {class: "env", css: {width: `${50 * (turn.env_s || 0) / longest}%`}})),
    turn.bad_call ? " !" : "", (turn.calls || []).join(", "))), data.turns.length > TURNS ? h("p", {}, `${data.turns.length - TURNS} more: the keys [ and ]`) : null) : null,
    data.session ? tree(data, onsequence) : null,
    h("details", {}, h("summary", {}, "everything else"), h("pre", {}, JSON.stringify({...o, ...data.facts}, null, 1).slice(0, 20000))));
}

function toTurn(sequences, turn, onsequence) {
  const q = sequences.findIndex((one) => one.runs.some((run) => run.author === "model" && run.turn === turn));
  if (q >= 0) onsequence(q, sequences[q].runs.find((run) => run.author === "model" && run.turn === turn).start);
}

/** A gateway session: replies below each other, branches indented; a click opens the reply's segment. */
function tree(data, onsequence) {
  const below = new Map();
  for (const node of data.session.nodes) {
    const key = node.parent ?? null;
    below.set(key, [...(below.get(key) || []), node]);
  }
  const items = [], waiting = (below.get(null) || []).map((node) => [node, 0]).reverse();
  while (waiting.length) {
    const [node, depth] = waiting.pop();
    items.push(h("li", {css: {"margin-left": `${depth}em`}}, h("button", {class: node.masked ? "masked" : "trained", onclick: () => onsequence(node.segment)},
      `#${node.id} ${node.dropped ? "dropped" : node.line}${node.branch ? ` ${node.branch}` : ""}: ${num(node.sampled_tokens)} tokens${node.masked ? `, masked ${node.masked}` : ""}`)));
    const next = below.get(node.id) || [];
    waiting.push(...next.filter((one) => one.segment === node.segment).map((one) => [one, depth]));
    waiting.push(...next.filter((one) => one.segment !== node.segment).reverse().map((one) => [one, depth + 1]));
  }
  return h("div", {class: "tree"}, h("h3", {}, "the agent's session"), h("ul", {}, items), data.session.refused.length ? h("p", {}, `${data.session.refused.length} requests refused`) : null);
}
