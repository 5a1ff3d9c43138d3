// A test set of labelled photos: its figures for the current model, and a report to download.

import { fetchJson, formOf } from "./api.js";
import { intervalBar } from "./charts.js";
import { button, byId, counted, element, percent, show } from "./elements.js";
import { acceptDrops, chooser, portions } from "./intake.js";
import { complain, during, handled } from "./notices.js";
import { state, subscribe } from "./state.js";
import { download } from "./use.js";

let shown = false;
let latestRevision = null;

export function startTestSet() {
  byId("test-choose").append(
    chooser("Choose a folder of class folders", handled(add), { folder: true }));
  acceptDrops(byId("test-set"), handled(add));
  subscribe(handled(update));
}

export const showTestSet = handled(async (visible) => {
  shown = visible;
  await update();
});

async function update() {
  if (!shown || state() === null || state().revision === latestRevision) return;
  latestRevision = state().revision;
  render(await fetchJson("GET", "/v1/test-set"));
}

async function add(entries) {
  const { groups, refused } = portions(entries);
  for (const file of refused) complain(`${file.name}: ${file.reason}.`);
  await during("Adding to the test set", groups.flat().length, async (advance) => {
    let done = 0;
    for (const group of groups) {
      render(await fetchJson("POST", "/v1/test-set", { form: formOf(group) }));
      done += group.length;
      advance(done);
    }
  });
}

function render({ photos, refused, other_folders: otherFolders, figures }) {
  const notes = [];
  if (otherFolders.length > 0) notes.push(`Folders that are not a class: ${otherFolders.join(", ")}.`);
  if (refused.length > 0) {
    notes.push(`${counted(refused.length, "file")} refused, such as ${refused[0].name}: ${
      refused[0].reason}.`);
  }
  if (photos > 0 && figures === null) notes.push("None of the photos belongs to these classes.");
  const lines = notes.map((note) => element("p", {}, note));
  if (figures !== null) lines.unshift(...summary(figures));
  if (photos > 0) {
    lines.push(element("div", { class: "row" },
      figures === null ? null : button("Download the report", handled(() => (
        download("/v1/test-set/report", "report.html"))), { class: "primary" }),
      button("Clear the test set", handled(async () => (
        render(await fetchJson("DELETE", "/v1/test-set")))))));
  }
  show(byId("test-results"), ...lines);
}

function summary(figures) {
  const [low, high] = figures.interval;
  const worst = figures.confusions[0];
  return [
    element("p", { class: "headline" }, element("strong", {}, percent(figures.accuracy)), " right"),
    intervalBar(figures.accuracy, figures.interval),
    element("p", {}, `${counted(figures.n, "photo")}, 95 % interval ${percent(low)} to ${
      percent(high)}; ${figures.rejected} answered with “I don’t know”.`),
    worst === undefined ? null : element("p", {}, `Most frequent mistake: ${worst.truth} taken for ${
      worst.answer}, ${counted(worst.images, "time")}.`),
    element("p", { class: "muted" }, `ECE ${percent(figures.ece)}, NLL ${
      figures.nll.toFixed(2)}; ${figures.protocol}.`),
  ].filter((one) => one !== null);
}
