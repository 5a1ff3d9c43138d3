// Takes photos with the webcam: one with a click, a burst while the button or the space bar is held.

import { button, counted, element } from "./elements.js";
import { complain } from "./notices.js";

const MILLISECONDS_BETWEEN = 200;

// Opens the camera; resolves to the photos that were taken, none if it was closed.
export async function takePhotos(purpose) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: true });
  } catch (problem) {
    complain(`The webcam cannot be used (${problem.message}): allow it in the browser, `
      + "or add files instead.");
    return [];
  }
  try {
    return await session(stream, purpose);
  } finally {
    for (const track of stream.getTracks()) track.stop();
  }
}

async function session(stream, purpose) {
  const video = element("video", { autoplay: true, playsinline: true, "aria-label": "Webcam" });
  video.muted = true;
  video.srcObject = stream;
  const photos = [];
  const count = element("p", { role: "status" }, "No photo yet.");
  const add = button("Add photos", () => dialog.close("add"), { class: "primary", disabled: true });
  const take = burstButton(async () => {
    const photo = await frame(video, photos.length + 1);
    if (photo === null) return;
    photos.push(photo);
    count.textContent = `${counted(photos.length, "photo")} taken.`;
    add.disabled = false;
  });
  const dialog = element("dialog", { class: "camera", "aria-label": purpose },
    element("h3", {}, purpose), video, count,
    element("div", { class: "row" }, take, add, button("Close", () => dialog.close(""))));
  document.body.append(dialog);
  dialog.showModal();
  await new Promise((resolve) => { dialog.addEventListener("close", resolve, { once: true }); });
  take.release();
  dialog.remove();
  return dialog.returnValue === "add" ? photos : [];
}

function burstButton(takeOne) {
  let timer = null;
  const hold = button("Take (hold for a burst)", null);
  const start = () => {
    if (timer !== null) return;
    takeOne();
    timer = setInterval(takeOne, MILLISECONDS_BETWEEN);
  };
  hold.release = () => {
    clearInterval(timer);
    timer = null;
  };
  hold.addEventListener("pointerdown", start);
  for (const end of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) {
    hold.addEventListener(end, hold.release);
  }
  hold.addEventListener("keydown", (event) => {
    if (event.key === " " || event.key === "Enter") start();
  });
  return hold;
}

async function frame(video, number) {
  if (video.videoWidth === 0) return null; // the camera is still waking up
  const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const bytes = await new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.92); });
  const name = `webcam-${Date.now()}-${number}.jpg`;
  return new File([bytes], name, { type: "image/jpeg" });
}
