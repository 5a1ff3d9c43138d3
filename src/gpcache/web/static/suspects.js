// Photos that may be labelled wrongly, unlike all others or twice there: keep, relabel or drop each.

import { button, byId, counted, element, typing } from "./elements.js";
import { openPhoto, picture, relabel, remove } from "./photos.js";
import { state } from "./state.js";

const KEPT = "gpcache-kept"; // judged as right by the user, in this browser

export function startSuspects(isVisible) {
  document.addEventListener("keydown", (event) => {
    if (!isVisible() || typing(event)) return;
    const list = byId("suspects");
    const card = document.activeElement.closest?.("#suspects > li") ?? list.firstElementChild;
    const press = card?.querySelector(`button[data-key="${CSS.escape(event.key.toLowerCase())}"]`);
    if (press) press.click();
  });
}

export function renderSuspects(suspects) {
  const kept = keptIds();
  const open = suspects.filter((suspect) => !kept.includes(judgement(suspect)));
  const list = byId("suspects");
  const place = [...list.children].indexOf(document.activeElement.closest?.("#suspects > li"));
  byId("suspects-title").textContent = open.length === 0
    ? "No suspects." : `${counted(open.length, "suspect")}`;
  list.replaceChildren(...open.map((suspect) => card(suspect, suspects)));
  if (place >= 0) list.children[Math.min(place, open.length - 1)]?.focus();
}

function card(suspect, suspects) {
  const photo = state().photos.find((one) => one.id === suspect.id);
  const name = photo?.name ?? suspect.id;
  const suggested = suspect.suggested ?? null;
  return element("li", { class: "suspect", tabindex: "0", "aria-label": `Suspect ${name}` },
    picture(suspect.id, ""),
    element("div", {},
      element("p", {}, suspect.reason),
      element("div", { class: "row" },
        keyed("k", "Keep", () => keep(suspect, suspects)),
        keyed("r", suggested === null ? "Relabel…" : `Relabel to ${suggested}`, () => {
          if (suggested === null) openPhoto(photo);
          else relabel([suspect.id], suggested);
        }),
        keyed("d", "Drop", () => remove([suspect.id])))));
}

function keyed(key, label, act) {
  return button(element("span", {}, label, " ", element("kbd", {}, key.toUpperCase())), act,
    { "data-key": key, "aria-keyshortcuts": key.toUpperCase() });
}

function judgement(suspect) {
  const photo = state().photos.find((one) => one.id === suspect.id);
  return [suspect.id, photo?.name, suspect.label, suspect.reason].join("/");
}

function keptIds() {
  return JSON.parse(localStorage.getItem(KEPT) ?? "[]");
}

function keep(suspect, suspects) {
  localStorage.setItem(KEPT, JSON.stringify([...keptIds(), judgement(suspect)]));
  renderSuspects(suspects);
}
