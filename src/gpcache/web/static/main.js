// Starts the page: the five steps, undo, the colours, and a look at the server on return.

import { startCheck, showCheck } from "./check.js";
import { pasteIntoCollect, startCollect } from "./collect.js";
import { byId, counted, percent } from "./elements.js";
import { pasteIntoGrow, showGrow, startGrow } from "./grow.js";
import { handled, say } from "./notices.js";
import { change, refresh, state, subscribe } from "./state.js";
import { startSuspects } from "./suspects.js";
import { pasteIntoTry, startTry } from "./try.js";
import { showUse, startUse } from "./use.js";

const STEPS = ["collect", "check", "try", "grow", "use"];
const PASTES = { collect: pasteIntoCollect, try: pasteIntoTry, grow: pasteIntoGrow };

function step() {
  const asked = location.hash.slice(1);
  return STEPS.includes(asked) ? asked : STEPS[0];
}

function go() {
  for (const name of STEPS) byId(name).hidden = name !== step();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${step()}`) link.setAttribute("aria-current", "step");
    else link.removeAttribute("aria-current");
  }
  showCheck(step() === "check");
  showGrow(step() === "grow");
  showUse(step() === "use");
}

const undo = handled(async () => {
  if (!state()?.can_undo) return;
  const what = state().undo;
  if (await change("POST", "/v1/undo") !== null) say(`Undone: ${what}.`);
});

function renderHead(latest) {
  byId("undo").disabled = !latest.can_undo;
  byId("undo-what").textContent = latest.can_undo ? latest.undo : "";
  byId("undo").title = latest.can_undo ? `Undo: ${latest.undo} (Ctrl+Z)` : "Nothing to undo";
  const photos = latest.classes.reduce((sum, entry) => sum + entry.count, 0);
  const figure = latest.loo?.accuracy === undefined ? ""
    : ` · ${percent(latest.loo.accuracy)} right, leave-one-out`;
  byId("summary").textContent = `${counted(latest.classes.length, "class", "classes")} · ${
    counted(photos, "photo")}${figure} · ${latest.encoder}, ${latest.method}`;
}

function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme ?? system;
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

function pressed(event) {
  const field = event.target.closest?.("input, textarea, dialog");
  const wanted = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key === "z";
  if (!wanted || field) return; // a field undoes its own typing
  event.preventDefault();
  undo();
}

function start() {
  byId("undo").addEventListener("click", undo);
  byId("theme").addEventListener("click", toggleTheme);
  document.addEventListener("keydown", pressed);
  document.addEventListener("paste", (event) => PASTES[step()]?.(event));
  // A file dropped beside a zone would otherwise replace the page.
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => event.preventDefault());
  }
  document.addEventListener("visibilitychange", handled(async () => {
    if (!document.hidden) await refresh(); // another tab may have changed it
  }));
  addEventListener("hashchange", () => {
    go();
    byId(step()).querySelector("h2").focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  subscribe(renderHead);
  startCollect();
  startCheck();
  startSuspects(() => step() === "check");
  startTry();
  startGrow();
  startUse();
  go();
  handled(refresh)();
}

start();
