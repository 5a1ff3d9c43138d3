// Sends requests to the server of this page.

const TRIES_WHEN_BUSY = 6;

// The sentence with which the server refused a request.
export class Refusal extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.sentence = sentence;
    this.status = status;
  }
}

// `json` or `form` is the body; `revision` is the state that a change is based on; changes of one
// `drop` are undone together.
export async function call(method, path, { json, form, revision, drop } = {}) {
  const headers = { Accept: "application/json" };
  if (json !== undefined) headers["Content-Type"] = "application/json";
  if (revision !== undefined) headers["If-Match"] = String(revision);
  if (drop !== undefined) headers["Gpcache-Drop"] = drop;
  const body = json === undefined ? form : JSON.stringify(json);
  for (let attempt = 1; ; attempt += 1) {
    const answer = await reached(path, { method, headers, body });
    if (answer.ok) return answer;
    const busy = answer.status === 429 || answer.status === 503;
    if (!busy || attempt === TRIES_WHEN_BUSY) throw await refusal(answer);
    await pause(Number(answer.headers.get("Retry-After")) || 1);
  }
}

export async function fetchJson(method, path, body) {
  return (await call(method, path, body)).json();
}

export function photoAddress(id) {
  return `/v1/photos/${encodeURIComponent(id)}`;
}

export function originalAddress(id) {
  return `${photoAddress(id)}/original`;
}

// `entries`: [{file, path}]
export function formOf(entries, fields = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  for (const { file, path } of entries) form.append("files", file, path);
  return form;
}

// A browser drops requests when the network of the machine changes: what only reads is asked again.
async function reached(path, request) {
  const ask = () => fetch(path, { ...request, credentials: "same-origin", redirect: "error" });
  try {
    return await (request.method === "GET" ? ask().catch(() => pause(1).then(ask)) : ask());
  } catch {
    throw new Refusal("The server does not answer: start it again with “gpcache serve” "
      + "and open the address that it prints.", 0);
  }
}

async function refusal(answer) {
  if (answer.status === 401 || answer.status === 403) {
    return new Refusal("This page has no valid token: open the address that “gpcache serve” "
      + "printed.", answer.status);
  }
  const body = await answer.json().catch(() => ({}));
  return new Refusal(body.error ?? `The server answered ${answer.status}.`, answer.status);
}

function pause(seconds) {
  return new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(seconds, 10)));
}
