// The zero-shot prediction of a photo, updated while names and prompts are edited.

import { fetchJson, formOf } from "./api.js";
import { classBars } from "./charts.js";
import { byId, show } from "./elements.js";
import { acceptDrops, chooser } from "./intake.js";
import { handled } from "./notices.js";
import { pictureOf } from "./photos.js";
import { subscribe } from "./state.js";

let entry = null; // the photo, {file, path}
let words = ""; // the names and prompts now, and those of the answer that is shown
let asked = "";

export function startPreview() {
  const receive = handled(async (entries) => {
    if (entries.length === 0) return;
    [entry] = entries;
    asked = "";
    await update();
  });
  byId("preview-choose").append(chooser("Choose a photo", receive));
  acceptDrops(byId("preview"), receive);
  subscribe(handled(update));
}

async function update(latest = null) {
  if (latest !== null) {
    words = JSON.stringify(latest.classes.map(({ name, prompt }) => [name, prompt]));
    byId("preview").hidden = latest.classes.length === 0;
  }
  if (entry === null || words === "[]" || asked === words) return;
  asked = words;
  const form = formOf([entry]);
  const answer = await fetchJson("POST", "/v1/zero-shot-preview", { form });
  if (asked !== words) return; // the names were edited meanwhile: a later answer follows
  show(byId("preview-answer"), pictureOf(entry.file), classBars(answer.probabilities));
}
