// Several photos at once: chosen by Ctrl, Shift or the button Select, then moved or removed together.

import { button, byId, classChooser, counted, show } from "./elements.js";
import { PHOTO_TYPE } from "./intake.js";
import { relabel, remove } from "./photos.js";
import { classNames, state, subscribe } from "./state.js";

const chosen = new Set();
let choosing = false; // whether a plain click chooses
let last = null; // where a range begins

export function startSelection() {
  byId("select").addEventListener("click", () => {
    choosing = !choosing;
    if (!choosing) chosen.clear();
    render();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen.size > 0) clear();
  });
  subscribe((latest) => {
    const known = new Set(latest.photos.map((photo) => photo.id));
    for (const id of chosen) if (!known.has(id)) chosen.delete(id);
    render();
  });
}

// Lets a thumbnail be chosen; without a chosen one it opens, is moved and removed as always.
export function selectable(made, id) {
  made.addEventListener("click", (event) => {
    if (!(choosing || event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.stopImmediatePropagation();
    choose(id, event.shiftKey);
  }, { capture: true });
  made.addEventListener("keydown", (event) => {
    const removes = event.key === "Delete" || event.key === "Backspace";
    if (!removes || !chosen.has(id)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    finish(remove);
  }, { capture: true });
  made.addEventListener("dragstart", (event) => {
    if (chosen.has(id)) event.dataTransfer.setData(PHOTO_TYPE, JSON.stringify([...chosen]));
  });
  return made;
}

function choose(id, range) {
  const shown = [...document.querySelectorAll("#columns .thumbnail")].map((one) => one.dataset.id);
  const [from, to] = [shown.indexOf(last), shown.indexOf(id)];
  if (range && from >= 0) {
    for (const one of shown.slice(Math.min(from, to), Math.max(from, to) + 1)) chosen.add(one);
  } else if (!chosen.delete(id)) chosen.add(id);
  last = id;
  render();
}

function clear() {
  chosen.clear();
  render();
}

function finish(act) {
  const ids = [...chosen];
  clear();
  act(ids);
}

function render() {
  byId("select").hidden = (state()?.photos.length ?? 0) < 2;
  byId("select").setAttribute("aria-pressed", String(choosing));
  for (const one of document.querySelectorAll("#columns .thumbnail")) {
    if (chosen.has(one.dataset.id)) one.setAttribute("aria-pressed", "true");
    else one.removeAttribute("aria-pressed");
  }
  const bar = byId("selection");
  bar.hidden = chosen.size === 0;
  if (bar.hidden) return;
  show(bar, `${counted(chosen.size, "photo")} selected`,
    classChooser("Move to…", classNames(), (label) => finish((ids) => relabel(ids, label))),
    button("Remove", () => finish(remove)),
    button("Clear", clear));
}
