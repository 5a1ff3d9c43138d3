// Holds the latest state of the workspace, and sends changes one after another.

import { fetchJson } from "./api.js";
import { complain } from "./notices.js";

let current = null;
let queue = Promise.resolve();
const listeners = new Set();

export function state() {
  return current;
}

export function classNames() {
  return current === null ? [] : current.classes.map((entry) => entry.name);
}

// Calls `listener(state)` at once if there is a state, and after every change.
export function subscribe(listener) {
  listeners.add(listener);
  if (current !== null) listener(current);
}

export async function refresh() {
  accept(await fetchJson("GET", "/v1/state"));
}

// Sends one change, after earlier ones, based on the state that is shown. If another tab has
// changed the state meanwhile, the change is refused.
export function change(method, path, body = {}) {
  const sent = queue.then(() => send(method, path, body));
  queue = sent.catch(() => {});
  return sent;
}

async function send(method, path, body) {
  document.body.setAttribute("aria-busy", "true");
  try {
    if (current === null) await refresh();
    const answer = await fetchJson(method, path, { ...body, revision: current.revision });
    accept(answer.state ?? answer);
    return answer;
  } catch (problem) {
    if (problem.status !== 409) throw problem;
    await refresh();
    complain(`${problem.sentence} The page now shows the latest state.`);
    return null;
  } finally {
    document.body.removeAttribute("aria-busy");
  }
}

function accept(latest) {
  current = latest;
  for (const listener of listeners) listener(latest);
}
