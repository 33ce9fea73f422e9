// "Timeline": the same run over time, lane by lane, with what every GPU holds below its lanes.

async function showTimeline(screen, setup) {
  const { from, to, ...cut } = setup;
  const answer = await ask("cut", typed(cut));
  if (!answer) return;
  if (answer.error) return fail(screen, answer.error);
  say(answer.reason || "");
  showCommand(answer.command);
  if (!answer.timeline) return screen.replaceChildren(element("p", { class: "reason" }, answer.reason));
  const window_ = { from: Number(from || 0), to: Number(to || answer.timeline.seconds) };
  const options = { height: 20, memory: true, window: window_ };
  const zoomTo = (first, last, how) => showWindow(answer, setup, first, last, how);
  const picture = timelinePicture(answer, { ...options, cursor: true }), other = ghost("cut", answer);
  zoomByHand(picture, window_, zoomTo);
  keepFocus(() => screen.replaceChildren(
    element("h2", {}, `${answer.row.name}: ${answer.cells.step}`),
    zoomButtons(answer, window_, zoomTo), moment(answer, picture, window_),
    element("div", { class: "scroll" }, savable("timeline", picture)),
    activities(answer),
    other ? element("section", {}, element("h2", {}, `pinned: ${other.row.name}, ${other.cells.step}`), element("div", { class: "scroll" }, savable("pinned", timelinePicture(other, options)))) : "",
    element("p", { class: "what" }, "Drag over the picture to see a part of it larger; two fingers, or Ctrl and the wheel, do it too.")));
}

// What the colours of a timeline stand for.
function activities(answer) {
  return legend([...new Set(answer.timeline.lanes.flatMap((lane) => lane.spans.map((span) => span[2]))), "idle"]);
}

// A part of the step; what is all of it has no place in the address.
function showWindow(answer, setup, from, to, how = go) {
  const whole = answer.timeline.seconds, [first, last] = [Math.max(0, from), Math.min(whole, to)];
  if (last - first < whole / 1e4) return;
  how("timeline", first === 0 && last === whole ? without(setup, "from", "to") : { ...setup, from: first.toPrecision(5), to: last.toPrecision(5) });
}

function zoomButtons(answer, shown, at) {
  const whole = answer.timeline.seconds, span = shown.to - shown.from, middle = (shown.from + shown.to) / 2;
  const button = (words, label, act, enabled) => element("button", { type: "button", class: "plain", id: `zoom-${label.replaceAll(" ", "-")}`, "aria-label": label, disabled: !enabled, onclick: act }, words);
  return element("p", {}, [
    button("+", "zoom in", () => at(middle - span / 4, middle + span / 4), span > whole / 200),
    button("−", "zoom out", () => at(middle - span, middle + span), span < whole),
    button("◀", "earlier", () => at(shown.from - span / 2, shown.to - span / 2), shown.from > 0),
    button("▶", "later", () => at(shown.from + span / 2, shown.to + span / 2), shown.to < whole),
    button("whole step", "whole step", () => at(0, whole), span < whole),
  ].flatMap((each) => [each, " "]));
}

// Drag marks a part; a pinch, or Ctrl with the wheel, zooms around where it is.
function zoomByHand(picture, shown, at) {
  const fingers = new Map(), span = shown.to - shown.from;
  const second = (x) => {
    const box = picture.getBoundingClientRect(), inside = ((x - box.left) / box.width) * (TIMELINE.width + 20);
    return shown.from + Math.min(Math.max((inside - TIMELINE.left) / (TIMELINE.width - TIMELINE.left), 0), 1) * span;
  };
  const around = (middle, times, how) => at(middle - (middle - shown.from) * times, middle + (shown.to - middle) * times, how);
  const mark = svg("rect", { y: 0, height: "100%", class: "marked", width: 0 });
  picture.append(mark);
  picture.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, [event.clientX, event.clientX]); picture.setPointerCapture(event.pointerId); });
  picture.addEventListener("pointermove", (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) return;
    finger[1] = event.clientX;
    const [a, b] = finger.map((x) => TIMELINE.left + ((second(x) - shown.from) / span) * (TIMELINE.width - TIMELINE.left));
    if (fingers.size === 1) for (const [name, value] of Object.entries({ x: Math.min(a, b), width: Math.abs(b - a) })) mark.setAttribute(name, value);
  });
  const end = (event) => {
    const all = [...fingers.values()];
    fingers.clear();
    mark.setAttribute("width", 0);
    if (event.type === "pointercancel" || !all.length) return;
    const [[a, b], other] = all;
    if (other) return around(second((b + other[1]) / 2), Math.abs(a - other[0]) / Math.max(Math.abs(b - other[1]), 1));
    if (Math.abs(b - a) > 8) at(Math.min(second(a), second(b)), Math.max(second(a), second(b)));
  };
  picture.addEventListener("pointerup", end);
  picture.addEventListener("pointercancel", end);
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    around(second(event.clientX), event.deltaY > 0 ? 1.25 : 0.8, replaced);
  }, { passive: false });
}

