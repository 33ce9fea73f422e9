// Drawing: elements, colours, and numbers on an axis. What is shown as text comes from Python.

const SVG = "http://www.w3.org/2000/svg";
const ON_PHONE = matchMedia("(max-width: 760px)").matches; // pictures are drawn narrow, so that words in them can be read

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return filled(made, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Parts of a picture; `more` are what else a part has.
const rectAt = (x, y, width, height, more = {}) => svg("rect", { x, y, width, height, ...more });
const lineAt = (x1, y1, x2, y2, more = {}) => svg("line", { x1, y1, x2, y2, ...more });
const textAt = (words, x, y, more = {}) => svg("text", { x, y, ...more }, words);

// A picture that can be saved under its name; `label` says aloud what it shows.
function picture(name, width, height, label, ...drawn) {
  return savable(name, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, drawn));
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...present(children));
  return made;
}

// What there is of what is to be shown: a part that has nothing to show is null.
const present = (children) => children.flat(Infinity).filter((child) => child != null && child !== false);

// A button; `more` are attributes that not every button has.
function button(id, words, onclick, more = {}) {
  return element("button", { type: "button", class: "plain", id, onclick, ...more }, words);
}

// A table under its heads; `rows` are lists of cells, or made already.
function table(heads, rows) {
  const cells = (tag, all) => all.map((cell) => (cell instanceof Node ? cell : element(tag, {}, String(cell))));
  const line = (row) => element("tr", {}, cells("td", row));
  return element(
    "div",
    { class: "scroll" },
    element("table", {}, element("thead", {}, element("tr", {}, cells("th", heads))), element("tbody", {}, rows.map(line))),
  );
}

// The colour of an activity, as a variable of the page's style: it follows light and dark by itself.
const colour = (name) => `var(--${name.replaceAll(" ", "-")})`;
// What fills a piece of a picture: waiting is hatched, so that it is not taken for the backward pass.
const fill = (name) => (name === "waiting" ? "url(#hatch)" : colour(name));
const letter = (name) => (KNOWN.paints[name] || ["", "", "?"])[2];

function paint() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? 1 : 0;
  const set = (name, value) => document.documentElement.style.setProperty(`--${name.replaceAll(" ", "-")}`, value);
  for (const [name, paints] of Object.entries(KNOWN.paints)) set(name, paints[dark]);
  for (const [name, inks] of Object.entries(KNOWN.inks)) set(`on-${name}`, inks[dark]);
  for (const name of ["ground", "ink", "faint", "grid", "accent"]) set(name, KNOWN[name][dark]);
}

const STRIPES = `repeating-linear-gradient(-45deg, ${colour("waiting")} 0 3px, var(--ground) 3px 5px)`;

function legend(names) {
  const item = (name) => {
    const mark = element("i", { "aria-hidden": "true" }, letter(name));
    mark.style.background = name === "waiting" ? STRIPES : colour(name);
    mark.style.color = inkOn(name);
    if (name === "waiting") mark.textContent = "\u00a0";
    return element("li", {}, mark, KNOWN.terms[name] || name.replace("memory ", ""));
  };
  return element("ul", { class: "legend" }, names.map(item));
}

