// Drawing: elements, colours, and numbers on an axis. What is shown as text comes from Python.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return filled(made, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

// The colour of an activity, as a variable of the page's style: it follows light and dark by itself.
const colour = (name) => `var(--${name.replaceAll(" ", "-")})`;
const letter = (name) => (KNOWN.paints[name] || ["", "", "?"])[2];

function paint() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? 1 : 0;
  const set = (name, value) => document.documentElement.style.setProperty(`--${name.replaceAll(" ", "-")}`, value);
  for (const [name, paints] of Object.entries(KNOWN.paints)) set(name, paints[dark]);
  for (const name of ["ground", "ink", "faint", "grid"]) set(name, KNOWN[name][dark]);
}

function legend(names) {
  const item = (name) => {
    const mark = element("i", { "aria-hidden": "true" }, letter(name));
    mark.style.background = colour(name);
    mark.style.color = inkOn(name);
    return element("li", {}, mark, name.replace("memory ", ""));
  };
  return element("ul", { class: "legend" }, names.map(item));
}

// Black or white, whichever can be read on an activity's colour.
function inkOn(name) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? 1 : 0;
  const hex = KNOWN.paints[name][dark];
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}

// "0-3, 6" for 0, 1, 2, 3, 6.
function ranges(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const last = runs.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

function title(words) {
  return svg("title", {}, words);
}
