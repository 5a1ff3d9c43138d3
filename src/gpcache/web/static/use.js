// Step 5: predict a folder into a table, download the model, copy code that uses it.

import { call, fetchJson, formOf } from "./api.js";
import { button, byId, counted, element, show } from "./elements.js";
import { chooser, portions } from "./intake.js";
import { complain, during, handled, say } from "./notices.js";

const UNFINISHED = "gpcache-batch"; // the id and the format of an interrupted batch
const EXPORTS = [
  ["Download the model (.gpc, zipped)", "/v1/export/model", "model.gpc.zip"],
  ["Download ONNX", "/v1/export/onnx", "model.onnx"],
  ["Download the model card", "/v1/card", "README.md"],
];
const LANGUAGES = { cli: "Command line", python: "Python", curl: "curl" };

export function startUse() {
  byId("batch-choose").append(
    chooser("Choose photos", handled(runBatch)),
    chooser("Choose a folder", handled(runBatch), { folder: true }));
  byId("exports").append(...EXPORTS.map(([label, path, name]) => (
    button(label, handled(() => download(path, name))))));
}

export const showUse = handled(async (visible) => {
  if (!visible) return;
  renderResume();
  const snippets = await fetchJson("GET", "/v1/snippets");
  show(byId("snippets"), ...Object.entries(LANGUAGES).map(([key, title]) => (
    snippet(title, snippets[key]))));
});

function snippet(title, text) {
  const copy = button("Copy", handled(async () => {
    await navigator.clipboard.writeText(text);
    say(`${title} copied.`);
  }), { "aria-label": `Copy ${title}` });
  return element("section", { class: "snippet" },
    element("div", { class: "row" }, element("h4", {}, title), copy),
    element("pre", { tabindex: "0", "aria-label": title }, element("code", {}, text)));
}

export async function download(path, name) {
  const answer = await call("GET", path);
  const match = /filename\*=UTF-8''([^;]+)/.exec(answer.headers.get("Content-Disposition") ?? "");
  const address = URL.createObjectURL(await answer.blob());
  element("a", { href: address, download: match ? decodeURIComponent(match[1]) : name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function unfinished() {
  return JSON.parse(localStorage.getItem(UNFINISHED) ?? "null");
}

function renderResume() {
  const batch = unfinished();
  byId("batch-resume").textContent = batch === null ? ""
    : "The last batch was interrupted: choose the same photos to continue.";
  if (batch !== null) byId("batch-format").value = batch.format;
}

async function runBatch(entries) {
  if (entries.length === 0) return;
  const { groups, refused } = portions(entries);
  for (const file of refused) complain(`${file.name}: ${file.reason}.`);
  const batch = await openBatch();
  const progress = await during("Labelling", groups.flat().length, async (advance) => {
    let [sent, latest] = [0, null];
    for (const group of groups) {
      latest = await fetchJson("POST", `/v1/batch/${batch.id}/files`, { form: formOf(group) });
      sent += group.length;
      advance(sent);
    }
    localStorage.removeItem(UNFINISHED);
    return latest;
  });
  renderResume();
  if (!progress) return;
  const result = `/v1/batch/${batch.id}/result`;
  const name = `answers.${batch.format}`;
  const unread = progress.refused > 0 ? `, ${progress.refused} of them refused` : "";
  show(byId("batch-progress"),
    element("p", {}, `${counted(progress.done, "file")} in the table${unread}. `,
      button(`Download ${name}`, handled(() => download(result, name)), { class: "primary" })));
}

// The interrupted batch, if the server still has it; otherwise a new one.
async function openBatch() {
  const format = byId("batch-format").value;
  const earlier = unfinished();
  if (earlier !== null && earlier.format === format) {
    try {
      await fetchJson("GET", `/v1/batch/${earlier.id}`);
      return earlier;
    } catch (problem) {
      if (problem.status !== 404) throw problem;
    }
  }
  const { id } = await fetchJson("POST", "/v1/batch", { json: { format } });
  localStorage.setItem(UNFINISHED, JSON.stringify({ id, format }));
  return { id, format };
}