// Black or white, whichever can be read on an activity's colour.
function inkOn(name) {
  return colour(`on-${name}`);
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

// What a piece of a picture says while the pointer is on it: its attribute data-says.
addEventListener("pointerover", ({ target, clientX, clientY }) => {
  const tip = document.getElementById("tip"),
    words = target.closest?.("[data-says]")?.dataset.says;
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  tip.style.left = `${Math.max(Math.min(clientX, innerWidth - tip.offsetWidth - 8), 8)}px`;
  tip.style.top = `${clientY + (clientY + tip.offsetHeight + 24 < innerHeight ? 18 : -tip.offsetHeight - 12)}px`;
});

// --------------------------------------------------------------------------------------------- one after another

const waiting = []; // pictures that are not drawn yet: their place on the page, and how to draw them

// A place for a picture, which is drawn as soon as it can be seen, or when there is nothing else to do.
function later([width, height], draw) {
  const place = element("div", { class: "later" });
  place.style.aspectRatio = `${width} / ${height}`;
  waiting.push([place, draw]);
  return place;
}

// Show something in a part of the page: what can be seen of it at once, and the rest in the frames that follow.
function put(part, ...children) {
  const above = part.querySelector("form")?.scrollTop;
  keepFocus(() => part.replaceChildren(...present(children)));
  part.querySelector("form")?.scrollTo(0, above || 0);
  const isSeen = ([place]) => place.getBoundingClientRect().top < innerHeight && place.getBoundingClientRect().bottom > 0;
  waiting.filter(isSeen).forEach(drawNow);
  requestAnimationFrame(drawNext);
}

function drawNext() {
  const next = waiting.shift();
  if (!next) return;
  drawNow(next);
  requestAnimationFrame(drawNext);
}

// What is not on the page is drawn already, or of an older page.
function drawNow([place, draw]) {
  if (place.isConnected) place.replaceWith(draw());
}

// ----------------------------------------------------------------------------------------------------- to play

let playing = null;

// Show what comes after what, one a tick, until the last or until `show` says that it has no place any more.
function playFrom(first, last, milliseconds, show) {
  clearInterval(playing);
  let at = first;
  playing = setInterval(() => {
    if (at > last || !show(at++)) clearInterval(playing);
  }, milliseconds);
}

addEventListener("keydown", ({ key }) => {
  if (key !== "Escape") return;
  clearInterval(playing);
  document.getElementById("tip").hidden = true;
});

// --------------------------------------------------------------------------------------------- pictures to keep

// The hatching of a picture that has waiting in it.
function hatch() {
  const tile = { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const stripe = svg("path", { d: "M0 0v5", stroke: "var(--ground)", "stroke-width": 2.4 });
  return svg("defs", {}, svg("pattern", tile, rectAt(0, 0, 5, 5, { fill: colour("waiting") }), stripe));
}

// A picture with buttons that save it.
function savable(name, picture) {
  const as = (kind, save) =>
    button(null, kind, () => save(name, standalone(picture)), { class: "save", "aria-label": `save the picture ${name} as ${kind}` });
  return element("figure", {}, picture, element("figcaption", {}, "save ", as("SVG", saveSVG), " ", as("PNG", savePNG)));
}

// The picture as a file of its own: its colours and sizes stand in it, and not in the page's style.
function standalone(picture) {
  const copy = picture.cloneNode(true),
    [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height, "font-family": "system-ui, sans-serif", "font-size": 12 }))
    copy.setAttribute(name, value);
  for (const text of copy.querySelectorAll("text:not([fill])"))
    text.setAttribute("fill", text.classList.contains("faint") ? "var(--faint)" : "var(--ink)");
  for (const line of copy.querySelectorAll(".line")) line.setAttribute("stroke", "var(--grid)");
  for (const piece of copy.querySelectorAll("[data-says]")) piece.append(svg("title", {}, piece.dataset.says));
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: "var(--ground)" }));
  const style = getComputedStyle(document.documentElement);
  const words = new XMLSerializer()
    .serializeToString(copy)
    .replace(/var\((--[\w-]+)\)/g, (_, variable) => style.getPropertyValue(variable).trim());
  return { words, width, height };
}

function download(file, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const saveSVG = (name, { words }) => download(`${name}.svg`, new Blob([words], { type: "image/svg+xml" }));

function savePNG(name, { words, width, height }) {
  const image = new Image(),
    canvas = element("canvas", { width: width * 2, height: height * 2 });
  image.onload = () => {
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(`${name}.png`, blob), "image/png");
  };
  image.src = URL.createObjectURL(new Blob([words], { type: "image/svg+xml" }));
}
