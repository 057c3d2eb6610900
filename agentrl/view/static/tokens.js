// @ts-check
// Columns of tokens and their lines, as pure functions: no document is needed.

/** @typedef {{length: number, prompt: number, words: string[], index: Uint32Array, ids: Int32Array, name: string,
 *   engine: Float32Array|null, trainer: Float32Array|null, advantages: Float32Array|null, runs: TokenRun[], gap: number|null,
 *   images: {start: number, stop: number, digest: string, label: string}[]}} Sequence */
/** @typedef {{start: number, stop: number, author: string, turn: number, trained: boolean|null, reason: string|null, version: string|null, role: string}} TokenRun */

function unpacked(text, Type) {
  if (text === null || text === undefined) return null;
  // @ts-ignore: newer than the types
  if (Uint8Array.fromBase64) return new Type(Uint8Array.fromBase64(text).buffer);
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
}

/** @returns {Sequence} */
export function sequenceOf(data) {
  return {
    length: data.length, prompt: data.prompt_length, words: data.words, name: data.name, gap: data.gap,
    index: unpacked(data.index, Uint32Array), ids: unpacked(data.ids, Int32Array),
    engine: unpacked(data.engine, Float32Array), trainer: unpacked(data.trainer, Float32Array),
    advantages: unpacked(data.advantages, Float32Array),
    images: (data.images || []).map(([start, stop, digest, label]) => ({start, stop, digest, label})),
    runs: data.runs.map(([start, stop, author, turn, trained, reason, version]) =>
      ({start, stop, author, turn, trained, reason, version, role: roleOf(author, trained)})),
  };
}

/** The role that words, marks and colours are given for. */
export function roleOf(author, trained) {
  return author !== "model" ? author : trained ? "trained" : trained === false ? "masked" : "untold";
}

export const MARKS = {trained: "model*", masked: "model-", untold: "model?", env: "env", template: "template", prompt: "prompt", unknown: "not model", unread: "unread"};

/** The run that holds a token. */
export function runAt(sequence, token) {
  let low = 0, high = sequence.runs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sequence.runs[middle].start <= token) low = middle; else high = middle - 1;
  }
  return sequence.runs[low];
}

/** The image among whose pads a token is. */
export function imageAt(sequence, token) {
  return sequence.images.find((one) => one.start <= token && token < one.stop);
}

/**
 * Cut into lines of `width` characters. A line begins after a line break, and where another author begins.
 * Line i is from character `chars[i]` of token `tokens[i]` up to the beginning of line i + 1.
 */
export function cutLines(sequence, width) {
  const {words, index, runs, length} = sequence;
  const kind = new Int32Array(words.length);  // columns of a word; -1 if it must be looked into
  for (let w = 0; w < words.length; w++) kind[w] = words[w].includes("\n") || words[w].length > width ? -1 : columnsOf(words[w]);
  let tokens = new Uint32Array(1024), chars = new Uint32Array(1024), count = 0;
  const begin = (token, at) => {
    if (count === tokens.length) { tokens = grown(tokens); chars = grown(chars); }
    tokens[count] = token; chars[count++] = at;
  };
  for (const run of runs) {
    let column = 0;
    begin(run.start, 0);
    for (let i = run.start; i < run.stop; i++) {
      const columns = kind[index[i]];
      if (columns >= 0) {
        if (column + columns > width && column > 0) { begin(i, 0); column = 0; }
        column += columns;
        continue;
      }
      const word = words[index[i]];
      for (let at = 0; at < word.length; at++) {
        if (column >= width && word[at] !== "\n") { begin(i, at); column = 0; }
        if (word[at] !== "\n") { column++; continue; }
        column = 0;
        if (at + 1 < word.length) begin(i, at + 1);
        else if (i + 1 < run.stop) begin(i + 1, 0);
      }
    }
  }
  return {tokens: tokens.slice(0, count), chars: chars.slice(0, count), count, length};
}

