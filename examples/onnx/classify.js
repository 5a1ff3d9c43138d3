// Classifies a photo in the browser with model.onnx, made by `gpcache export MODEL --images`.
// Put model.onnx and ort/, the folder dist of the npm package onnxruntime-web, next to this file.
// The photo does not leave the browser.

import * as ort from "./ort/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more threads need headers of the server
const bytes = new Uint8Array(await (await fetch("model.onnx")).arrayBuffer());
const facts = metadata(bytes);
const classes = JSON.parse(facts.classes);
const preprocess = JSON.parse(facts.preprocess);
const session = await ort.InferenceSession.create(bytes);
const answer = document.getElementById("answer");
answer.textContent = "Choose a photo.";

document.getElementById("photo").addEventListener("change", async (event) => {
  const result = await classify(event.target.files[0]);
  answer.textContent = result.rejected ? `I don’t know (nearest: ${result.nearest})`
    : `${result.nearest} ${(100 * result.probabilities[result.nearest]).toFixed(1)} %`;
  answer.dataset.result = JSON.stringify(result);
});

async function classify(file) {
  const { size } = preprocess;
  const input = new ort.Tensor("uint8", cropped(await decoded(file)), [1, size, size, 3]);
  const outputs = await session.run({ pixels: input });
  const shares = Array.from(outputs.probabilities.data);
  return {
    nearest: classes[Number(outputs.label.data[0])],
    probabilities: Object.fromEntries(classes.map((name, index) => [name, shares[index]])),
    familiarity: outputs.familiarity.data[0],
    rejected: Boolean(outputs.rejected.data[0]),
  };
}

// The pixels of a file, upright, with transparency on white: {width, height, data: RGB}.
async function decoded(file) {
  const image = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white";
  pen.fillRect(0, 0, image.width, image.height);
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, image.width, image.height);
  const rgb = new Uint8Array(3 * image.width * image.height);
  for (let from = 0, to = 0; from < data.length; from += 4, to += 3) {
    for (let channel = 0; channel < 3; channel += 1) rgb[to + channel] = data[from + channel];
  }
  return { width: image.width, height: image.height, data: rgb };
}

// The short side becomes `resize`, and the centre is cut out.
function cropped(image) {
  const { size, resize: short } = preprocess;
  const [width, height] = image.width <= image.height
    ? [short, Math.floor((short * image.height) / image.width)]
    : [Math.floor((short * image.width) / image.height), short];
  const scaled = turned(resized(turned(resized(image, width)), height));
  const [left, top] = [evenRound((width - size) / 2), evenRound((height - size) / 2)];
  const out = new Uint8Array(3 * size * size);
  for (let row = 0; row < size; row += 1) {
    const start = 3 * ((top + row) * width + left);
    out.set(scaled.data.subarray(start, start + 3 * size), 3 * size * row);
  }
  return out;
}

// Half goes to the even neighbour, as Python rounds.
function evenRound(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}

const FILTERS = {
  bilinear: [1, (x) => (x < 1 ? 1 - x : 0)],
  bicubic: [2, (x) => {
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
  }],
};

// Every row resized to `width`, with the weights and the rounding of Pillow.
function resized({ width: before, height, data }, width) {
  const [reach, filter] = FILTERS[preprocess.interpolation];
  const scale = before / width;
  const stretch = Math.max(scale, 1);
  const out = new Uint8Array(3 * width * height);
  for (let x = 0; x < width; x += 1) {
    const centre = (x + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - reach * stretch + 0.5), 0);
    const end = Math.min(Math.trunc(centre + reach * stretch + 0.5), before);
    const weights = [];
    for (let at = first; at < end; at += 1) {
      weights.push(filter(Math.abs((at - centre + 0.5) / stretch)));
    }
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const whole = weights.map((weight) => {
      const scaled = (weight / total) * 2 ** 22;
      return Math.trunc(scaled + (scaled < 0 ? -0.5 : 0.5));
    });
    for (let y = 0; y < height; y += 1) {
      for (let channel = 0; channel < 3; channel += 1) {
        let sum = 2 ** 21;
        whole.forEach((weight, place) => {
          sum += weight * data[3 * (y * before + first + place) + channel];
        });
        out[3 * (y * width + x) + channel] = Math.min(Math.max(Math.floor(sum / 2 ** 22), 0), 255);
      }
    }
  }
  return { width, height, data: out };
}

// Transposes an image.
function turned({ width, height, data }) {
  const out = new Uint8Array(data.length);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const [from, to] = [3 * (y * width + x), 3 * (x * height + y)];
      for (let channel = 0; channel < 3; channel += 1) out[to + channel] = data[from + channel];
    }
  }
  return { width: height, height: width, data: out };
}

// The entries `metadata_props` of an ONNX file, which onnxruntime-web does not expose.
function metadata(file) {
  const text = new TextDecoder();
  const entries = {};
  for (const [field, part] of fields(file)) {
    if (field !== 14) continue;
    const entry = Object.fromEntries(fields(part));
    entries[text.decode(entry[1])] = text.decode(entry[2]);
  }
  return entries;
}

// The numbers and contents of the fields of a protobuf message that hold bytes.
function* fields(message) {
  let at = 0;
  const number = () => {
    let [value, factor] = [0, 1];
    for (;;) {
      const byte = message[at];
      at += 1;
      value += (byte & 127) * factor;
      if (byte < 128) return value;
      factor *= 128;
    }
  };
  while (at < message.length) {
    const key = number();
    const kind = key % 8;
    if (kind === 2) {
      const length = number();
      yield [Math.floor(key / 8), message.subarray(at, at + length)];
      at += length;
    } else if (kind === 0) number();
    else at += kind === 1 ? 8 : 4;
  }
}
