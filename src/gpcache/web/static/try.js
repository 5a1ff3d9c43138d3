// Step 3: the prediction for a photo, or “I don’t know”, and the training photos behind it.

import { fetchJson, formOf } from "./api.js";
import { takePhotos } from "./camera.js";
import { classBars } from "./charts.js";
import { addPhotos } from "./collect.js";
import { button, byId, classChooser, element, percent } from "./elements.js";
import { acceptDrops, chooser, entryOf, pasted, portions } from "./intake.js";
import { complain, during, handled } from "./notices.js";
import { picture, pictureOf } from "./photos.js";
import { classNames } from "./state.js";

const BARS = 5;
const MOST_ANSWERS = 60;

export function startTry() {
  const zone = byId("try-zone");
  zone.append(
    chooser("Choose photos", tryPhotos),
    button("Webcam", async () => {
      const taken = await takePhotos("A photo to try");
      await tryPhotos(taken.map(entryOf));
    }));
  acceptDrops(byId("try"), tryPhotos);
}

export function pasteIntoTry(event) {
  tryPhotos(pasted(event));
}

async function tryPhotos(entries) {
  if (entries.length === 0) return;
  if (classNames().length === 0) {
    complain("There is nothing to choose between yet: name classes in Collect first.");
    return;
  }
  const { groups, refused } = portions(entries);
  for (const file of refused) complain(`${file.name}: ${file.reason}.`);
  await during("Asking the model", groups.flat().length, async (advance) => {
    let done = 0;
    for (const group of groups) {
      const answer = await fetchJson("POST", "/v1/explain", { form: formOf(group) });
      answer.predictions.forEach((prediction, index) => put(prediction, group[index]));
      done += group.length;
      advance(done);
    }
  });
}

function put(prediction, entry) {
  const answers = byId("answers");
  answers.prepend(prediction.error === undefined
    ? answerCard(prediction, entry)
    : element("li", { class: "card answer" },
      element("p", {}, element("strong", {}, prediction.name), ` ${prediction.error}`)));
  while (answers.children.length > MOST_ANSWERS) answers.lastElementChild.remove();
}

function answerCard(prediction, entry) {
  const reason = whyUnknown(prediction);
  const unknown = reason !== null;
  const teach = classChooser("Add to a class…", classNames(), handled(async (label) => {
    await addPhotos(label, [entry]);
  }));
  return element("li", { class: unknown ? "card answer unknown" : "card answer" },
    pictureOf(entry.file),
    element("div", {},
      element("p", { class: "muted name" }, prediction.name),
      verdict(prediction, reason),
      classBars(prediction.probabilities.slice(0, BARS), { muted: unknown }),
      plausible(prediction.plausible),
      teach),
    drivers(prediction));
}

// Why the model answers “I don’t know”, or null if it gives an answer.
function whyUnknown({ rejected, familiarity }) {
  if (!rejected) return null;
  return `It is unlike all training photos: only ${percent(familiarity)} of them look as unusual `
    + "when they are held out.";
}

function verdict(prediction, reason) {
  if (reason === null) {
    return element("p", { class: "headline" },
      element("strong", {}, prediction.label), ` ${percent(prediction.probability)}`);
  }
  return element("div", {},
    element("p", { class: "headline" }, element("strong", {}, "I don’t know")),
    element("p", {}, `${reason} The nearest class is ${prediction.nearest}.`));
}

function plausible(labels) {
  if (!labels || labels.length === 0) return null;
  return element("p", {}, labels.length === 1 ? "Plausible: only " : "Plausible: ",
    ...labels.map((label) => element("span", { class: "chip" }, label)));
}

function drivers(prediction) {
  const why = prediction.why ?? [];
  if (why.length === 0) return null;
  return element("div", { class: "why" },
    element("p", { class: "muted" }, `Training photos that spoke for (+) or against (−) ${
      prediction.nearest}`),
    element("ol", { class: "strip" }, ...why.map((one) => {
      const speaksFor = one.weight >= 0;
      const weight = `${speaksFor ? "+" : "−"}${Math.abs(one.weight).toFixed(2)}`;
      return element("li", { class: speaksFor ? "for" : "against" },
        picture(one.id, one.name),
        element("b", {}, weight),
        element("span", { class: "name", title: one.label }, one.label));
    })));
}