function grown(array) {
  const found = new Uint32Array(array.length * 2);
  found.set(array);
  return found;
}

/** Columns of a word in a fixed-width font: East Asian characters take two. */
export function columnsOf(word) {
  let columns = word.length;
  for (let i = 0; i < word.length; i++) {
    const code = word.charCodeAt(i);
    if (code >= 0x1100 && (code <= 0x115f || code >= 0x2e80 && code <= 0xa4cf || code >= 0xac00 && code <= 0xd7a3 || code >= 0xf900 && code <= 0xfaff || code >= 0xff00 && code <= 0xff60)) columns++;
  }
  return columns;
}

/** The line that holds a token. */
export function lineOf(lines, token) {
  let low = 0, high = lines.count - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lines.tokens[middle] < token || lines.tokens[middle] === token && lines.chars[middle] === 0) low = middle; else high = middle - 1;
  }
  return low;
}

/** The pieces of a line: [token, text], the first and the last perhaps in part. */
export function* piecesOf(sequence, lines, line) {
  const last = line + 1 < lines.count;
  const stop = last ? lines.tokens[line + 1] : sequence.length, cut = last ? lines.chars[line + 1] : 0;
  for (let token = lines.tokens[line], from = lines.chars[line]; token < stop || token === stop && cut > from && token < sequence.length; token++, from = 0) {
    const word = sequence.words[sequence.index[token]];
    yield [token, token === stop ? word.slice(from, cut) : from ? word.slice(from) : word];
  }
}

/** What a token is coloured by: a class. `mode`: author, logprob, gap or advantage. */
export function shade(sequence, token, mode) {
  if (mode === "logprob") {
    const value = sequence.engine ? sequence.engine[token] : NaN;
    return Number.isNaN(value) ? "none" : `p${Math.min(6, Math.floor(-value * 1.5))}`;
  }
  if (mode === "gap") {
    const gap = gapAt(sequence, token);
    return Number.isNaN(gap) ? "none" : Math.abs(gap) < 0.01 ? "g0" : `g${gap > 0 ? "p" : "m"}${Math.min(3, 1 + Math.floor(Math.log10(Math.abs(gap) / 0.01)))}`;
  }
  if (mode === "advantage") {
    const value = sequence.advantages ? sequence.advantages[token] : NaN;
    return Number.isNaN(value) ? "none" : value === 0 ? "g0" : `g${value > 0 ? "p" : "m"}${Math.abs(value) > 1 ? 3 : Math.abs(value) > 0.3 ? 2 : 1}`;
  }
  return "";
}

export function gapAt(sequence, token) {
  return sequence.engine && sequence.trainer ? sequence.engine[token] - sequence.trainer[token] : NaN;
}

/** Tokens in the order of the size of their difference between engine and trainer. */
export function worstGaps(sequence, count) {
  const found = [];
  for (let i = 0; i < sequence.length; i++) {
    const gap = Math.abs(gapAt(sequence, i));
    if (gap > 0) found.push([gap, i]);
  }
  return found.sort((a, b) => b[0] - a[0]).slice(0, count).map(([, i]) => i);
}

/** Where a text is, in a page without a server. */
export function findIn(sequence, sought) {
  const starts = new Uint32Array(sequence.length + 1), parts = [];
  let at = 0;
  for (let i = 0; i < sequence.length; i++) {
    const word = sequence.words[sequence.index[i]].toLowerCase();
    starts[i] = at; at += word.length; parts.push(word);
  }
  const text = parts.join(""), found = [];
  for (let place = text.indexOf(sought.toLowerCase()), token = 0; sought && place >= 0 && found.length < 1000; place = text.indexOf(sought.toLowerCase(), place + sought.length)) {
    while (token + 1 < sequence.length && starts[token + 1] <= place) token++;
    let stop = token + 1;
    while (stop < sequence.length && starts[stop] < place + sought.length) stop++;
    found.push([token, stop]);
  }
  return found;
}
