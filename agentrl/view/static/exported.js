// @ts-check
// The page of one exported episode: everything lies in it, and it asks nobody.
import { h } from "./dom.js";
import { episodeView } from "./episode.js";

const held = JSON.parse(document.getElementById("data").textContent);
const exported = episodeView(held, {p: {}, change: () => {}, say: () => {}, links: h("span", {}, `${held.file || "episode"} ${held.number ?? ""}`)});
document.getElementById("main").append(exported.element);
exported.begin();
document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey) return;
  const key = exported.keys[event.key];
  if (key) { event.preventDefault(); key(); }
});
document.getElementById("main").dataset.ready = "";
