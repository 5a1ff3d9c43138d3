// Step 2: held-out accuracy, confusions, and suspicious photos.

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
  const report = await fetchJson("GET", "/v1/loo");
  if (revision !== state().revision) return; // a later answer follows
  latestRevision = revision;
  byId("check-wait").hidden = report.why === undefined;
  byId("check-wait").textContent = report.why ?? "";
  byId("check-results").hidden = report.why !== undefined;
  if (report.why !== undefined) return;
  renderFigures(report);
  renderConfusion(report);
  renderSuspects(report.suspects);
}

function renderFigures(report) {
  show(byId("accuracy"),
    element("p", { class: "headline" }, element("strong", {}, percent(report.accuracy)), " right"),
    intervalBar(report.accuracy, report.interval),
    element("p", {}, `${counted(report.n, "photo")}, 95 % interval ${percent(report.interval[0])} to ${
      percent(report.interval[1])}.`),
    ...(report.proposed > 0 ? [confirmation(report.proposed)] : []),
    element("p", { class: "muted" }, `ECE ${percent(report.ece)}, NLL ${report.nll.toFixed(2)}; ${
      report.protocol}.`));
  show(byId("reliability"), reliabilityChart(report.reliability));
  show(byId("advice"), ...report.advice.map((one) => element("li", {}, one.sentence)));
}

// A label that the model proposed counts as the label before it, until the user confirms it.
function confirmation(count) {
  const ids = state().photos.filter((one) => one.given !== one.label).map((one) => one.id);
  const labels = counted(count, "label");
  return element("p", {}, `${labels} that the model proposed ${count === 1 ? "does" : "do"} not `
    + "count in the accuracy yet: look at the photos first. ",
  button(`I have looked: count ${labels}`, () => keep(ids, true)));
}

function renderConfusion(report) {
  const rows = visibleClasses(report);
  const names = report.classes;
  const most = Math.max(1, ...report.confusion.flat());
  const head = element("thead", {}, element("tr", {},
    element("td", {}, element("span", { class: "muted" }, "label ↓ prediction →")),
    ...rows.map((i) => element("th", { scope: "col" },
      element("div", { class: "name", title: names[i] }, names[i])))));
  const body = element("tbody", {}, ...rows.map((i) => element("tr", {},
    element("th", { scope: "row" }, element("div", { class: "name", title: names[i] }, names[i])),
    ...rows.map((j) => cell(report, names, i, j, most)))));
  const hidden = names.length - rows.length;
  byId("confusion-note").textContent = hidden > 0
    ? `${counted(hidden, "class", "classes")} without a mistake are left out.` : "";
  show(byId("confusion"), head, body);
  showCell(report, names, openCell);
}

function visibleClasses(report) {
  const all = report.classes.map((_, index) => index);
  if (all.length <= MOST_CLASSES) return all;
  const mistaken = (i, j) => i !== j && report.confusion[i][j] > 0;
  return all.filter((i) => all.some((j) => mistaken(i, j) || mistaken(j, i)));
}

function cell(report, names, i, j, most) {
  const count = report.confusion[i][j];
  if (count === 0) return element("td", {});
  const key = `${i},${j}`;
  const label = `${counted(count, "photo")} of ${names[i]} classified as ${names[j]}`;
  const press = button(String(count), () => showCell(report, names, openCell === key ? null : key), {
    "aria-label": label, title: label, "data-cell": key,
  });
  return element("td", { class: i === j ? "right" : "wrong", "--share": count / most }, press);
}

function showCell(report, names, key) {
  openCell = key;
  for (const press of byId("confusion").querySelectorAll("button")) {
    press.setAttribute("aria-pressed", String(press.dataset.cell === key));
  }
  const ids = new Set(report.cells[key] ?? []);
  const [i, j] = (key ?? "0,0").split(",").map(Number);
  byId("cell-title").textContent = ids.size === 0 ? "Press a number to see its photos."
    : `${names[i]} classified as ${names[j]}`;
  const photos = state().photos.filter((photo) => ids.has(photo.id));
  show(byId("cell-photos"), ...photos.map(thumbnail));
}
