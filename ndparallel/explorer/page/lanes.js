// A timeline as a picture: for every GPU a lane of what it computes, thinner ones of what it sends along each axis, and
// a strip of what it holds.

const TIMELINE = { left: ON_PHONE ? 80 : 110, width: ON_PHONE ? 440 : 1000, strip: 26, time: 48 }; // of the picture
const isCompute = (lane) => lane.stream === "compute";

// The picture, drawn when it can be seen.
function laterTimeline(answer, options) {
  const { tall } = placed(answer.timeline.lanes, options);
  return later([TIMELINE.width + 20, tall], () => savable("timeline", timelinePicture(answer, options)));
}

// Where every lane stands, and how tall the picture is.
function placed(lanes, { height, memory }) {
  let y = 4;
  const rows = lanes.map((lane, at) => {
    const isFirst = lanes[at - 1]?.ranks[0] !== lane.ranks[0],
      isLast = lanes[at + 1]?.ranks[0] !== lane.ranks[0];
    const row = { lane, y: y + (isFirst && at ? 6 : 0), thick: isCompute(lane) ? height : height * 0.55, strip: null };
    y = row.y + row.thick + 2;
    if (memory && isLast) row.strip = y;
    if (memory && isLast) y += TIMELINE.strip + 4;
    return row;
  });
  return { rows, end: y + 4, tall: y + 26 };
}

function timelinePicture(answer, options) {
  const { seconds, lanes, ticks } = answer.timeline,
    { from, to } = options.shown || { from: 0, to: seconds };
  const { rows, end, tall } = placed(lanes, options),
    { left, width } = TIMELINE;
  const view = {
    from,
    to,
    x: (second) => left + ((Math.min(Math.max(second, from), to) - from) / (to - from)) * (width - left),
    who: answer.timeline.who,
  };
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width + 20} ${tall}`,
      class: options.cursor ? "zoomed" : null,
      role: "img",
      "aria-label": `timeline of ${answer.row.name}, ${answer.cells.step}`,
    },
    hatch(),
    rows.map((row) => laneOf(row, view)),
    rows.filter((row) => row.strip).map((row) => memoryStrip(answer.memory, row.lane.ranks[0], seconds, row.strip, view)),
    lineAt(left, end, width, end, { class: "line" }),
    ticksOf(ticks.filter(([second]) => from <= second && second <= to), view, end),
    options.cursor ? lineAt(left, 0, left, end, { class: "cursor", stroke: "var(--ink)", "stroke-width": 1.5 }) : null,
  );
}

// A line at every tick, and as many times below as there is room for.
function ticksOf(ticks, view, y) {
  const places = ticks.map(([second]) => view.x(second)),
    every = places.length > 1 ? Math.ceil(TIMELINE.time / (places[1] - places[0])) : 1;
  return ticks.map(([, text], at) => [
    lineAt(places[at], y - 3, places[at], y + 4, { class: "line" }),
    at % every === 0 && textAt(text, places[at], y + 16, { "text-anchor": "middle", class: "faint" }),
  ]);
}

function laneOf({ lane, y, thick }, view) {
  const name = isCompute(lane) ? `${view.who} ${ranges(lane.ranks)}` : lane.stream,
    below = y + thick * 0.75;
  const isInside = ([start, end]) => end >= view.from && start <= view.to;
  return [
    textAt(name, isCompute(lane) ? 0 : 18, below, { class: isCompute(lane) ? null : "faint" }),
    isCompute(lane) && rectAt(TIMELINE.left, y, TIMELINE.width - TIMELINE.left, thick, { fill: colour("idle"), stroke: "var(--grid)" }),
    lane.spans.filter(isInside).map((span) => spanOf(span, lane, y, thick, view)),
    lane.actions.filter(isInside).map(([start, end, activity, words]) => actionOf(words, activity, view.x(start), view.x(end), y, thick)),
  ];
}

function spanOf([start, end, activity, what, text], lane, y, thick, view) {
  const a = view.x(start),
    b = view.x(end);
  const words = `${view.who} ${ranges(lane.ranks)}, ${doing(activity, what)}: ${text}`;
  return [
    rectAt(a, y, Math.max(b - a, 0.3), thick, { fill: fill(activity), "data-says": words }),
    b - a > 14 && isCompute(lane) && !lane.actions.length && inside(letter(activity), activity, a, b, y + thick * 0.75),
  ];
}

const doing = (activity, what) => (activity === "waiting" ? `waits for ${what}` : what);

// All that is computed of one microbatch: its letter and its number, where they have room.
function actionOf(words, activity, a, b, y, thick) {
  return [
    lineAt(a, y, a, y + thick, { stroke: "var(--ground)" }),
    b - a > 8 * words.length && inside(words, activity, a, b, y + thick * 0.75),
  ];
}

function inside(words, activity, a, b, y) {
  return textAt(words, (a + b) / 2, y, {
    "text-anchor": "middle",
    fill: inkOn(activity),
    stroke: colour(activity),
    "stroke-width": 3,
    "paint-order": "stroke",
    "pointer-events": "none",
    class: "mark",
  });
}

// What one GPU holds until the step ends, kind upon kind.
function memoryStrip({ gpus, kinds }, rank, seconds, y, view) {
  const { peak } = gpus[rank],
    points = gpus[rank].points.concat(gpus[rank].points.slice(-1).map((last) => [seconds, ...last.slice(1)])),
    highest = Math.max(...gpus.map((gpu) => gpu.peak_bytes)),
    { strip } = TIMELINE;
  const line = (heights) =>
    points.map(([second], at) => `${view.x(second).toFixed(1)},${(y + strip * (1 - heights[at] / highest)).toFixed(1)}`);
  let below = points.map(() => 0);
  const areas = kinds.map((kind, at) => {
    const above = points.map((point, number) => below[number] + point[at + 1]);
    const edge = [...line(above), ...line(below).reverse()];
    below = above;
    return svg("path", {
      d: `M${edge.join("L")}Z`,
      fill: colour(`memory ${kind}`),
      "data-says": `GPU ${rank} holds ${kind}; ${peak} of all kinds at its peak`,
    });
  });
  return [areas, textAt(peak, 18, y + strip - 6, { class: "faint" })];
}
