// @ts-check
// Questions to the server.

/** The answer to a question; an Error with the server's own words if there is none. */
export async function ask(name, given = {}) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== undefined && value !== "").map(([k, v]) => [k, String(v)]));
  const response = await fetch(`/api/${name}?${query}`);
  const text = await response.text();
  let found;
  try { found = JSON.parse(text); } catch { found = {error: text}; }
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}
