// "Timeline": the same run over time, lane by lane, with what every GPU holds below its lanes.

async function showTimeline(screen, setup) {
  const { from, to, ...cut } = setup;
  const answer = await ask("cut", typed(cut));
  if (!answer) return;
  if (answer.error) return say(answer.error);
  say(answer.reason || "");
  showCommand(answer.command);
  if (!answer.timeline) return screen.replaceChildren(element("p", { class: "reason" }, answer.reason));
  const window_ = { from: Number(from || 0), to: Number(to || answer.timeline.seconds) };
  const picture = timelinePicture(answer, { height: 20, memory: true, window: window_ });
  keepFocus(() => screen.replaceChildren(
    element("h2", {}, `${answer.row.name}: ${answer.cells.step}`),
    zoom(answer, setup, window_),
    element("div", { class: "scroll" }, savable("timeline", picture)),
    activities(answer),
    element("p", { id: "hovered" }, "Point at a piece, or move over the lanes with the arrow keys, to read what it is.")));
}

// What the colours of a timeline stand for.
function activities(answer) {
  return legend([...new Set(answer.timeline.lanes.flatMap((lane) => lane.spans.map((span) => span[2]))), "idle"]);
}

function zoom(answer, setup, shown) {
  const whole = answer.timeline.seconds, span = shown.to - shown.from;
  const at = (from, to) => {
    const [first, last] = [Math.max(0, from), Math.min(whole, to)];
    go("timeline", first === 0 && last === whole ? without(setup, "from", "to") : { ...setup, from: first.toPrecision(5), to: last.toPrecision(5) });
  };
  const button = (words, label, act, enabled = true) => element("button", { type: "button", class: "plain", id: `zoom-${label}`, "aria-label": label, disabled: !enabled, onclick: act }, words);
  const middle = (shown.from + shown.to) / 2;
  return element("p", {}, [
    button("+", "zoom in", () => at(middle - span / 4, middle + span / 4), span > whole / 200),
    button("−", "zoom out", () => at(middle - span, middle + span), span < whole),
    button("◀", "earlier", () => at(shown.from - span / 2, shown.to - span / 2), shown.from > 0),
    button("▶", "later", () => at(shown.from + span / 2, shown.to + span / 2), shown.to < whole),
    button("whole step", "whole step", () => at(0, whole), span < whole),
  ].flatMap((each) => [each, " "]));
}

function without(setup, ...names) {
  return Object.fromEntries(Object.entries(setup).filter(([name]) => !names.includes(name)));
}

function timelinePicture(answer, { height, memory, window: shown }) {
  const { lanes, seconds, ticks, who } = answer.timeline;
  const [from, to] = shown ? [shown.from, shown.to] : [0, seconds];
  const left = 110, width = 1100, x = (second) => left + ((second - from) / (to - from)) * (width - left);
  const drawn = [];
  let y = 4;
  lanes.forEach((lane, at) => {
    const first = at === 0 || lanes[at - 1].ranks[0] !== lane.ranks[0];
    if (first && at) y += 6;
    const name = lane.stream === "compute" ? `${who} ${ranges(lane.ranks)}` : lane.stream;
    const thick = lane.stream === "compute" ? height : height * 0.55;
    drawn.push(svg("text", { x: lane.stream === "compute" ? 0 : 18, y: y + thick * 0.75, class: lane.stream === "compute" ? null : "faint" }, name));
    if (lane.stream === "compute") drawn.push(svg("rect", { x: left, y, width: width - left, height: thick, fill: colour("idle"), stroke: "var(--grid)" }));
    for (const [start, end, activity, what, events, text] of lane.spans) {
      if (end < from || start > to) continue;
      const [a, b] = [x(Math.max(start, from)), x(Math.min(end, to))];
      const words = `${who} ${ranges(lane.ranks)}, ${activity === "waiting" ? `waits for ${what}` : what}: ${text}`;
      drawn.push(svg("rect", { x: a, y, width: Math.max(b - a, 0.3), height: thick, fill: colour(activity), onmouseenter: () => hover(words) }, title(words)));
      if (b - a > 14 && lane.stream === "compute") drawn.push(svg("text", { x: (a + b) / 2, y: y + thick * 0.75, "text-anchor": "middle", fill: inkOn(activity), "pointer-events": "none", class: "mark" }, letter(activity)));
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
  return svg("svg", { viewBox: `0 0 ${width + 20} ${y + 26}`, role: "img", "aria-label": `timeline of ${answer.row.name}, ${answer.cells.step}` }, drawn);
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
