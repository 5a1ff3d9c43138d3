// Starts the page: the five steps, undo, the colours, and a refresh when the tab becomes visible.

import { startCheck, showCheck } from "./check.js";
import { pasteIntoCollect, startCollect } from "./collect.js";
import { byId, counted, percent } from "./elements.js";
import { pasteIntoGrow, showGrow, startGrow } from "./grow.js";
import { complain, handled, say } from "./notices.js";
import { startOriginals } from "./photos.js";
import { change, refresh, state, subscribe } from "./state.js";
import { startSuspects } from "./suspects.js";
import { showTestSet, startTestSet } from "./testset.js";
import { pasteIntoTry, startTry } from "./try.js";
import { showUse, startUse } from "./use.js";

const shown = new Set(); // notices about damage in the workspace
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
  showTestSet(step() === "check");
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
  // The accuracy of only some classes is shown in Check, with their number.
  const whole = latest.loo !== null && latest.loo.covered === latest.loo.of;
  const figure = whole ? ` · ${percent(latest.loo.accuracy)} right when held out` : "";
  const model = photos > 0 ? `${latest.encoder}, ${latest.method}` : `${latest.encoder}, class names only`;
  const classes = counted(latest.classes.length, "class", "classes");
  byId("summary").textContent = latest.classes.length === 0
    ? `Empty: no class and no photo yet · encoder ${latest.encoder}`
    : `${classes} · ${counted(photos, "photo")}${figure} · ${model}`;
  for (const notice of latest.notices.filter((one) => !shown.has(one))) {
    shown.add(notice);
    complain(notice);
  }
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
    document.querySelector("main").scrollTo(0, 0);
  });
  subscribe(renderHead);
  startOriginals();
  startCollect();
  startCheck();
  startSuspects(() => step() === "check");
  startTry();
  startGrow();
  startUse();
  startTestSet();
  go();
  handled(refresh)();
}

start();
