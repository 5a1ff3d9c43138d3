// Step 4: a pool of unlabelled photos, the ten to label next, and the learning curve.

import { fetchJson, formOf } from "./api.js";
import { learningCurve } from "./charts.js";
import { button, byId, counted, element, percent, show, typing } from "./elements.js";
import { acceptDrops, chooser, pasted, portions } from "./intake.js";
import { complain, during, handled, say } from "./notices.js";
import { original, picture, pressedZoom } from "./photos.js";
import { change, classNames, state, subscribe } from "./state.js";

let shown = false;
let suggestions = [];
let current = 0;

export function startGrow() {
  byId("pool-choose").append(
    chooser("Add photos", handled(fillPool)),
    chooser("Add a folder", handled(fillPool), { folder: true }));
  acceptDrops(byId("grow"), handled(fillPool));
  byId("suggest").addEventListener("click", handled(suggest));
  document.addEventListener("keydown", pressed);
  subscribe(handled(update));
}

export const showGrow = handled(async (visible) => {
  shown = visible;
  await update();
});

export const pasteIntoGrow = handled((event) => fillPool(pasted(event)));

async function fillPool(entries) {
  const { groups, refused } = portions(entries);
  for (const file of refused) complain(`${file.name}: ${file.reason}.`);
  await during("Adding to the pool", groups.flat().length, async (advance) => {
    let done = 0;
    for (const group of groups) {
      const answer = await fetchJson("POST", "/v1/pool", { form: formOf(group) });
      for (const file of answer.refused ?? []) complain(`${file.name}: ${file.reason}.`);
      tellPool(answer.pool);
      done += group.length;
      advance(done);
    }
  });
  await suggest();
}

function tellPool(count) {
  byId("pool-count").textContent = `${counted(count, "photo")} in the pool.`;
}

async function suggest() {
  suggestions = (await fetchJson("GET", "/v1/suggest?count=10")).photos;
  current = 0;
  render();
  if (suggestions.length === 0) say("The pool is empty: add unlabelled photos first.");
  else step(0);
}

async function update() {
  if (!shown || state() === null) return;
  tellPool(state().pool);
  const points = await fetchJson("GET", "/v1/curve");
  show(byId("curve"), points.length > 0 ? learningCurve(points)
    : element("p", { class: "muted" }, "The curve starts when two classes have photos to hold out."));
  render();
}

function render() {
  const photo = suggestions[current];
  byId("labelling").hidden = photo === undefined;
  if (photo === undefined) return;
  show(byId("queue"), ...suggestions.map((one, index) => button(picture(one.id, ""), () => {
    current = index;
    render();
  }, {
    class: "thumbnail", "aria-label": `Photo ${index + 1}: ${one.name}`,
    "aria-pressed": String(index === current),
  })));
  const candidate = byId("candidate");
  if (candidate.dataset.id !== photo.id) show(candidate, original(photo.id, photo.name));
  candidate.dataset.id = photo.id;
  candidate.setAttribute("aria-label", `Photo to label: ${photo.name}`);
  byId("guess").textContent = photo.guess == null ? photo.name
    : `${photo.name}: perhaps ${photo.guess} (${percent(photo.probability)})`;
  show(byId("label-buttons"), ...classNames().map((name, index) => button(
    element("span", {}, name, index < 9 ? element("kbd", {}, String(index + 1)) : null),
    () => label(name),
    { class: name === photo.guess ? "primary" : "", "data-label": index },
  )));
}

const label = handled(async (name) => {
  const photo = suggestions[current];
  const answer = await change("POST", "/v1/label", { json: { id: photo.id, label: name } });
  if (answer === null) {
    await suggest();
    return;
  }
  suggestions = suggestions.filter((one) => one !== photo);
  say(`${photo.name} is ${name}.`);
  if (suggestions.length === 0) await suggest();
  else step(0);
});

function pressed(event) {
  if (!shown || typing(event) || suggestions.length === 0) return;
  const photo = suggestions[current];
  const named = classNames()[Number(event.key) - 1];
  const onButton = event.target.closest("button, a, summary");
  if (event.key === "ArrowRight") step(1);
  else if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "Enter" && photo.guess != null && !onButton) label(photo.guess);
  else if (pressedZoom(event, byId("candidate"))) return;
  else if (/^[1-9]$/.test(event.key) && named !== undefined) label(named);
  else return;
  event.preventDefault();
}

// Moves `count` photos on. The focus stays on the photo while the buttons are drawn again.
function step(count) {
  current = (current + count + suggestions.length) % suggestions.length;
  render();
  byId("candidate").focus({ preventScroll: true });
}
