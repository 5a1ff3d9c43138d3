// Turns drops, pastes and file choosers into lists of {file, path}; the path includes folders.

import { button, element } from "./elements.js";
import { complain } from "./notices.js";

const FILES_PER_REQUEST = 50;
const BYTES_PER_REQUEST = 60e6;
const BYTES_PER_FILE = 20e6;
export const PHOTO_TYPE = "application/x-gpcache-photo";

// Photos dropped on `zone`, also whole folders, go to `receive`; those of the page, by their ids,
// to `receiveIds`.
export function acceptDrops(zone, receive, receiveIds = null) {
  const wanted = (event) => event.dataTransfer.types.includes("Files")
    || (receiveIds !== null && event.dataTransfer.types.includes(PHOTO_TYPE));
  zone.addEventListener("dragover", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    event.stopPropagation();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    event.stopPropagation();
    zone.classList.remove("over");
    const ids = event.dataTransfer.getData(PHOTO_TYPE);
    if (ids !== "") receiveIds(JSON.parse(ids));
    else receive(await dropped(event.dataTransfer));
  });
}

async function dropped(transfer) {
  // The entries must be taken before the first await: the list is emptied after the event.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...transfer.files].map(entryOf);
  if (entries.length === 0) return files;
  try {
    return (await Promise.all(entries.map((entry) => walked(entry, "")))).flat();
  } catch (problem) {
    complain(`The dropped folder could not be read: ${problem.message}`);
    return [];
  }
}

async function walked(entry, above) {
  const path = `${above}${entry.name}`;
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
    return [{ file, path }];
  }
  const reader = entry.createReader();
  const entries = [];
  for (;;) { // a reader returns a hundred entries at a time, and none at the end
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (some.length === 0) break;
    entries.push(...some);
  }
  return (await Promise.all(entries.map((inner) => walked(inner, `${path}/`)))).flat();
}

export function entryOf(file) {
  return { file, path: file.webkitRelativePath || file.name };
}

export function folderOf(entry) {
  return (entry.path.split("/").at(-2) ?? "").normalize("NFC");
}

// A button that opens the system's chooser of photos, or of one folder with all it holds.
export function chooser(label, receive, { folder = false, ...attributes } = {}) {
  const input = element("input", {
    type: "file", hidden: true, multiple: true, webkitdirectory: folder,
    accept: folder ? null : "image/*", "aria-label": attributes["aria-label"] ?? label,
  });
  input.addEventListener("change", () => {
    const chosen = [...input.files].map(entryOf);
    input.value = "";
    receive(chosen);
  });
  return element("span", { class: "chooser" },
    button(label, () => input.click(), attributes), input);
}

export function pasted(event) {
  const stamp = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
  return [...event.clipboardData.files].map((file, index) => {
    const name = file.name === "image.png" ? `pasted-${stamp}-${index + 1}.png` : file.name;
    return entryOf(new File([file], name, { type: file.type }));
  });
}

// Splits entries into requests that the server takes; too large ones come back as refused.
export function portions(entries) {
  const refused = entries.filter(({ file }) => file.size > BYTES_PER_FILE)
    .map(({ file }) => ({ name: file.name, reason: "it is larger than 20 MB" }));
  const groups = [];
  let bytes = Infinity;
  for (const entry of entries.filter(({ file }) => file.size <= BYTES_PER_FILE)) {
    const size = entry.file.size;
    if (bytes + size > BYTES_PER_REQUEST || groups.at(-1).length === FILES_PER_REQUEST) {
      groups.push([]);
      bytes = 0;
    }
    groups.at(-1).push(entry);
    bytes += size;
  }
  return { groups, refused };
}
