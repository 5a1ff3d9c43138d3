// Builds elements; the user's text becomes text or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// "onclick" is listened to, "--share" is a style property, true is an empty attribute,
// null, undefined and false are left out.
function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

// A list of classes to choose from; the first entry says what choosing does.
export function classChooser(prompt, names, choose) {
  const chooser = element("select", { "aria-label": prompt },
    element("option", { value: "", selected: true }, prompt),
    ...names.map((name, index) => element("option", { value: index }, name)));
  chooser.addEventListener("change", () => {
    if (chooser.value !== "") choose(names[Number(chooser.value)]);
    chooser.value = "";
  });
  return chooser;
}

// Puts `children` into `parent`; an element that was focused and stays keeps the focus.
export function show(parent, ...children) {
  const there = parent.childNodes;
  if (there.length === children.length && children.every((one, i) => one === there[i])) return;
  const focused = document.activeElement;
  const inside = parent.contains(focused);
  parent.replaceChildren(...children);
  if (inside && parent.contains(focused)) focused.focus({ preventScroll: true });
}

export function percent(share) {
  const nearlyAll = share > 0.995 && share < 1;
  const nearlyNone = share < 0.005 && share > 0;
  return `${(100 * share).toFixed(nearlyAll || nearlyNone ? 1 : 0)} %`;
}

export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function byId(id) {
  return document.getElementById(id);
}

// Whether a key belongs to the field or the dialog that has the focus, not to the page.
export function typing(event) {
  const inField = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
  return Boolean(inField) || event.altKey || event.ctrlKey || event.metaKey;
}
