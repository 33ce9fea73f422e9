// What can be set: knobs under their headings, and a set-up that is kept beside the next ones.

// All knobs, under their headings. A stop that cannot be says why.
function controls(screen, knobs, setup, answer, ...more) {
  const groups = [...new Set(knobs.map((knob) => knob.group))];
  return element("form", { "aria-label": "what is set", onsubmit: (event) => event.preventDefault() },
    answer.row && answer.timeline ? element("p", {}, pin(screen, setup)) : null,
    groups.map((group) => element("fieldset", {}, element("legend", {}, group),
      knobs.filter((knob) => knob.group === group).map((knob) => control(screen, knob, setup, answer)))),
    more);
}

function control(screen, knob, setup, answer) {
  const go_to = (value) => go(screen, { ...setup, [knob.name]: value });
  const free = Boolean(answer.reason); // where nothing is shown anyway, one may pass through what cannot be
  const set = (value) => {
    const { reason } = knob.stops.find((each) => String(each.value) === String(value));
    return reason && !free ? offer(screen, knob, setup, value, reason) : go_to(value);
  };
  const id = `knob-${knob.name}`;
  const what = element("span", { class: "what", id: `${id}-what` }, `${knob.name.replaceAll("_", " ")}: ${knob.what}`);
  if (knob.kind === "words") {
    const options = knob.stops.map((stop) => element("option", { value: stop.value, disabled: Boolean(stop.reason) && !free, selected: stop.value === knob.value, title: stop.reason || null }, stop.value));
    return element("label", { class: "knob" }, what, element("select", { id, onchange: (event) => set(event.target.value) }, options));
  }
  if (knob.kind === "number") {
    return element("label", { class: "knob" }, what, element("input", { type: "number", id, min: 1, max: knob.most, value: knob.value, required: true, onchange: (event) => (event.target.reportValidity() ? go_to(event.target.value) : null) }));
  }
  const stops = knob.stops.map((stop) => element("label", { class: stop.reason ? "illegal" : "", title: stop.reason || null },
    element("input", { type: "radio", name: id, id: `${id}-${stop.value}`, value: stop.value, checked: stop.value === knob.value, "aria-describedby": stop.reason ? "said" : null,
      onfocus: () => stop.reason && say(`${knob.name} ${stop.value}: ${stop.reason}`), onchange: (event) => set(event.target.value) }),
    element("span", {}, String(stop.value))));
  return element("div", { class: "knob", role: "radiogroup", "aria-labelledby": `${id}-what` }, what, element("div", { class: "stops" }, stops));
}

// Say why a stop cannot be, and what else would have to be moved for it.
async function offer(screen, knob, setup, value, reason) {
  const wanted = { ...setup, [knob.name]: value }, words = `${knob.name} ${value}: ${reason}`;
  await show(); // where it stands is what is set
  say(words);
  const { config, ...knobs } = wanted;
  const answer = await ask(screen, { ...typed(knobs), ...(config ? { config } : {}) }, false);
  if (answer?.remedies) sayMore(words, remedyButtons(screen, wanted, answer.remedies.filter(({ name }) => name !== knob.name)));
}

function remedyButtons(screen, setup, remedies) {
  return remedies.slice(0, 4).map(({ name, value }) => button(`remedy-${name}`, `with ${name.replaceAll("_", " ")} ${value}`, () => go(screen, { ...setup, [name]: value }), { class: "save" }));
}

// Why nothing is shown, and the ways out.
function reasonWhy(screen, setup, answer) {
  return element("div", { class: "reason" }, element("p", {}, answer.reason), element("p", {}, remedyButtons(screen, setup, answer.remedies || [])));
}

// Keep this set-up beside the next ones.
function pin(screen, setup) {
  const words = `?${new URLSearchParams(setup)}`, isPinned = read().pin === words;
  return button("pin", isPinned ? "unpin" : "pin, to compare", () => go(screen, setup, isPinned ? "" : words), { "aria-pressed": String(isPinned) });
}

// What was computed, in a few numbers: [name, key] of the answer's cells.
function numbers(answer, shown) {
  const other = answer.pinned;
  const text = (cell) => (cell === "=" ? "yes" : cell);
  const cell = ([name, key]) => element("div", {}, element("dt", {}, name), element("dd", {}, text(answer.cells[key])),
    other ? element("dd", { class: "ghost" }, `pinned: ${text(other.cells[key])}`) : null);
  return element("dl", { class: "numbers" }, shown.map(cell));
}

// Bars of one step: this set-up, the pinned one, and the work itself spread over all GPUs.
function stepBars(answer) {
  const rows = [["this", answer]];
  if (answer.pinned) rows.push(["pinned", answer.pinned]);
  const longest = Math.max(...rows.map(([, each]) => each.row.step_seconds));
  const width = 440, left = 54, scale = (width - left) / longest;
  const colourOf = (name) => ({ compute: "other", optimizer: "optimizer", bubble: "idle", "stage imbalance": "idle" })[name] || "waiting";
  const bar = ([name, each], at) => {
    let x = left;
    const segments = each.parts.map((part) => {
      const w = part.seconds * scale, here = x;
      x += w;
      return svg("g", {}, svg("rect", { x: here, y: at * 46 + 4, width: w, height: 26, fill: colour(colourOf(part.name)), stroke: colourOf(part.name) === "idle" ? "var(--grid)" : "var(--ground)", "data-says": `${part.name}: ${part.text}` }),
        w > 9 * part.name.length ? svg("text", { x: here + 5, y: at * 46 + 21, style: null, fill: inkOn(colourOf(part.name)) }, part.name) : null);
    });
    return svg("g", {}, svg("text", { x: 0, y: at * 46 + 21 }, name), segments);
  };
  const ideal = answer.row.efficiency ? left + answer.row.step_seconds * answer.row.efficiency * scale : null;
  const end = rows.length * 46;
  const text = answer.parts.map((part) => element("li", {}, `${part.name}: ${part.text}`));
  return element("div", {},
    savable("step", svg("svg", { viewBox: `0 0 ${width} ${end + 22}`, role: "img", "aria-label": answer.parts.map((part) => `${part.name} ${part.text}`).join("; ") },
      rows.map(bar),
      ideal && svg("line", { x1: ideal, x2: ideal, y1: 0, y2: end, stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
      ideal && svg("text", { x: ideal, y: end + 12, "text-anchor": ideal > width / 2 ? "end" : "start", class: "faint" }, "one GPU's step / GPUs"))),
    element("ul", { class: "legend" }, text));
}
