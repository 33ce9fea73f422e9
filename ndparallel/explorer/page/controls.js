// What can be set: controls under their headings, and a set-up that is kept beside the next ones.

// What the marks on stops mean, as far as there are any.
function marks(stops) {
  return [
    stops.some(({ reason, absent }) => reason && !absent) && "What is crossed out, or called not possible, cannot be beside the rest. Choose it to read why.",
    stops.some(({ absent }) => absent) && "What is dotted is possible, but its answer is not in this page.",
  ].filter(Boolean);
}

// All controls, under their headings. A stop that cannot be says why.
function form(screen, controls, setup, answer, ...more) {
  const groups = [...new Set(controls.map((control) => control.group))];
  return element(
    "form",
    { "aria-label": "what is set", onsubmit: (event) => event.preventDefault() },
    answer.row && answer.timeline ? element("p", {}, pin(screen, setup)) : null,
    marks(controls.flatMap(({ stops }) => stops)).map((words) => element("p", { class: "what" }, words)),
    groups.map((group) =>
      element(
        "fieldset",
        {},
        element("legend", {}, group),
        controls.filter((control) => control.group === group).map((control) => inputOf(screen, control, setup, answer)),
      ),
    ),
    more,
  );
}

const called = ({ name }) => name.replaceAll("_", " ");

function inputOf(screen, control, setup, answer) {
  const go_to = (value) => go(screen, { ...setup, [control.name]: value });
  const free = Boolean(answer.reason); // where nothing is shown anyway, one may pass through what cannot be
  const set = (value) => {
    const { reason } = control.stops.find((each) => String(each.value) === String(value));
    return reason && !free ? offer(screen, control, setup, value, reason) : go_to(value);
  };
  const id = `control-${control.name}`;
  const what = element("span", { class: "what", id: `${id}-what` }, `${called(control)}: ${control.what}`);
  if (control.kind === "words") {
    const options = control.stops.map((stop) =>
      element(
        "option",
        { value: stop.value, selected: stop.value === control.value, title: stop.reason || null },
        `${stop.value}${stop.absent ? ", not in this page" : stop.reason ? ", not possible" : ""}`,
      ),
    );
    return element("label", { class: "control" }, what, element("select", { id, onchange: (event) => set(event.target.value) }, options));
  }
  if (control.kind === "number") {
    return element(
      "label",
      { class: "control" },
      what,
      element("input", {
        type: "number",
        id,
        min: 1,
        max: control.most,
        value: control.value,
        required: true,
        onchange: (event) => (event.target.reportValidity() ? go_to(event.target.value) : null),
      }),
    );
  }
  const stops = control.stops.map((stop) =>
    element(
      "label",
      { class: stop.absent ? "absent" : stop.reason ? "illegal" : "", title: stop.reason || null },
      element("input", {
        type: "radio",
        name: id,
        id: `${id}-${stop.value}`,
        value: stop.value,
        checked: stop.value === control.value,
        "aria-describedby": stop.reason ? "said" : null,
        onfocus: () => stop.reason && say(`${called(control)} ${stop.value}: ${stop.reason}`),
        onchange: (event) => set(event.target.value),
      }),
      element("span", {}, String(stop.value)),
    ),
  );
  return element(
    "div",
    { class: "control", role: "radiogroup", "aria-labelledby": `${id}-what` },
    what,
    element("div", { class: "stops" }, stops),
  );
}

// Say why a stop cannot be, and what else would have to be moved for it.
async function offer(screen, control, setup, value, reason) {
  const wanted = { ...setup, [control.name]: value },
    words = `${called(control)} ${value}: ${reason}`;
  await show(); // where it stands is what is set
  say(words);
  const { config, ...values } = wanted;
  const answer = await ask(screen, { ...typed(values), ...(config ? { config } : {}) }, false);
  if (answer?.remedies)
    sayMore(
      words,
      remedyButtons(
        screen,
        wanted,
        answer.remedies.filter(({ name }) => name !== control.name),
      ),
    );
}

function remedyButtons(screen, setup, remedies) {
  return remedies
    .slice(0, 4)
    .map(({ name, value }) =>
      button(`remedy-${name}`, `with ${called({ name })} ${value}`, () => go(screen, { ...setup, [name]: value }), {
        class: "save",
      }),
    );
}

// Why nothing is shown, and the ways out.
function reasonWhy(screen, setup, answer) {
  return element(
    "div",
    { class: "reason" },
    element("p", {}, answer.reason),
    element("p", {}, remedyButtons(screen, setup, answer.remedies || [])),
  );
}

