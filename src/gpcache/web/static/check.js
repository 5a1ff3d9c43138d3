// Step 2: what leave-one-out says of the model, where it is wrong, and which photos are suspect.

import { fetchJson } from "./api.js";
import { intervalBar, reliabilityChart } from "./charts.js";
import { button, byId, counted, element, percent, show } from "./elements.js";
import { handled } from "./notices.js";
import { keep, thumbnail } from "./photos.js";
import { state, subscribe } from "./state.js";
import { renderSuspects } from "./suspects.js";

const MOST_CLASSES = 30;
let shown = false;
let latestRevision = null;
let openCell = null; // "i,j" of the confusion grid

export function startCheck() {
  subscribe(handled(update));
}

export const showCheck = handled(async (visible) => {
  shown = visible;
  await update();
});

async function update() {
  if (!shown || state() === null || state().revision === latestRevision) return;
  const revision = state().revision;
  const found = await fetchJson("GET", "/v1/loo");
  if (revision !== state().revision) return; // a later answer follows
  latestRevision = revision;
  byId("check-wait").hidden = found.why === undefined;
  byId("check-wait").textContent = found.why ?? "";
  byId("check-found").hidden = found.why !== undefined;
  if (found.why !== undefined) return;
  renderFigures(found);
  renderConfusion(found);
  renderSuspects(found.suspects);
}

function renderFigures(found) {
  show(byId("accuracy"),
    element("p", { class: "headline" }, element("strong", {}, percent(found.accuracy)), " right"),
    intervalBar(found.accuracy, found.interval),
    element("p", {}, `${counted(found.n, "photo")}, 95 % interval ${percent(found.interval[0])} to ${
      percent(found.interval[1])}.`),
    ...(found.proposed > 0 ? [confirmation(found.proposed)] : []),
    element("p", { class: "muted" }, `ECE ${percent(found.ece)}, NLL ${found.nll.toFixed(2)}; ${
      found.protocol}.`));
  show(byId("reliability"), reliabilityChart(found.reliability));
  show(byId("advice"), ...found.advice.map((one) => element("li", {}, one.sentence)));
}

// Labels that the model proposed count as they were before, until somebody has looked at them.
function confirmation(count) {
  const ids = state().photos.filter((one) => one.given !== one.label).map((one) => one.id);
  const labels = counted(count, "label");
  return element("p", {}, `${labels} ${count === 1 ? "counts" : "count"} as before, because `
    + "the new one is the model’s own proposal and must not raise the figure. ",
  button(`I have looked: count ${labels}`, () => keep(ids, true)));
}

function renderConfusion(found) {
  const rows = visibleClasses(found);
  const names = found.classes;
  const most = Math.max(1, ...found.confusion.flat());
  const head = element("thead", {}, element("tr", {},
    element("td", {}, element("span", { class: "muted" }, "is ↓ said →")),
    ...rows.map((i) => element("th", { scope: "col" },
      element("div", { class: "name", title: names[i] }, names[i])))));
  const body = element("tbody", {}, ...rows.map((i) => element("tr", {},
    element("th", { scope: "row" }, element("div", { class: "name", title: names[i] }, names[i])),
    ...rows.map((j) => cell(found, names, i, j, most)))));
  const hidden = names.length - rows.length;
  byId("confusion-note").textContent = hidden > 0
    ? `${counted(hidden, "class", "classes")} without a mistake are left out.` : "";
  show(byId("confusion"), head, body);
  showCell(found, names, openCell);
}

function visibleClasses(found) {
  const all = found.classes.map((_, index) => index);
  if (all.length <= MOST_CLASSES) return all;
  const mistaken = (i, j) => i !== j && found.confusion[i][j] > 0;
  return all.filter((i) => all.some((j) => mistaken(i, j) || mistaken(j, i)));
}

function cell(found, names, i, j, most) {
  const count = found.confusion[i][j];
  if (count === 0) return element("td", {});
  const key = `${i},${j}`;
  const label = `${counted(count, "photo")} of ${names[i]} classified as ${names[j]}`;
  const press = button(String(count), () => showCell(found, names, openCell === key ? null : key), {
    "aria-label": label, title: label, "data-cell": key,
  });
  return element("td", { class: i === j ? "right" : "wrong", "--share": count / most }, press);
}

function showCell(found, names, key) {
  openCell = key;
  for (const press of byId("confusion").querySelectorAll("button")) {
    press.setAttribute("aria-pressed", String(press.dataset.cell === key));
  }
  const ids = new Set(found.cells[key] ?? []);
  const [i, j] = (key ?? "0,0").split(",").map(Number);
  byId("cell-title").textContent = ids.size === 0 ? "Press a number to see its photos."
    : `${names[i]} classified as ${names[j]}`;
  const photos = state().photos.filter((photo) => ids.has(photo.id));
  show(byId("cell-photos"), ...photos.map(thumbnail));
}