// A moment of the step: a line in the picture, and what everybody does then. It plays, or is moved by hand.
function moment(answer, picture, shown) {
  const { lanes, who } = answer.timeline, span = shown.to - shown.from, line = picture.querySelector(".cursor");
  const said = element("p", { id: "hovered", role: "status" }), slider = element("input", { type: "range", id: "moment", min: 0, max: 1000, value: 0, "aria-label": "moment", oninput: () => show_() });
  const does = (lane, second) => {
    const piece = lane.spans.find(([start, end]) => start <= second && second < end);
    return `${who} ${ranges(lane.ranks)}: ${!piece ? "idle" : piece[2] === "waiting" ? `waits for ${piece[3]}` : piece[3]}`;
  };
  const show_ = () => {
    const second = shown.from + (slider.value / 1000) * span, x = TIMELINE.left + (slider.value / 1000) * (TIMELINE.width - TIMELINE.left);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    said.textContent = lanes.filter((lane) => lane.stream === "compute").map((lane) => does(lane, second)).join("; ");
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches, step = still ? 50 : 4;
  const play = () => {
    clearInterval(playing);
    slider.value = 0;
    playing = setInterval(() => {
      slider.value = Number(slider.value) + step;
      show_();
      if (!slider.isConnected || Number(slider.value) >= 1000) clearInterval(playing);
    }, still ? 1000 : 40);
  };
  said.textContent = "Point at a piece, move the moment, or play it, to read what everybody does.";
  return element("div", {}, element("p", { class: "slide" }, element("button", { type: "button", class: "plain", id: "play", onclick: play }, "play"), slider), said);
}

function without(setup, ...names) {
  return Object.fromEntries(Object.entries(setup).filter(([name]) => !names.includes(name)));
}

const TIMELINE = { left: 110, width: 1100 }; // of the picture

function timelinePicture(answer, { height, memory, window: shown, cursor }) {
  const { lanes, seconds, ticks, who } = answer.timeline;
  const [from, to] = shown ? [shown.from, shown.to] : [0, seconds];
  const { left, width } = TIMELINE, x = (second) => left + ((second - from) / (to - from)) * (width - left);
  const drawn = [];
  let y = 4;
  lanes.forEach((lane, at) => {
    const first = at === 0 || lanes[at - 1].ranks[0] !== lane.ranks[0];
    if (first && at) y += 6;
    const name = lane.stream === "compute" ? `${who} ${ranges(lane.ranks)}` : lane.stream;
    const thick = lane.stream === "compute" ? height : height * 0.55;
    drawn.push(svg("text", { x: lane.stream === "compute" ? 0 : 18, y: y + thick * 0.75, class: lane.stream === "compute" ? null : "faint" }, name));
    if (lane.stream === "compute") drawn.push(svg("rect", { x: left, y, width: width - left, height: thick, fill: colour("idle"), stroke: "var(--grid)" }));
    for (const [start, end, activity, what, text] of lane.spans) {
      if (end < from || start > to) continue;
      const [a, b] = [x(Math.max(start, from)), x(Math.min(end, to))];
      const words = `${who} ${ranges(lane.ranks)}, ${activity === "waiting" ? `waits for ${what}` : what}: ${text}`;
      drawn.push(svg("rect", { x: a, y, width: Math.max(b - a, 0.3), height: thick, fill: colour(activity), onmouseenter: () => hover(words) }, title(words)));
      if (b - a > 14 && lane.stream === "compute" && !lane.actions.length) drawn.push(inside(letter(activity), activity, a, b, y + thick * 0.75));
    }
    for (const [start, end, activity, words] of lane.actions) {
      const [a, b] = [x(Math.max(start, from)), x(Math.min(end, to))];
      if (end < from || start > to) continue;
      drawn.push(svg("line", { x1: a, x2: a, y1: y, y2: y + thick, stroke: "var(--ground)" }));
      if (b - a > 9 * words.length) drawn.push(inside(words, activity, a, b, y + thick * 0.75));
    }
    y += thick + 2;
    const last = at === lanes.length - 1 || lanes[at + 1].ranks[0] !== lane.ranks[0];
    if (memory && last) {
      drawn.push(memoryStrip(answer, lane.ranks[0], x, y, [from, to], 26));
      y += 30;
    }
  });
  drawn.push(svg("line", { x1: left, x2: width, y1: y + 4, y2: y + 4, class: "line" }));
  for (const [second, text] of ticks) {
    if (second < from || second > to) continue;
    drawn.push(svg("line", { x1: x(second), x2: x(second), y1: y + 1, y2: y + 8, class: "line" }));
    drawn.push(svg("text", { x: x(second), y: y + 20, "text-anchor": "middle", class: "faint" }, text));
  }
  if (cursor) drawn.push(svg("line", { x1: left, x2: left, y1: 0, y2: y + 4, class: "cursor", stroke: "var(--ink)", "stroke-width": 1.5 }));
  return svg("svg", { viewBox: `0 0 ${width + 20} ${y + 26}`, class: cursor ? "zoomed" : null, role: "img", "aria-label": `timeline of ${answer.row.name}, ${answer.cells.step}` }, drawn);
}

function inside(words, activity, a, b, y) {
  return svg("text", { x: (a + b) / 2, y, "text-anchor": "middle", fill: inkOn(activity), "pointer-events": "none", class: "mark" }, words);
}

function hover(words) {
  const said = document.getElementById("hovered");
  if (said) said.textContent = words;
}

// What one GPU holds over time, kind upon kind.
function memoryStrip(answer, rank, x, y, [from, to], tall) {
  const { points, peak } = answer.memory.gpus[rank];
  const highest = Math.max(...answer.memory.gpus.map((gpu) => gpu.peak_bytes));
  const strips = [];
  let below = points.map(() => 0);
  answer.memory.kinds.forEach((kind, at) => {
    const above = points.map((point, number) => below[number] + point[at + 1]);
    const line = (heights) => points.map((point, number) => [x(Math.min(Math.max(point[0], from), to)), y + tall - (heights[number] / highest) * tall]);
    const there = line(above), back = line(below).reverse();
    strips.push(svg("path", { d: `M${[...there, ...back].map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L")}Z`, fill: colour(`memory ${kind}`) }, title(kind)));
    below = above;
  });
  return svg("g", {}, strips, svg("text", { x: 18, y: y + tall - 6, class: "faint" }, peak));
}
