// @ts-check
// The address is the state: #/SOURCE/VIEW/FILE/NUMBER?KEY=VALUE

/** @typedef {{s: number, view: string, f: string, n: number, p: Record<string, string>}} Route */

/** @returns {Route} */
export function parsed(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [s, view, f, n] = path.split("/").map(decoded);
  return {s: Number(s) || 0, view: view || "run", f: f || "", n: Number(n) || 0, p: Object.fromEntries(new URLSearchParams(query || ""))};
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return ""; }
}

/** @param {Partial<Route>} to */
export function address(to) {
  const parts = [to.s ?? 0, to.view ?? "run", ...(to.f !== undefined && to.f !== "" ? [encodeURIComponent(to.f)] : []),
    ...(to.n !== undefined ? [to.n] : [])];
  const given = Object.entries(to.p || {}).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const query = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${parts.join("/")}${query ? `?${query}` : ""}`;
}
