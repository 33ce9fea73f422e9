// "Timeline": the same run over time, lane by lane, with what every GPU holds below its lanes.

async function showTimeline(screen, setup) {
  const { from, to, ...cut } = setup;
  const answer = await answerFor("cut", typed(cut));
  if (!answer) return;
  if (!answer.timeline) return put(screen, element("p", { class: "reason" }, answer.reason));
  const other = answer.pinned?.timeline && answer.pinned;
  const whole = Math.max(answer.timeline.seconds, other?.timeline.seconds || 0),
    shown = part(whole, setup);
  const zoomTo = (first, last, how) => showWindow(whole, setup, first, last, how);
  const options = { height: 20, memory: true, shown },
    picture = timelinePicture(answer, { ...options, cursor: true });
  zoomByHand(picture, shown, zoomTo);
  put(
    screen,
    element(
      "h2",
      {},
      `${answer.row.name}: ${answer.cells.step} `,
      element("a", { class: "after", href: address("cut", cut) }, "change its settings"),
    ),
    zoomButtons(whole, shown, zoomTo),
    moment(answer, picture, shown),
    savable("timeline", picture),
    activities(answer),
    element("p", { class: "what" }, "The strip below a GPU's lanes is what it holds:"),
    legend(answer.memory.kinds.map((kind) => `memory ${kind}`)),
    other
      ? element("section", {}, element("h2", {}, `pinned: ${other.row.name}, ${other.cells.step}`), laterTimeline(other, options))
      : null,
    element("p", { class: "what" }, "Drag over the picture to see a part of it larger; two fingers, or Ctrl and the wheel, do it too."),
  );
}

// The part of the step that is shown: all of it, unless the address names a part that there is.
function part(whole, { from, to }) {
  const [first, last] = [Number(from ?? 0), Number(to ?? whole)];
  return 0 <= first && first < last && last <= whole * 1.0001 ? { from: first, to: last } : { from: 0, to: whole };
}

// What the colours of a timeline stand for.
function activities(answer) {
  return legend([...new Set(answer.timeline.lanes.flatMap((lane) => lane.spans.map((span) => span[2]))), "idle"]);
}

// A part of the step; what is all of it has no place in the address.
function showWindow(whole, setup, from, to, how = go) {
  const [first, last] = [Math.max(0, from), Math.min(whole, to)];
  if (last - first < whole / 1e4) return;
  how(
    "timeline",
    first === 0 && last === whole ? without(setup, "from", "to") : { ...setup, from: first.toPrecision(5), to: last.toPrecision(5) },
  );
}

function zoomButtons(whole, shown, at) {
  const span = shown.to - shown.from,
    middle = (shown.from + shown.to) / 2;
  const zoom = (words, label, act, enabled) =>
    button(`zoom-${label.replaceAll(" ", "-")}`, words, act, { "aria-label": label, disabled: !enabled });
  return element(
    "p",
    {},
    [
      zoom("+", "zoom in", () => at(middle - span / 4, middle + span / 4), span > whole / 200),
      zoom("−", "zoom out", () => at(middle - span, middle + span), span < whole),
      zoom("◀", "earlier", () => at(shown.from - span / 2, shown.to - span / 2), shown.from > 0),
      zoom("▶", "later", () => at(shown.from + span / 2, shown.to + span / 2), shown.to < whole),
      zoom("whole step", "whole step", () => at(0, whole), span < whole),
    ].flatMap((each) => [each, " "]),
  );
}

// Drag marks a part; a pinch, or Ctrl with the wheel, zooms around where it is.
function zoomByHand(picture, shown, at) {
  const second = (x) => shown.from + shareOfLanes(picture, x) * (shown.to - shown.from);
  const around = (middle, times, how) => at(middle - (middle - shown.from) * times, middle + (shown.to - middle) * times, how);
  const mark = picture.appendChild(svg("rect", { y: 0, height: "100%", class: "marked", width: 0 }));
  followFingers(
    picture,
    (fingers) => markPart(mark, picture, fingers),
    ([[a, b], other]) => {
      mark.setAttribute("width", 0);
      if (other) around(second((b + other[1]) / 2), Math.abs(a - other[0]) / Math.max(Math.abs(b - other[1]), 1));
      else if (Math.abs(b - a) > 8) at(second(Math.min(a, b)), second(Math.max(a, b)));
    },
  );
  const wheel = (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    around(second(event.clientX), event.deltaY > 0 ? 1.25 : 0.8, replaced);
  };
  picture.addEventListener("wheel", wheel, { passive: false });
}

// How far along the lanes a place on the screen is, from 0 to 1.
function shareOfLanes(picture, x) {
  const { left, width } = TIMELINE,
    box = picture.getBoundingClientRect();
  const inside = ((x - box.left) / box.width) * (width + 20);
  return Math.min(Math.max((inside - left) / (width - left), 0), 1);
}

// Tell of fingers, each [where it came, where it is], while they move and when the first of them goes.
function followFingers(picture, moved, gone) {
  const fingers = new Map();
  const end = (event) => {
    const all = [...fingers.values()];
    fingers.clear();
    if (all.length) gone(event.type === "pointercancel" ? [[0, 0]] : all);
  };
  picture.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.clientX, event.clientX]);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.get(event.pointerId)[1] = event.clientX;
    moved([...fingers.values()]);
  });
  picture.addEventListener("pointerup", end);
  picture.addEventListener("pointercancel", end);
}

function markPart(mark, picture, [[a, b], other]) {
  if (other) return;
  const [from, to] = [Math.min(a, b), Math.max(a, b)].map(
    (x) => TIMELINE.left + shareOfLanes(picture, x) * (TIMELINE.width - TIMELINE.left),
  );
  mark.setAttribute("x", from);
  mark.setAttribute("width", to - from);
}

// A moment of the step: a line in the picture, and what everybody does then. It plays, or is moved by hand.
function moment(answer, picture, shown) {
  const line = picture.querySelector(".cursor"),
    said = element("p", { id: "hovered", role: "status" }, "Point at a piece, move the moment, or play it, to read what everybody does.");
  const slider = element("input", {
    type: "range",
    id: "moment",
    min: 0,
    max: 1000,
    value: 0,
    "aria-label": "moment",
    oninput: () => moved(),
  });
  const moved = () => {
    const share = slider.value / 1000,
      x = TIMELINE.left + share * (TIMELINE.width - TIMELINE.left);
    for (const name of ["x1", "x2"]) line.setAttribute(name, x);
    said.textContent = whatAllDo(answer.timeline, shown.from + share * (shown.to - shown.from));
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches,
    step = still ? 50 : 4;
  const play = () => playFrom(0, 1000 / step, still ? 1000 : 40, (at) => slider.isConnected && ((slider.value = at * step), moved(), true));
  return element("div", {}, element("p", { class: "slide" }, button("play", "play", play), slider), said);
}

function whatAllDo({ lanes, who }, second) {
  const does = (lane) => {
    const span = lane.spans.find(([start, end]) => start <= second && second < end);
    return `${who} ${ranges(lane.ranks)}: ${span ? doing(span[2], span[3]) : KNOWN.terms.idle}`;
  };
  return lanes.filter(isCompute).map(does).join("; ");
}
