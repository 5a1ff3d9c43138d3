// One photo of the workspace: its thumbnail, and the window in which it is moved or removed.

import { originalAddress, photoAddress } from "./api.js";
import { button, classChooser, element, typing } from "./elements.js";
import { PHOTO_TYPE } from "./intake.js";
import { handled } from "./notices.js";
import { change, classNames, state } from "./state.js";

const FLAG_WORDS = {
  duplicate: "duplicate: the same picture is here twice",
  burst: "burst: nearly the same picture as another",
  outlier: "outlier: unlike all others of its class",
  suspect: "suspect: see Check",
  kept: "kept: you confirmed its label",
};

export function picture(id, name) {
  return element("img", {
    src: photoAddress(id), alt: name, loading: "lazy", decoding: "async", "data-id": id,
  });
}

// The original of a photo; a click or Z shows it at full size, with scrolling. The small picture is
// shown until the original is loaded, or if there is none.
export function original(id, name) {
  const image = picture(id, name);
  const full = element("img", { src: originalAddress(id), alt: name });
  const box = element("div", { class: "zoom" }, image);
  const press = button("Zoom", () => zoom(), { "aria-pressed": "false", title: "Zoom (Z)" });
  const zoom = (x = 0.5, y = 0.5) => {
    const near = box.classList.toggle("near");
    press.setAttribute("aria-pressed", String(near));
    full.style.width = near ? `${Math.max(full.naturalWidth, 2 * box.clientWidth)}px` : "";
    box.scrollTo(
      x * box.scrollWidth - box.clientWidth / 2, y * box.scrollHeight - box.clientHeight / 2,
    );
  };
  box.addEventListener("click", (event) => {
    const area = full.getBoundingClientRect();
    if (full.isConnected) {
      zoom((event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    }
  });
  full.addEventListener("load", () => image.replaceWith(full));
  full.addEventListener("error", () => press.remove());
  return element("div", { class: "original" }, box, press);
}

export function pressedZoom(event, inside) {
  if (event.key.toLowerCase() !== "z" || event.ctrlKey || event.metaKey) return false;
  const press = inside.querySelector(".original > button");
  press?.click();
  return press !== null;
}

// A click on the small picture of a suspect, or Z, shows the photo itself.
export function startOriginals() {
  const open = (card) => {
    const id = card?.querySelector("img[data-id]")?.dataset.id;
    const photo = state().photos.find((one) => one.id === id);
    if (photo !== undefined) openPhoto(photo);
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest(".suspect img")) open(event.target.closest(".suspect"));
  });
  document.addEventListener("keydown", (event) => {
    const card = document.activeElement.closest?.(".suspect");
    if (card && !typing(event) && event.key.toLowerCase() === "z") open(card);
  });
}

// A photo that is not in the workspace, as the browser has it.
export function pictureOf(file) {
  const image = element("img", { src: URL.createObjectURL(file), alt: file.name });
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  image.addEventListener("click", () => image.classList.toggle("large"));
  return image;
}

export const relabel = handled((ids, label) => (
  change("PATCH", "/v1/examples", { json: { ids, label } })));

// Confirms the labels of photos, so that they are no longer suspicious; or undoes that.
export const keep = handled((ids, yes) => (
  change("PATCH", "/v1/examples", { json: { ids, keep: yes } })));

export const remove = handled((ids) => change("DELETE", "/v1/examples", { json: { ids } }));

// A thumbnail that opens the photo; Delete removes it, dragging it to another class moves it.
export function thumbnail(photo) {
  const flags = photo.flags ?? [];
  const description = [photo.name, ...flags].join(", ");
  const made = button(picture(photo.id, ""), () => openPhoto(photo), {
    class: "thumbnail", "aria-label": description, title: description, draggable: "true", "data-id": photo.id,
  });
  if (flags.length > 0) {
    made.append(element("span", { class: "flags", "aria-hidden": "true" }, ...flags.map((flag) => (
      element("span", { class: `flag-${flag}` }, flag)))));
  }
  made.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(PHOTO_TYPE, JSON.stringify([photo.id]));
  });
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Delete" && event.key !== "Backspace") return;
    event.preventDefault();
    (made.nextElementSibling ?? made.previousElementSibling)?.focus();
    remove([photo.id]);
  });
  return made;
}

export function openPhoto(photo) {
  const others = classNames().filter((name) => name !== photo.label);
  const marks = photo.flags ?? [];
  const flags = marks.map((flag) => element("li", {}, FLAG_WORDS[flag] ?? flag));
  const finish = (work) => {
    dialog.close();
    work();
  };
  const dialog = element("dialog", { class: "photo", "aria-label": `Photo ${photo.name}` },
    original(photo.id, photo.name),
    element("h3", { class: "name" }, photo.name),
    element("p", {}, "Labelled ", element("strong", {}, photo.label), "."),
    flags.length > 0 ? element("ul", {}, ...flags) : null,
    element("div", { class: "row" },
      classChooser("Move to…", others, (label) => finish(() => relabel([photo.id], label))),
      marks.includes("kept")
        ? button("Question again", () => finish(() => keep([photo.id], false))) : null,
      button("Remove", () => finish(() => remove([photo.id]))),
      button("Close", () => dialog.close(), { class: "primary", autofocus: true })));
  dialog.addEventListener("keydown", (event) => pressedZoom(event, dialog));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