// Keep this set-up beside the next ones.
function pin(screen, setup) {
  const words = `?${new URLSearchParams(setup)}`,
    pinned = read().pin,
    isPinned = pinned === words;
  const label = isPinned ? "unpin" : pinned ? "pin this one instead" : "pin this one, to compare";
  return [
    button("pin", label, () => go(screen, setup, isPinned ? "" : words), { "aria-pressed": String(isPinned) }),
    isPinned ? element("span", { class: "what" }, " It is pinned. Now change a setting: both are shown.") : null,
    pinned && !isPinned ? [" ", button("unpin", "unpin", () => go(screen, setup, ""))] : null,
  ];
}

// What was computed, in a few numbers: [name, key] of the answer's cells.
function numbers(answer, shown) {
  const other = answer.pinned;
  const text = (cell) => (cell === "=" ? "yes" : cell);
  const cell = ([name, key]) =>
    element(
      "div",
      {},
      element("dt", {}, name),
      element("dd", {}, text(answer.cells[key])),
      other ? element("dd", { class: "ghost" }, `pinned: ${text(other.cells[key])}`) : null,
    );
  return element("dl", { class: "numbers" }, shown.map(cell));
}

// Bars of one step: this set-up, the pinned one, and the work itself spread over all GPUs.
function stepBars(answer) {
  const sets = [["this", answer], ...(answer.pinned ? [["pinned", answer.pinned]] : [])],
    end = sets.length * BARS.lane;
  const longest = Math.max(...sets.map(([, each]) => each.row.step_seconds)),
    perSecond = (BARS.width - BARS.left) / longest;
  const text = answer.parts.map((part) => `${part.name}: ${part.text}`);
  return element(
    "div",
    {},
    picture(
      "step",
      BARS.width,
      end + 22,
      text.join("; "),
      hatch(),
      sets.map(([name, each], at) => [textAt(name, 0, at * BARS.lane + 21), stepBar(each.parts, at * BARS.lane, perSecond)]),
      idealLine(answer.row, end, perSecond),
    ),
    element(
      "ul",
      { class: "legend" },
      text.map((words) => element("li", {}, words)),
    ),
  );
}

const BARS = { left: 54, width: 440, lane: 52 }; // of a picture
const BAR_COLOURS = { compute: "other", optimizer: "optimizer", bubble: "idle", "stage imbalance": "idle" }; // all else is waiting

function stepBar(parts, y, perSecond) {
  let x = BARS.left;
  const slivers = [];
  const boxes = parts.map(({ name, seconds, text }) => {
    const wide = seconds * perSecond,
      short = name.replace(/^exposed /, ""),
      isInside = wide > 7 * short.length + 8,
      activity = BAR_COLOURS[name] || "waiting",
      stroke = activity === "idle" ? "var(--grid)" : "var(--ground)";
    x += wide;
    if (!isInside) slivers.push({ name: short, middle: x - wide / 2 });
    return [
      rectAt(x - wide, y + 4, wide, 26, { fill: fill(activity), stroke, "data-says": `${name}: ${text}` }),
      isInside && textAt(short, x - wide + 5, y + 21, { fill: inkOn(activity), ...around(activity) }),
    ];
  });
  return [boxes, sliverNames(slivers, y + 30)];
}

// The names of parts that are too narrow for them: below, side by side, each with a line to its part.
function sliverNames(slivers, y) {
  const half = ({ name }) => 3.5 * name.length + 3;
  let free = 0;
  for (const each of slivers) free = (each.place = Math.max(each.middle, free + half(each))) + half(each);
  let last = BARS.width;
  for (const each of [...slivers].reverse()) last = (each.place = Math.min(each.place, last - half(each))) - half(each);
  return slivers.map(({ name, middle, place }) => [
    lineAt(middle, y, place, y + 5, { stroke: "var(--faint)" }),
    textAt(name, place, y + 15, { "text-anchor": "middle", class: "faint" }),
  ]);
}

// Letters on hatching have its colour around them.
const around = (activity) => (activity === "waiting" ? { stroke: colour(activity), "stroke-width": 5, "paint-order": "stroke" } : {});

function idealLine({ efficiency, step_seconds, gpus }, end, perSecond) {
  if (!efficiency) return null;
  const x = BARS.left + step_seconds * efficiency * perSecond,
    anchor = x > BARS.width / 2 ? "end" : "start";
  return [
    lineAt(x, 0, x, end, { stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
    textAt(`one GPU's step / ${gpus}`, x, end + 12, { "text-anchor": anchor, class: "faint" }),
  ];
}
