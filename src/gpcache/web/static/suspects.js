// Photos that may be labelled wrongly, unlike all others or twice there: keep, relabel or drop each.

import { button, byId, counted, element, typing } from "./elements.js";
import { keep, openPhoto, picture, relabel, remove } from "./photos.js";
import { state } from "./state.js";

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
  const list = byId("suspects");
  const place = [...list.children].indexOf(document.activeElement.closest?.("#suspects > li"));
  byId("suspects-title").textContent = suspects.length === 0
    ? "No suspects." : `${counted(suspects.length, "suspect")}`;
  list.replaceChildren(...suspects.map(card));
  if (place >= 0) list.children[Math.min(place, suspects.length - 1)]?.focus();
}

function card(suspect) {
  const photo = state().photos.find((one) => one.id === suspect.id);
  const name = photo?.name ?? suspect.id;
  const suggested = suspect.suggested ?? null;
  return element("li", { class: "suspect", tabindex: "0", "aria-label": `Suspect ${name}` },
    picture(suspect.id, ""),
    element("div", {},
      element("p", {}, suspect.reason),
      element("div", { class: "row" },
        keyed("k", "Keep", () => keep([suspect.id], true)),
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
