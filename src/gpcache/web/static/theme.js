// Sets the chosen colours before the first paint; without a choice the system's setting holds.
"use strict";
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
