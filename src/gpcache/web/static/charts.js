// Small charts drawn by hand: bars of classes, an interval, the reliability curve, a learning curve.

import { counted, element, percent, shape } from "./elements.js";

const SIDE = 240;
const MARGIN = { left: 58, right: 20, top: 12, bottom: 40 };

// `shares`: [{label, probability}], best first.
export function classBars(shares, { muted = false } = {}) {
  return element("ul", { class: muted ? "bars muted" : "bars" }, ...shares.map((share) =>
    element("li", {},
      element("span", { class: "name", title: share.label }, share.label),
      element("span", { class: "track" },
        element("i", { "--share": share.probability })),
      element("span", { class: "number" }, percent(share.probability)))));
}

export function intervalBar(value, [low, high]) {
  return element("div", {
    class: "interval", role: "img", "aria-label": `Between ${percent(low)} and ${percent(high)}`,
  }, element("i", { "--low": low, "--high": high }), element("b", { "--at": value }));
}

// `points`: [{confidence, accuracy, count}]; on the diagonal, confidence equals accuracy.
export function reliabilityChart(points) {
  const [x, y] = [scale(0, 1, false), scale(0, 1, true)];
  const filled = points.filter((point) => point.count > 0);
  const most = Math.max(...filled.map((point) => point.count));
  const captions = filled.map((point) => `${counted(point.count, "photo")}: confidence ${
    percent(point.confidence)}, accuracy ${percent(point.accuracy)}`);
  return chart(`Reliability: ${captions.join("; ")}`, "confidence", "accuracy",
    axis(x, y, [0, 0.5, 1], [0, 0.5, 1], percentTick, percentTick),
    shape("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    line(filled.map((point) => [x(point.confidence), y(point.accuracy)])),
    ...filled.map((point, index) => shape("circle", {
      class: "point", cx: x(point.confidence), cy: y(point.accuracy),
      r: 3 + 5 * Math.sqrt(point.count / most),
    }, shape("title", {}, captions[index]))));
}

// `points`: [{n, accuracy}], one after each change. When photos are removed, a new line starts; the
// earlier one stays in the background.
export function learningCurve(points) {
  const counts = points.map((point) => point.n);
  const [first, last] = [Math.min(...counts), Math.max(...counts)];
  const spread = last > first ? [first, last] : [first - 1, last + 1];
  const [x, y] = [scale(...spread, false), scale(0, 1, true)];
  const latest = points.at(-1);
  const runs = grown(points);
  return chart(`Learning curve: ${percent(latest.accuracy)} at ${counted(latest.n, "photo")}`,
    "labelled photos", "held-out accuracy",
    axis(x, y, last > first ? [first, last] : [first], [0, 0.5, 1], String, percentTick),
    ...runs.map((run) => shape("g", { class: run === runs.at(-1) ? null : "earlier" },
      line(run.map((point) => [x(point.n), y(point.accuracy)])),
      ...run.map((point) => shape("circle", {
        class: "point", cx: x(point.n), cy: y(point.accuracy), r: 3.5,
      }, shape("title", {}, `${counted(point.n, "photo")}: ${percent(point.accuracy)}`))))));
}

// The points in runs without removed photos.
function grown(points) {
  const runs = [];
  for (const point of points) {
    if (runs.length === 0 || point.n < runs.at(-1).at(-1).n) runs.push([]);
    runs.at(-1).push(point);
  }
  return runs;
}

function scale(low, high, upwards) {
  const [start, end] = upwards
    ? [SIDE - MARGIN.bottom, MARGIN.top]
    : [MARGIN.left, SIDE - MARGIN.right];
  return (value) => start + ((value - low) / (high - low)) * (end - start);
}

function percentTick(share) {
  return `${100 * share} %`;
}

function chart(description, horizontal, vertical, ...parts) {
  const middle = (SIDE - MARGIN.bottom + MARGIN.top) / 2;
  return shape("svg", {
    class: "chart", viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": description,
  },
  shape("text", { x: SIDE / 2 + 16, y: SIDE - 6, "text-anchor": "middle" }, horizontal),
  shape("text", {
    x: 10, y: middle, "text-anchor": "middle", transform: `rotate(-90 10 ${middle})`,
  }, vertical),
  ...parts);
}

function axis(x, y, horizontal, vertical, nameOfX, nameOfY) {
  const bottom = SIDE - MARGIN.bottom;
  return shape("g", { class: "axis" },
    ...vertical.flatMap((value) => [
      shape("line", { x1: MARGIN.left, x2: SIDE - MARGIN.right, y1: y(value), y2: y(value) }),
      shape("text", { x: MARGIN.left - 5, y: y(value) + 4, "text-anchor": "end" }, nameOfY(value)),
    ]),
    ...horizontal.map((value) => shape("text", {
      x: x(value), y: bottom + 15, "text-anchor": "middle",
    }, nameOfX(value))));
}

function line(places) {
  return shape("polyline", {
    class: "line", points: places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "),
  });
}
