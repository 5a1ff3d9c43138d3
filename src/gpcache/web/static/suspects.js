// Photos that are hard, wrongly labelled or copies: keep, relabel or drop each.

import { button, byId, counted, element, typing } from "./elements.js";
import { keep, openPhoto, picture, relabel, remove } from "./photos.js";
import { state } from "./state.js";

const dropped = new Map(); // the class of each photo that was dropped here

export function startSuspects(isVisible) {
  document.addEventListener("keydown", (event) => {
    if (!isVisible() || typing(event) || document.querySelector("dialog[open]")) return;
    const card = document.activeElement.closest?.("li.suspect") ?? cards()[0];
    const press = card?.querySelector(`button[data-key="${CSS.escape(event.key.toLowerCase())}"]`);
    if (press) press.click();
  });
}

// The most probably wrong come first in both lists.
export function renderSuspects(suspects) {
  const place = cards().indexOf(document.activeElement.closest?.("li.suspect"));
  const certain = suspects.filter((one) => one.certain);
  const others = suspects.filter((one) => !one.certain);
  byId("suspects-title").textContent = certain.length === 0
    ? "Nothing is almost certainly wrong." : `Almost certainly wrong: ${photos(certain)}`;
  byId("looks-title").hidden = others.length === 0;
  byId("looks-title").textContent = `Worth a look, a hard photo or a wrong label: ${photos(others)}`;
  byId("suspects").replaceChildren(...certain.map(card));
  byId("looks").replaceChildren(...others.map(card));
  if (place >= 0) cards()[Math.min(place, suspects.length - 1)]?.focus();
}

function cards() {
  return [...document.querySelectorAll("li.suspect")];
}

function photos(suspects) {
  return counted(suspects.length, "photo");
}

function card(suspect) {
  const photo = state().photos.find((one) => one.id === suspect.id);
  const name = photo?.name ?? suspect.id;
  const suggested = suspect.suggested ?? null;
  const drop = () => {
    dropped.set(suspect.id, suspect.label);
    remove([suspect.id]);
  };
  return element("li", { class: "suspect", tabindex: "0", "aria-label": `Suspect ${name}` },
    picture(suspect.id, ""),
    element("div", {},
      element("p", {}, suspect.reason),
      element("div", { class: "row" },
        keyed("k", "Keep", () => keep([suspect.id], true)),
        keyed("r", suggested === null ? "Relabel…" : `Relabel to ${suggested}`, () => {
          if (suggested === null) openPhoto(photo);
          else unlessLost(photo, "Relabel anyway", () => relabel([suspect.id], suggested));
        }),
        keyed("d", "Drop", () => unlessLost(photo, "Drop anyway", drop)))));
}

function keyed(key, label, act) {
  return button(element("span", {}, label, " ", element("kbd", {}, key.toUpperCase())), act,
    { "data-key": key, "aria-keyshortcuts": key.toUpperCase() });
}

// Does `act` at once, or asks first if it empties a class or removes a third of its photos.
function unlessLost(photo, label, act) {
  const sentence = photo === undefined ? null : loss(photo);
  if (sentence === null) {
    act();
    return;
  }
  const dialog = element("dialog", { "aria-label": "Before you go on" },
    element("p", {}, sentence, " The model answers worse without them. Are they labelled wrongly?"),
    element("div", { class: "row" },
      button("Leave it", () => dialog.close(), { class: "primary", autofocus: true }),
      button(label, () => {
        dialog.close();
        act();
      })));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function loss({ id, label }) {
  const all = state().photos;
  const there = new Set(all.map((one) => one.id));
  const gone = [...dropped].filter(([key, name]) => name === label && !there.has(key)).length;
  const given = gone + all.filter((one) => one.given === label).length;
  const left = all.filter((one) => one.label === label && one.given === label && one.id !== id);
  if (all.every((one) => one.label !== label || one.id === id)) {
    return `This takes the last photo out of “${label}”: the class will be empty.`;
  }
  const lost = given - left.length;
  return 3 * lost >= given && 3 * (lost - 1) < given
    ? `With this, “${label}” has lost ${lost} of the ${given} photos that you gave it.` : null;
}
