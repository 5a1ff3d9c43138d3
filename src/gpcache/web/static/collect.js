// Step 1: a column of photos for every class, filled by dropping, pasting, choosing or the webcam.

import { formOf } from "./api.js";
import { takePhotos } from "./camera.js";
import { button, byId, counted, element, show } from "./elements.js";
import { acceptDrops, chooser, entryOf, folderOf, pasted, portions } from "./intake.js";
import { complain, during, handled, say } from "./notices.js";
import { relabel, thumbnail } from "./photos.js";
import { selectable, startSelection } from "./selection.js";
import { startPreview } from "./preview.js";
import { change, classNames, state, subscribe } from "./state.js";

const columns = new Map(); // class name → {root, name, prompt, count, grid, photos}
const tooLarge = []; // refused here, before they were sent
let active = null; // the class that a paste goes to

export function startCollect() {
  byId("new-class").addEventListener("submit", handled(addClass));
  const board = byId("board");
  acceptDrops(board, handled(addFolders));
  byId("folders").append(chooser("Add folders of photos", handled(addFolders), { folder: true }));
  byId("clear-refused").addEventListener("click", handled(async () => {
    tooLarge.length = 0;
    await change("DELETE", "/v1/refused");
  }));
  subscribe(render);
  startSelection();
  startPreview();
}

export function pasteIntoCollect(event) {
  const files = pasted(event);
  if (files.length === 0) return;
  if (active === null) complain("Name a class first, then paste photos into it.");
  else addPhotos(active, files);
}

async function addClass(event) {
  event.preventDefault();
  const field = byId("new-class-name");
  const name = field.value.trim();
  if (name === "") return;
  if (await change("POST", "/v1/classes", { json: { name } }) === null) return;
  field.value = "";
  activate(classNames().at(-1));
}

// Every folder's name becomes a class: a folder of class folders makes them all.
async function addFolders(entries) {
  if (entries.some((entry) => folderOf(entry) === "")) {
    complain("Drop single photos on their class; a folder dropped here becomes a class.");
    return;
  }
  const byFolder = Map.groupBy(entries, folderOf);
  const drop = newDrop();
  for (const [folder, entries] of byFolder) {
    if (!classNames().includes(folder)) {
      await change("POST", "/v1/classes", { json: { name: folder }, drop });
    }
    await addPhotos(folder, entries, drop);
  }
}

// The id that all requests of one drop share, so that one undo takes back all of them.
function newDrop() {
  return Array.from(crypto.getRandomValues(new Uint32Array(2)), String).join("-");
}

export async function addPhotos(label, entries, drop = newDrop()) {
  const { groups, refused } = portions(entries);
  tooLarge.push(...refused);
  const total = groups.flat().length;
  let [done, added, turnedAway] = [0, 0, refused.length];
  await during(`Adding to ${label}`, total, async (advance) => {
    for (const group of groups) {
      const answer = await change("POST", "/v1/examples", { form: formOf(group, { label }), drop });
      if (answer === null) break;
      done += group.length;
      added += answer.added.length;
      turnedAway += answer.refused.length;
      advance(done);
    }
  });
  if (done + turnedAway === 0) return;
  const why = turnedAway > 0 ? `, ${turnedAway} refused: see the list of refused files` : "";
  say(`${counted(added, "photo")} added to ${label}${why}.`);
  renderRefused(state());
}

function activate(name) {
  active = name;
  for (const [label, column] of columns) {
    column.root.classList.toggle("active", label === active);
  }
}

function render(latest) {
  const names = latest.classes.map((entry) => entry.name);
  for (const name of [...columns.keys()]) {
    if (!names.includes(name)) columns.delete(name);
  }
  const photos = Map.groupBy(latest.photos, (photo) => photo.label);
  for (const entry of latest.classes) {
    if (!columns.has(entry.name)) columns.set(entry.name, makeColumn(entry.name));
    fillColumn(columns.get(entry.name), entry, photos.get(entry.name) ?? []);
  }
  show(byId("columns"), ...names.map((name) => columns.get(name).root));
  byId("no-classes").hidden = names.length > 0;
  if (!names.includes(active)) activate(names[0] ?? null);
  else activate(active);
  renderRefused(latest);
}

function makeColumn(label) {
  const column = { label, photos: new Map(), count: element("span", { class: "muted" }) };
  column.name = element("input", { class: "class-name", "aria-label": "Class name" });
  column.prompt = element("textarea", { class: "prompt", rows: 1 });
  column.name.addEventListener("change", handled(() => rename(column)));
  column.prompt.addEventListener("change", handled(() => change("PATCH", "/v1/classes", {
    json: { name: column.label, prompt: column.prompt.value.trim() },
  })));
  column.grid = element("div", { class: "grid" });
  const receive = (entries) => addPhotos(column.label, entries);
  const webcam = async () => {
    const taken = await takePhotos(`Photos of ${column.label}`);
    if (taken.length > 0) await receive(taken.map(entryOf));
  };
  column.add = chooser("Add photos", receive);
  column.webcam = button("Webcam", handled(webcam));
  column.remove = button("×", handled(() => change("DELETE", "/v1/classes", {
    json: { name: column.label },
  })), { class: "quiet" });
  column.root = element("section", { class: "column" },
    element("div", { class: "row" }, column.name, column.count, column.remove),
    column.prompt,
    element("div", { class: "row" }, column.add, column.webcam),
    column.grid);
  column.root.addEventListener("focusin", () => activate(column.label));
  column.root.addEventListener("pointerdown", () => activate(column.label));
  acceptDrops(column.root, receive, (ids) => relabel(ids, column.label));
  return column;
}

async function rename(column) {
  const [old, wanted] = [column.label, column.name.value.trim()];
  if (wanted === "" || wanted === old) {
    column.name.value = old;
    return;
  }
  columns.delete(old); // the column stays, so that the focus does too
  columns.set(wanted, column);
  column.label = wanted;
  try {
    await change("PATCH", "/v1/classes", { json: { name: old, new_name: wanted } });
  } catch (problem) {
    columns.delete(wanted);
    render(state());
    throw problem;
  }
}

function fillColumn(column, entry, photos) {
  if (document.activeElement !== column.name) column.name.value = entry.name;
  if (document.activeElement !== column.prompt) column.prompt.value = entry.prompt ?? "";
  column.prompt.placeholder = `Prompt: a photo of ${entry.name}`;
  column.prompt.setAttribute("aria-label", `Prompt of ${entry.name}, a sentence a line`);
  column.count.textContent = entry.count;
  column.count.setAttribute("aria-label", counted(entry.count, "photo"));
  column.root.setAttribute("aria-label", `Class ${entry.name}`);
  column.remove.setAttribute("aria-label", `Delete the class ${entry.name}`);
  const kept = new Map();
  for (const photo of photos) {
    const key = JSON.stringify(photo); // a photo whose flags changed is drawn again
    kept.set(key, column.photos.get(key) ?? selectable(thumbnail(photo), photo.id));
  }
  column.photos = kept;
  show(column.grid, ...(kept.size > 0
    ? kept.values()
    : [element("p", { class: "muted" }, "Drop photos here, or paste them.")]));
}

function renderRefused(latest) {
  const refused = [...latest.refused, ...tooLarge];
  byId("refused").hidden = refused.length === 0;
  byId("refused-count").textContent = counted(refused.length, "file");
  show(byId("refused-list"), ...refused.map((file) => element("li", {},
    element("span", { class: "name" }, file.name), " ",
    element("span", { class: "muted" }, file.reason))));
}
