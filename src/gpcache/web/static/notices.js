// Tells the user what happened: sentences at the foot of the page, and progress while work runs.

import { byId, button, element } from "./elements.js";

const SECONDS_SHOWN = 6;

export function say(sentence) {
  byId("messages").replaceChildren(); // the latest is enough: undo shows what was done
  const note = put(byId("messages"), sentence);
  setTimeout(() => note.remove(), 1000 * SECONDS_SHOWN);
}

export function complain(problem) {
  const sentence = problem.sentence ?? String(problem.message ?? problem);
  const region = byId("complaints");
  for (const earlier of [...region.children]) {
    if (earlier.dataset.sentence === sentence) earlier.remove();
  }
  put(region, sentence).dataset.sentence = sentence;
}

function put(region, sentence) {
  const note = element("p", { class: "notice" }, element("span", {}, sentence));
  note.append(button("×", () => note.remove(), { "aria-label": "Dismiss", class: "quiet" }));
  region.append(note);
  return note;
}

// Runs `work(advance)` with a progress bar; `advance(done)` moves it. A refusal becomes a notice.
export async function during(label, total, work) {
  const bar = element("progress", { max: total, value: 0, "aria-label": label });
  const count = element("span", {}, `${label} 0 / ${total}`);
  const line = element("p", { class: "notice" }, count, bar);
  byId("working").append(line);
  try {
    return await work((done) => {
      bar.value = done;
      count.textContent = `${label} ${done} / ${total}`;
    });
  } catch (problem) {
    complain(problem);
    return undefined;
  } finally {
    line.remove();
  }
}

// An event handler whose refusals become notices.
export function handled(work) {
  return async (...values) => {
    try {
      await work(...values);
    } catch (problem) {
      complain(problem);
    }
  };
}
